"""Reading the run log for a command, without the rest of the library: `roma-ray runs` should not wait for DSPy."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from roma_ray.config import load_config
from roma_ray.runlog.events import Event
from roma_ray.runlog.log import RunLog, RunRow


def read_runs(overrides: Sequence[str], *, limit: int) -> list[RunRow]:
    """The newest runs of the run log that `overrides` name."""

    async def read() -> list[RunRow]:
        async with opened_log(overrides) as log:
            return await log.runs(limit=limit)

    return asyncio.run(read())


def read_events(overrides: Sequence[str], run: str) -> list[Event]:
    """All events of the run that `run`, an id or a unique beginning of one, names. Raises RunNotFound."""

    async def read() -> list[Event]:
        async with opened_log(overrides) as log:
            return await log.read(await log.find(run))

    return asyncio.run(read())


@contextlib.asynccontextmanager
async def opened_log(overrides: Sequence[str]) -> AsyncGenerator[RunLog]:
    """The run log that `overrides` name, open inside."""
    log = await RunLog.open(load_config(overrides).config.runlog)
    try:
        yield log
    finally:
        await log.close()
