"""Whom a lease keeps out, whatever the clocks say."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from sqlalchemy import make_url, update

from roma_ray.errors import RunHeld
from roma_ray.runlog.log import RunLog
from roma_ray.runlog.schema import runs
from roma_ray.types import RunStatus
from tests.runlog.conftest import OpenLog, StartHolder

_HOURS_2 = 7200.0


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the wall clock of this process jump."""
    told = time.time
    monkeypatch.setattr(time, "time", lambda: told() + seconds)


@pytest.mark.parametrize("seconds", [_HOURS_2, -_HOURS_2])
async def test_a_clock_that_jumps_takes_no_run_from_its_holder_and_gives_none_to_a_lapsed_one(
    open_log: OpenLog, start_holder: StartHolder, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    holder = await start_holder("create", "run", ttl_s=1)
    assert await holder.says() == "held 1"
    log = await open_log()
    jump(monkeypatch, seconds)
    with pytest.raises(RunHeld):
        await log.take("run")
    assert (await log.runs())[0].status is RunStatus.RUNNING
    os.kill(holder.pid, signal.SIGSTOP)
    await asyncio.sleep(1.2)
    assert (await log.runs())[0].status is RunStatus.INTERRUPTED
    assert (await log.take("run")).epoch == 2


async def test_a_holder_of_another_boot_is_dead_where_only_one_machine_can_have_the_log_open(
    open_log: OpenLog, url: str
) -> None:
    log = await open_log()
    await log.create("run", goal="g", started={})
    with log._database.engine.begin() as connection:  # pyright: ignore[reportPrivateUsage]
        connection.execute(update(runs).values(owner_boot="an-earlier-one/pid:[1]", lease_until_s=9e9))
    if make_url(url).drivername == "sqlite":
        assert (await log.take("run")).epoch == 2
    else:
        with pytest.raises(RunHeld):
            await log.take("run")


async def test_who_waits_for_a_run_hears_at_once_that_its_log_was_lost(
    open_log: OpenLog, start_holder: StartHolder
) -> None:
    holder = await start_holder("create", "run", ttl_s=1)
    assert await holder.says() == "held 1"
    os.kill(holder.pid, signal.SIGSTOP)
    log: RunLog = await open_log()
    async with asyncio.timeout(20):
        while True:
            try:
                await log.take("run")
                break
            except RunHeld:
                await asyncio.sleep(0.05)
    os.kill(holder.pid, signal.SIGCONT)
    holder.tell("failed")
    assert (await holder.says()).startswith("R0308 another process took over run run")
