"""Checks of how runs are listed and found."""

from __future__ import annotations

from roma_ray.errors import RunNotFound
from roma_ray.runlog.conformance.bench import Bench, refused, same
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus


async def runs_are_listed_newest_first_in_pages(bench: Bench) -> None:
    log, names = await bench.open(), ("b", "a", "d", "c")
    await _make(log, bench, *names)
    mine = [row for row in await log.runs(limit=None) if row.run_id.startswith(bench.prefix)]
    same([row.goal for row in mine], ["goal c", "goal d", "goal a", "goal b"])
    same({row.status for row in mine}, {RunStatus.COMPLETED})
    same(all(row.ended_at is not None and row.ended_at >= row.created_at for row in mine), True)
    same([await log.run(row.run_id) for row in mine], mine)
    with refused(RunNotFound, bench.id("none")):
        await log.run(bench.id("none"))
    same(len(await log.runs(limit=1)), 1)
    older = await log.runs(limit=2, before=mine[1].created_at)
    same([row.goal for row in older], ["goal a", "goal b"])


async def runs_are_found_by_the_beginning_of_their_id(bench: Bench) -> None:
    log = await bench.open()
    await _make(log, bench, "01ab", "01ac", "02%_", "01a")
    for prefix, name in (("02", "02%_"), ("01ab", "01ab"), ("01a", "01a"), ("02%", "02%_")):
        same(await log.find(bench.id(prefix)), bench.id(name))
    with refused(RunNotFound, ", ".join(map(bench.id, ("01a", "01ab", "01ac")))):
        await log.find(bench.id("01"))
    for prefix in (bench.id("0_"), bench.id("01A"), ""):
        with refused(RunNotFound, "no run id"):
            await log.find(prefix)


async def _make(log: RunLog, bench: Bench, *names: str) -> None:
    for name in names:
        lease = await log.create(bench.id(name), goal=f"goal {name}", started={})
        await log.release(lease, RunStatus.COMPLETED)


CHECKS = (runs_are_listed_newest_first_in_pages, runs_are_found_by_the_beginning_of_their_id)
