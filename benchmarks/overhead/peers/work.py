"""What every engine has to do, and the clock that it is held against; runs in the environments of all of them.

A script hands its engine to `measure`, which prints one JSON line. Of a chain it counts what passes from the
start of its first step to the start of its last one, which is what a step costs with its commit: what an engine does
once a run is left out. Of a fan-out it counts from the start of the first step until all of them are committed.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

STEP_BYTES = 1024
CHAIN, FAN_OUT = 50, 200
STORED_AFTER = (50, 100, 200)
_FEWEST_ROUNDS, _MOST_ROUNDS, _MEASURE_S = 3, 15, 10.0


class Engine(Protocol):
    """Both methods do a new run of so many steps, each of which calls `produce` once for its value."""

    def chain(self, steps: int) -> None:
        """One step after another, each starting once the one before is committed."""

    def fan_out(self, steps: int) -> None:
        """All steps at once; their values are collected. Returns when all of them are committed."""


Opened = Callable[[str, Path], AbstractContextManager[Engine]]
"""Opens an engine on a database: the URL of an empty PostgreSQL database, or "" for SQLite files in the folder."""


class _Moment(NamedTuple):
    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> _Moment:
        return cls(time.perf_counter(), time.process_time())


_starts: list[_Moment] = []


def produce() -> str:
    """The value of one step: 1 KiB of text that hardly compresses."""
    _starts.append(_Moment.now())
    return secrets.token_urlsafe(STEP_BYTES)[:STEP_BYTES]


def measure(opened: Opened) -> None:
    """Measure an engine on the store that the command line names, floor and engine taking turns; print the figures.

    Each figure is the best round: whatever else the machine does only ever makes one slower.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="an empty folder, on the disk to be measured")
    parser.add_argument("--postgres", default="", help="URL of an empty database")
    args = parser.parse_args()
    rounds: list[dict[str, float]] = []
    with _floor(args.postgres, args.folder) as floor, opened(args.postgres, args.folder) as engine:
        _timed_chain(engine, 5)
        _timed_fan_out(engine, 5)
        end_s = time.monotonic() + _MEASURE_S
        while len(rounds) < _FEWEST_ROUNDS or (len(rounds) < _MOST_ROUNDS and time.monotonic() < end_s):
            rounds.append(_timed_floor(floor) | _timed_chain(engine, CHAIN) | _timed_fan_out(engine, FAN_OUT))
        stored = {steps: _stored_kib(engine, steps, args.postgres, args.folder) for steps in STORED_AFTER}
    best = {name: min(figures[name] for figures in rounds) for name in rounds[0]}
    print(json.dumps(best | {"rounds": len(rounds), "stored_kib": stored}), flush=True)


# ---- milliseconds a step


def _timed_floor(commit: Callable[[str], None]) -> dict[str, float]:
    _starts.clear()
    for _ in range(CHAIN):
        commit(produce())
    return _a_step("floor", _starts[0], _starts[-1], CHAIN - 1)


def _timed_chain(engine: Engine, steps: int) -> dict[str, float]:
    _starts.clear()
    engine.chain(steps)
    _check_starts(steps)
    return _a_step("chain", _starts[0], _starts[-1], steps - 1)


def _timed_fan_out(engine: Engine, steps: int) -> dict[str, float]:
    _starts.clear()
    engine.fan_out(steps)
    end = _Moment.now()
    _check_starts(steps)
    return _a_step("fan_out", _starts[0], end, steps)


def _a_step(what: str, start: _Moment, end: _Moment, steps: int) -> dict[str, float]:
    return {
        f"{what}_ms": (end.wall_s - start.wall_s) * 1000 / steps,
        f"{what}_cpu_ms": (end.cpu_s - start.cpu_s) * 1000 / steps,
    }


def _check_starts(steps: int) -> None:
    if len(_starts) != steps:
        raise RuntimeError(f"{len(_starts)} steps were done, {steps} asked for")


# ---- the floor: a commit that holds the value and nothing else


def _floor(postgres: str, folder: Path) -> AbstractContextManager[Callable[[str], None]]:
    return _PostgresFloor(postgres) if postgres else _SqliteFloor(folder)


class _SqliteFloor:
    def __init__(self, folder: Path) -> None:
        # In a folder of its own, so that it is not counted among what the engine has stored.
        (folder / "floor").mkdir()
        self._connection = sqlite3.connect(folder / "floor" / "floor.db", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE steps (id INTEGER PRIMARY KEY, value TEXT)")

    def __enter__(self) -> Callable[[str], None]:
        return self._commit

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def _commit(self, value: str) -> None:
        self._connection.execute("INSERT INTO steps (value) VALUES (?)", (value,))


class _PostgresFloor:
    def __init__(self, url: str) -> None:
        import psycopg

        self._connection: Any = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE TABLE floor (id bigserial PRIMARY KEY, value text)")

    def __enter__(self) -> Callable[[str], None]:
        return self._commit

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def _commit(self, value: str) -> None:
        self._connection.execute("INSERT INTO floor (value) VALUES (%s)", (value,))


# ---- bytes a step


def _stored_kib(engine: Engine, steps: int, postgres: str, folder: Path) -> float:
    before = _size_bytes(postgres, folder)
    engine.chain(steps)
    return (_size_bytes(postgres, folder) - before) / 1024 / steps


def _size_bytes(postgres: str, folder: Path) -> int:
    """What the database holds, with what still waits in its write-ahead log to be moved to its place."""
    if postgres:
        import psycopg

        with psycopg.connect(postgres, autocommit=True) as connection:
            (size_bytes,) = connection.execute("SELECT pg_database_size(current_database())").fetchall()[0]
            return size_bytes
    return sum(map(_pages_bytes, folder.glob("*.db")))


def _pages_bytes(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        names = ("page_count", "freelist_count", "page_size")
        pages, free, size_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return (pages - free) * size_bytes
