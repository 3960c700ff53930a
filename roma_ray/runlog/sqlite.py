"""The run log in SQLite, in a file or in memory: what differs from other databases, and nothing else."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import psutil
from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, literal

from roma_ray.errors import ConfigError, FolderUnusable
from roma_ray.runlog.appends import Appends
from roma_ray.runlog.database import Database, Trouble, cause_of, driver_error, errors_of
from roma_ray.runlog.migrations import migrate
from roma_ray.runlog.owner import since_boot_s

_BUSY_WAIT_S = 1.0
"""SQLite's own waiting for a lock; after it the caller's back-off begins."""
_NETWORK_FILE_SYSTEMS = ("afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "smb")
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

_in_memory: dict[str, sqlite3.Connection] = {}
"""One open connection for each database in memory, which lasts as long as it has any."""


def open_sqlite(url: URL, durability: Literal["power", "process"]) -> Database:
    """Open (and make) the file of `sqlite:///PATH`. Blocks.

    Raises ConfigError for a URL without a path, FolderUnusable when the file cannot be used or lies on a network
    file system (its locks do not hold there), StoreUnavailable when it stays locked, StoreFull.
    """
    path = _path_of(url)
    _make_folder(path)
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": _BUSY_WAIT_S})
    return _opened(engine, path, durability)


def open_memory(url: URL) -> Database:
    """Open (and make) the database `memory://NAME` of this process, which ends with it. Blocks."""
    name = url.host or "runs"
    if url.database or url.query:
        raise ConfigError(f"runlog.url {url.render_as_string()!r} names no database in memory", cure="write memory://")

    def connect() -> sqlite3.Connection:
        address = f"file:/{name}?vfs=memdb"
        return sqlite3.connect(address, uri=True, timeout=_BUSY_WAIT_S, check_same_thread=False)

    if name not in _in_memory:
        _in_memory[name] = connect()
    return _opened(create_engine("sqlite://", creator=connect, poolclass=QueuePool), Path(name), "process")


def _opened(engine: Engine, path: Path, durability: Literal["power", "process"]) -> Database:
    _set_up(engine, durability)
    database = Database(
        engine=engine,
        reader=engine.execution_options(reading=True),
        appends=Appends(engine),
        lease_clock=lambda: literal(since_boot_s()),
        # The index of the write-ahead log lies in memory that only processes of one machine can share.
        one_boot=True,
        trouble=lambda error: _trouble(error, path),
    )

    def attempt(failures: int) -> None:
        try:
            with engine.begin() as connection:
                migrate(connection, before_changing=lambda version: _copy(path, version))
        except errors_of(engine) as error:
            if _trouble(error, path) is not Trouble.LASTING:
                raise
            raise FolderUnusable(f"the run log {path} cannot be used: {cause_of(error)}") from error

    try:
        database.patiently(attempt)
    except BaseException:
        engine.dispose()
        raise
    return database


def _path_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:" or url.host or url.query:
        raise ConfigError(f"runlog.url {str(url)!r} names no file", cure="write it as sqlite:///PATH, or memory://")
    try:
        return Path(url.database).expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise FolderUnusable(f"the run log {url.database} cannot be used: {error}") from error


def _make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder, not a file")
    except OSError as error:
        raise FolderUnusable(f"the run log {path} cannot be used: {error.strerror}") from error
    file_system = _file_system_of(path)
    if file_system.startswith(_NETWORK_FILE_SYSTEMS):
        raise FolderUnusable(
            f"the run log {path} lies on a network file system ({file_system}), where SQLite's locks do not hold",
            cure="give a local path: runlog.url=sqlite:///PATH",
        )


def _file_system_of(path: Path) -> str:
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    return next((mounts[folder] for folder in path.parents if folder in mounts), "")


def _set_up(engine: Engine, durability: Literal["power", "process"]) -> None:
    """Give every connection its settings, and every transaction its lock."""

    def on_connect(connection: sqlite3.Connection, record: Any) -> None:
        # The driver's own begin comes too late: only the statements below open transactions.
        connection.isolation_level = None
        # Committed is durable with FULL: one fsync a commit. With NORMAL only checkpoints are flushed.
        synchronous = "FULL" if durability == "power" else "NORMAL"
        for pragma in ("journal_mode=WAL", f"synchronous={synchronous}", f"fullfsync={durability == 'power':d}"):
            connection.execute(f"PRAGMA {pragma}").close()

    def on_begin(connection: Connection) -> None:
        reading = connection.get_execution_options().get("reading", False)
        # Through the driver: a durable step should not pay for SQLAlchemy's statement machinery.
        connection.connection.cursor().execute("BEGIN" if reading else "BEGIN IMMEDIATE")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


def _copy(path: Path, version: int) -> None:
    """Keep the file as it was before it becomes `version`, beside it."""
    kept = path.with_name(f"{path.name}.before-{version}")
    unfinished = kept.with_name(f"{kept.name}.part")
    unfinished.unlink(missing_ok=True)
    # From a connection of its own: the one that changes the tables keeps other writers out meanwhile.
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(unfinished)) as copy:
        source.backup(copy)
    unfinished.chmod(path.stat().st_mode)
    os.replace(unfinished, kept)


def _trouble(error: BaseException, path: Path) -> Trouble:
    # The lower byte is the primary code: SQLITE_BUSY_SNAPSHOT and its like count as SQLITE_BUSY.
    code = getattr(driver_error(error), "sqlite_errorcode", 0) & 0xFF
    if code in _PASSING:
        return Trouble.PASSING
    # Growing the shared memory on a full disk is an I/O error like any other.
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _has_no_room(path)):
        return Trouble.FULL
    return Trouble.LASTING


def _has_no_room(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False
