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
from collections.abc import Awaitable, Callable
from contextlib import closing
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


def main(folders: list[str]) -> int:
    console = Console() if sys.stdout.isatty() else Console(width=130)
    table = Table("folder", "case", "ms a step", "x floor", "promised", title="Durable steps (durability=power)")
    kept = True
    for folder in folders or [_MEMORY, _DISK]:
        with tempfile.TemporaryDirectory(dir=folder, prefix="steps-") as scratch:
            rounds = asyncio.run(_measure(Path(scratch)))
        floor_ms, linear_ms, fan_ms = (statistics.median(rounds[case]) for case in ("floor", "linear", "fan-out"))
        limits = {"linear": 0.4 if folder == _MEMORY else 1.15 * floor_ms, f"fan-out {_FAN_OUT}": 0.3}
        table.add_row(folder, "floor: one flushed sqlite3 commit", f"{floor_ms:.3f}", "1.00", "")
        for (case, limit_ms), ms in zip(limits.items(), (linear_ms, fan_ms), strict=True):
            ok = ms <= limit_ms * _SLACK
            kept &= ok
            promise = f"<= {limit_ms:.3f} {'ok' if ok else 'MISSED'}"
            table.add_row(folder, case, f"{ms:.3f}", f"{ms / floor_ms:.2f}", promise)
    kept &= _stored_bytes(table)
    console.print(table)
    return 0 if kept else 1


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


def _stored_bytes(table: Table) -> bool:
    """Bytes on disk for each step, after runs of growing length."""
    kept = True
    for steps in (50, 100, 200, 1000):
        with tempfile.TemporaryDirectory() as scratch:
            kib = asyncio.run(_kib_a_step(Path(scratch), steps))
        ok = kib <= 2.5 * _SLACK
        kept &= ok
        table.add_row("", f"KiB stored a step, {steps} steps", f"{kib:.2f}", "", f"<= 2.50 {'ok' if ok else 'MISSED'}")
    return kept


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
