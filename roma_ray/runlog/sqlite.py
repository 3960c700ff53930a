"""The run log in an SQLite file: what differs from other databases, and nothing else."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Literal

import psutil
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from roma_ray.errors import ConfigError, FolderUnusable
from roma_ray.runlog.database import Database, cause_of, errors_of
from roma_ray.runlog.schema import migrate

_BUSY_WAIT_S = 1.0
"""SQLite's own waiting for a lock; after it the caller's back-off begins."""
_NETWORK_FILE_SYSTEMS = ("afs", "beegfs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "gpfs", "lustre", "nfs", "smb")
_PASSING = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def open_sqlite(url: URL, durability: Literal["power", "process"]) -> Database:
    """Open (and make) the file of `sqlite:///PATH`. Blocks.

    Raises ConfigError for a URL without a path, FolderUnusable when the file cannot be used or lies on a network
    file system (its locks do not hold there), StoreUnavailable when it stays locked.
    """
    path = _path_of(url)
    _make_folder(path)
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": _BUSY_WAIT_S})
    _set_up(engine, durability)
    reader = engine.execution_options(reading=True)
    database = Database(engine=engine, reader=reader, errors=errors_of(engine), is_passing=_is_passing)

    def attempt(failures: int) -> None:
        try:
            with engine.begin() as connection:
                migrate(connection)
        except database.errors as error:
            if _is_passing(error):
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
        raise ConfigError(f"runlog.url {str(url)!r} names no file", cure="write it as sqlite:///PATH")
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


def _is_passing(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, DBAPIError) else error
    # The lower byte is the primary code: SQLITE_BUSY_SNAPSHOT and its like count as SQLITE_BUSY.
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _PASSING
