"""Look at the runs of a run log, and remove old ones."""

from __future__ import annotations

import asyncio

from roma_ray import clock
from roma_ray.api.shared import run_log, storage_of
from roma_ray.config import Config
from roma_ray.engine.coordinator import stored_result
from roma_ray.engine.result import Result
from roma_ray.engine.standing import read_run
from roma_ray.engine.state import RunState
from roma_ray.engine.stored import remove_run
from roma_ray.engine.tree import fold
from roma_ray.errors import RunHeld, RunNotFound
from roma_ray.runlog.events import Event
from roma_ray.runlog.log import RunLog, RunRow
from roma_ray.types import RunStatus


async def list_runs(config: Config, *, limit: int = 50) -> list[RunRow]:
    """The newest runs of the run log, newest first."""
    async with run_log(config.runlog) as log:
        return await log.runs(limit=limit)


async def load_state(config: Config, run_id: str) -> RunState:
    """The folded state of the run that `run_id`, or a unique prefix, names. Raises RunNotFound.

    A run whose process died is interrupted, as in `list_runs`.
    """
    async with run_log(config.runlog) as log:
        return (await read_run(log, run_id))[0]


async def load_result(config: Config, run_id: str) -> Result:
    """How a run stands in the run log, ended or not. Raises RunNotFound, and ValueLost when its value is gone."""
    state = await load_state(config, run_id)
    return await stored_result(state, config.model_copy(update={"storage": storage_of(state, config)}))


async def load_events(config: Config, run_id: str) -> list[Event]:
    """All events of one run, in order. Raises RunNotFound."""
    async with run_log(config.runlog) as log:
        return await log.read(await log.find(run_id))


async def prune(config: Config, *, older_than_s: float, dry_run: bool) -> list[RunRow]:
    """Remove the runs that ended more than `older_than_s` seconds ago, with their files and values.

    Interrupted ones count from their beginning; those that are held or wait for a person stay. Returns them, oldest
    first. With `dry_run` nothing is removed. Files are looked for where each run has put them.
    """
    async with run_log(config.runlog) as log:
        rows = await log.runs(limit=None, before=clock.now_s() - older_than_s)
        old = [row for row in reversed(rows) if _may_go(row, clock.now_s() - older_than_s)]
        return old if dry_run else [row for row in old if await _removed(log, row.run_id, config)]


async def _removed(log: RunLog, run_id: str, config: Config) -> bool:
    storage = storage_of(fold(await log.read(run_id)), config)
    try:
        await log.delete(run_id)
    except (RunHeld, RunNotFound):
        # Somebody has gone on with it since it was listed, or removed it.
        return False
    await asyncio.to_thread(remove_run, storage, run_id)
    return True


def _may_go(row: RunRow, before_s: float) -> bool:
    if row.status in (RunStatus.RUNNING, RunStatus.WAITING):
        return False
    return (row.ended_at or row.created_at) < before_s
