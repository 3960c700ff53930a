"""A cancel reaches the run that it was meant for, and neither one that has ended meanwhile nor the next resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio

from roma_ray import faults
from roma_ray.api import cancel, load_state
from roma_ray.config import Config, load_config
from roma_ray.errors import UsageError
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus

ENDED = NewEvent(type=EventType.RUN_ENDED, payload={"status": "completed", "wall_s": 7.0})


@pytest.fixture
def config(tmp_path: Path) -> Generator[Config]:
    yield load_config([], environ={"ROMA_RAY_HOME": str(tmp_path)}).config
    faults.disarm()


@pytest_asyncio.fixture
async def log(config: Config) -> AsyncGenerator[RunLog]:
    log = await RunLog.open(config.runlog)
    yield log
    await log.close()


async def begun(log: RunLog) -> Lease:
    return await log.create("r", goal="g", started={"goal": "g", "day": "2026-01-01"})


async def test_of_two_cancels_neither_outlives_the_run(config: Config, log: RunLog) -> None:
    lease = await begun(log)
    cancelling = [asyncio.create_task(cancel(config, "r")) for _ in range(2)]
    mail = log.messages(lease)
    await anext(mail)
    while len(await log.pending("r")) < 2:
        await asyncio.sleep(0.05)
    await log.append(lease, NewEvent(type=EventType.RUN_ENDED, payload={"status": "cancelled"}))
    await log.release(lease, RunStatus.CANCELLED)
    assert [delivery.taken for delivery in await asyncio.gather(*cancelling)] == [True, True]
    assert await log.pending("r") == []


async def test_a_run_that_completes_before_the_word_reaches_it_is_not_called_cancelled(
    config: Config, log: RunLog
) -> None:
    lease = await begun(log)
    cancelling = asyncio.create_task(cancel(config, "r"))
    while not await log.pending("r"):
        await asyncio.sleep(0.05)
    await log.append(lease, ENDED)
    await log.release(lease, RunStatus.COMPLETED)
    with pytest.raises(UsageError, match="has ended: completed"):
        await cancelling
    assert await log.pending("r") == []


async def test_an_end_that_comes_between_looking_and_cancelling_stays(config: Config, log: RunLog) -> None:
    lease = await begun(log)
    faults.arm("runlog.before_take", "sleep", 1.0)
    cancelling = asyncio.create_task(cancel(config, "r"))
    await asyncio.sleep(0.5)
    await log.append(lease, ENDED)
    await log.release(lease, RunStatus.COMPLETED)
    with pytest.raises(UsageError, match="has ended: completed"):
        await cancelling
    state = await load_state(config, "r")
    assert (state.status, state.ran_s, state.epoch) == (RunStatus.COMPLETED, 7.0, 2)
    assert (await log.runs())[0].status is RunStatus.COMPLETED
