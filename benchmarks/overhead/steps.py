"""`python -m benchmarks.overhead.steps [FOLDER …]`: what a durable step costs beside one flushed SQLite commit.

A step is one `step.done` event with an outcome of 1 KiB that barely compresses. Floor and ours take turns, a short
round each, so that a slow minute of the disk hits both alike; figures are medians over the rounds. Exits 1 when a
promise is missed by more than 10 %.
"""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from roma_ray.config.schema import RunlogConfig
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus

_ROUNDS, _LINEAR_STEPS, _FAN_OUT = 25, 20, 200
_STEP_BYTES = 1024
_SLACK = 1.10
_MEMORY, _DISK = "/dev/shm", "."

Rounds = dict[str, list[float]]
_Way = Callable[[RunLog, Lease, list[NewEvent]], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `judged` is what is held against `limit`: the figure itself or its ratio to the floor."""

    folder: str
    case: str
    figure: float
    unit: str
    x_floor: float | None = None
    judged: float = 0.0
    limit: float | None = None
    limit_unit: str = ""

    @property
    def kept(self) -> bool:
        return self.limit is None or self.judged <= self.limit * _SLACK


def main(folders: list[str]) -> int:
    console = Console() if sys.stdout.isatty() else Console(width=130)
    rows = measured(folders)
    console.print(as_table(rows))
    return 0 if all(row.kept for row in rows) else 1


def measured(folders: list[str]) -> list[Row]:
    """All rows, in each of `folders` (none: a memory disk and the current folder)."""
    rows = [row for folder in folders or [_MEMORY, _DISK] for row in _times(folder)]
    return [*rows, *_stored_bytes()]


def as_table(rows: list[Row]) -> Table:
    table = Table("folder", "case", "a step", "x floor", "promised", title="Durable steps (durability=power)")
    for row in rows:
        ratio = "" if row.x_floor is None else f"{row.x_floor:.2f}"
        told = "" if row.limit is None else f"<= {row.limit:g} {row.limit_unit} {'ok' if row.kept else 'MISSED'}"
        table.add_row(row.folder, row.case, f"{row.figure:.3f} {row.unit}", ratio, told)
    return table


def _times(folder: str) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=folder, prefix="steps-") as scratch:
        rounds = asyncio.run(_measure(Path(scratch)))
    floor_ms, linear_ms, fan_ms = (statistics.median(rounds[case]) for case in ("floor", "linear", "fan-out"))
    linear, fan_out = linear_ms / floor_ms, fan_ms / floor_ms
    yield Row(folder=folder, case="floor: one flushed sqlite3 commit", figure=floor_ms, unit="ms", x_floor=1.0)
    # Flushing a disk takes as long as the disk takes; on a memory disk there is only our own work to be timed.
    judged, limit, unit = (linear_ms, 0.4, "ms") if folder == _MEMORY else (linear, 1.15, "x floor")
    yield Row(
        folder=folder,
        case="one after another",
        figure=linear_ms,
        unit="ms",
        x_floor=linear,
        judged=judged,
        limit=limit,
        limit_unit=unit,
    )
    yield Row(
        folder=folder,
        case=f"{_FAN_OUT} at once",
        figure=fan_ms,
        unit="ms",
        x_floor=fan_out,
        judged=fan_ms,
        limit=0.3,
        limit_unit="ms",
    )


async def _measure(folder: Path) -> Rounds:
    """Milliseconds a step of every round."""
    log = await RunLog.open(RunlogConfig(url=f"sqlite:///{folder}/runs.db"))
    lease = await log.create("run", goal="g", started={})
    rounds: Rounds = {"floor": [], "linear": [], "fan-out": []}
    with closing(_floor_database(folder)) as floor:
        for _ in range(_ROUNDS):
            rounds["floor"].append(_floor_round(floor))
            rounds["linear"].append(await _timed(log, lease, _LINEAR_STEPS, _one_after_another))
            rounds["fan-out"].append(await _timed(log, lease, _FAN_OUT, _at_once))
    await log.close()
    return rounds


def _floor_database(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE steps (id INTEGER PRIMARY KEY, payload BLOB)")
    return connection


def _floor_round(floor: sqlite3.Connection) -> float:
    payloads = [secrets.token_bytes(_STEP_BYTES) for _ in range(_LINEAR_STEPS)]
    start = time.perf_counter()
    for payload in payloads:
        floor.execute("BEGIN IMMEDIATE")
        floor.execute("INSERT INTO steps (payload) VALUES (?)", (payload,))
        floor.execute("COMMIT")
    return (time.perf_counter() - start) * 1000 / _LINEAR_STEPS


async def _timed(log: RunLog, lease: Lease, steps: int, way: _Way) -> float:
    events = [_step(number) for number in range(steps)]
    start = time.perf_counter()
    await way(log, lease, events)
    return (time.perf_counter() - start) * 1000 / steps


async def _one_after_another(log: RunLog, lease: Lease, events: list[NewEvent]) -> None:
    for event in events:
        await log.append(lease, event)


async def _at_once(log: RunLog, lease: Lease, events: list[NewEvent]) -> None:
    await asyncio.gather(*[log.append(lease, event) for event in events])


def _step(number: int) -> NewEvent:
    value = secrets.token_urlsafe(_STEP_BYTES)[:_STEP_BYTES]
    payload = {"step": f"root.{number}/descend~0", "outcome": {"status": "completed", "value": value}, "wall_s": 1.0}
    return NewEvent(type=EventType.STEP_DONE, node_id=f"root.{number}", payload=payload)


def _stored_bytes() -> Iterator[Row]:
    """KiB on disk for each step, after runs of growing length."""
    for steps in (50, 100, 200, 1000):
        with tempfile.TemporaryDirectory() as scratch:
            kib = asyncio.run(_kib_a_step(Path(scratch), steps))
        yield Row(
            folder="", case=f"stored, {steps} steps", figure=kib, unit="KiB", judged=kib, limit=2.5, limit_unit="KiB"
        )


async def _kib_a_step(folder: Path, steps: int) -> float:
    log = await RunLog.open(RunlogConfig(url=f"sqlite:///{folder}/runs.db"))
    before = await _written_out(log, folder)
    log = await RunLog.open(RunlogConfig(url=f"sqlite:///{folder}/runs.db"))
    lease = await log.create("run", goal="g", started={})
    await _at_once(log, lease, [_step(number) for number in range(steps)])
    await log.release(lease, RunStatus.COMPLETED)
    return (await _written_out(log, folder) - before) / steps / 1024


async def _written_out(log: RunLog, folder: Path) -> int:
    await log.close()
    return await asyncio.to_thread(lambda: sum(file.stat().st_size for file in folder.iterdir()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
