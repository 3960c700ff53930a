"""DBOS: `dbos_steps.py FOLDER`; a workflow that calls steps one by one, and one that gathers them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path

import pysqlite3

# DBOS needs SQLite 3.42 or newer, which Pythons of older systems do not have.
sys.modules["sqlite3"] = pysqlite3

from dbos import DBOS  # noqa: E402

from benchmarks.overhead.peers.work import measure, produce  # noqa: E402


@DBOS.step()
def step() -> str:
    return produce()


@DBOS.step()
async def async_step() -> str:
    return produce()


@DBOS.workflow()
def chained(steps: int) -> int:
    return sum(bool(step()) for _ in range(steps))


@DBOS.workflow()
async def gathered(steps: int) -> int:
    return len(await asyncio.gather(*[async_step() for _ in range(steps)]))


class Dbos:
    def chain(self, steps: int) -> None:
        assert chained(steps) == steps

    def fan_out(self, steps: int) -> None:
        assert asyncio.run(gathered(steps)) == steps


@contextmanager
def opened(postgres: str, folder: Path) -> Generator[Dbos]:
    file = folder / "dbos.db"
    if not postgres:
        # DBOS leaves the journal as it finds it; the write-ahead log flushes once a commit instead of several times.
        with closing(pysqlite3.connect(str(file))) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    url = postgres or f"sqlite:///{file}"
    DBOS(config={"name": "steps", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})
    DBOS.launch()
    yield Dbos()
    DBOS.destroy()


if __name__ == "__main__":
    measure(opened)
