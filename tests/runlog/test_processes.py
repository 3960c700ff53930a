"""What happens to a run when real processes fight over it, die, or sleep."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest

from roma_ray.errors import RunHeld
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus
from tests.runlog.conftest import OpenLog, StartHolder


async def texts(log: RunLog, run_id: str) -> list[str]:
    return [event.payload["text"] for event in await log.read(run_id) if event.type is EventType.WARNING]


async def take_when_free(log: RunLog, run_id: str) -> Lease:
    async with asyncio.timeout(20):
        while True:
            try:
                return await log.take(run_id)
            except RunHeld:
                await asyncio.sleep(0.05)


async def test_processes_that_start_at_once_on_an_empty_folder_all_get_the_same_tables(
    open_log: OpenLog, start_holder: StartHolder
) -> None:
    holders = await asyncio.gather(*[start_holder("create", f"run{n}") for n in range(4)])
    assert [await holder.says() for holder in holders] == ["held 1"] * 4
    assert {row.run_id for row in await (await open_log()).runs()} == {"run0", "run1", "run2", "run3"}


async def test_of_two_that_take_a_run_at_once_one_wins_and_the_other_names_it(
    open_log: OpenLog, start_holder: StartHolder
) -> None:
    log = await open_log()
    await log.release(await log.create("run", goal="g", started={}), RunStatus.INTERRUPTED)
    one, other = await asyncio.gather(start_holder("take", "run"), start_holder("take", "run"))
    said = {await one.says(): one, await other.says(): other}
    winner = said.pop("held 2")
    (refusal,) = said
    assert refusal.startswith(f"R0108 run run is held by pid {winner.pid} on {socket.gethostname()} since 20")
    assert [event.type for event in await log.read("run", after=1)] == [EventType.LEASE_TAKEN]


async def test_a_killed_holder_leaves_its_run_interrupted_and_free_at_once(
    open_log: OpenLog, start_holder: StartHolder
) -> None:
    holder = await start_holder("create", "run", ttl_s=600)
    assert await holder.says() == "held 1"
    log = await open_log()
    assert (await log.runs())[0].status is RunStatus.RUNNING
    with pytest.raises(RunHeld, match=f"pid {holder.pid}"):
        await log.take("run")
    holder.tell("append kept")
    assert await holder.says() == "2"

    os.kill(holder.pid, signal.SIGKILL)
    await holder.process.wait()

    assert (await log.runs())[0].status is RunStatus.INTERRUPTED
    lease = await log.take("run")
    assert lease.epoch == 2
    assert await texts(log, "run") == ["kept"]


async def test_a_holder_that_slept_past_its_lease_cannot_write_behind_the_one_that_took_over(
    open_log: OpenLog, start_holder: StartHolder
) -> None:
    holder = await start_holder("create", "run", ttl_s=1)
    assert await holder.says() == "held 1"
    log = await open_log()
    os.kill(holder.pid, signal.SIGSTOP)
    holder.tell("append late")
    lease = await take_when_free(log, "run")
    await log.append(lease, NewEvent(type=EventType.WARNING, payload={"text": "mine"}))

    os.kill(holder.pid, signal.SIGCONT)
    holder.tell("lost")
    holder.tell("append later")

    assert (await holder.says()).startswith("R0308 another process took over run run")
    assert await holder.says() == "lost"
    assert (await holder.says()).startswith("R0308")
    await log.append(lease, NewEvent(type=EventType.WARNING, payload={"text": "mine too"}))
    assert await texts(log, "run") == ["mine", "mine too"]


async def test_a_holder_that_slept_and_was_not_missed_goes_on(open_log: OpenLog, start_holder: StartHolder) -> None:
    holder = await start_holder("create", "run", ttl_s=0.3)
    assert await holder.says() == "held 1"
    os.kill(holder.pid, signal.SIGSTOP)
    await asyncio.sleep(0.6)
    os.kill(holder.pid, signal.SIGCONT)
    holder.tell("append awake")
    assert await holder.says() == "2"


@pytest.mark.parametrize(("point", "kept"), [("before_commit", []), ("after_commit", ["once"])])
async def test_a_kill_at_a_commit_keeps_an_event_once_or_not_at_all(
    open_log: OpenLog, start_holder: StartHolder, point: str, kept: list[str]
) -> None:
    holder = await start_holder("create", "run", faults=f"runlog.{point}=exit")
    assert await holder.says() == "held 1"
    holder.tell("append once")
    assert await holder.says() == "" and await holder.process.wait() == 137
    log = await open_log()
    await log.take("run")
    assert await texts(log, "run") == kept


@pytest.mark.parametrize("point", ["after_create", "before_release"])
async def test_a_kill_after_creating_or_before_releasing_leaves_a_run_that_can_be_taken(
    open_log: OpenLog, start_holder: StartHolder, point: str
) -> None:
    holder = await start_holder("create", "run", faults=f"runlog.{point}=exit")
    holder.tell("release")
    assert await holder.process.wait() == 137
    log = await open_log()
    assert (await log.runs())[0].status is RunStatus.INTERRUPTED
    assert (await log.take("run")).epoch == 2


async def test_a_kill_before_taking_changes_nothing(open_log: OpenLog, start_holder: StartHolder) -> None:
    log = await open_log()
    await log.release(await log.create("run", goal="g", started={}), RunStatus.PARTIAL)
    holder = await start_holder("take", "run", faults="runlog.before_take=exit")
    assert await holder.process.wait() == 137
    assert (await log.runs())[0].status is RunStatus.PARTIAL
    assert len(await log.read("run")) == 1


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_failed_write_is_said_once_and_nothing_is_written_after_the_gap(
    open_log: OpenLog, start_holder: StartHolder
) -> None:
    holder = await start_holder("create", "run")
    assert await holder.says() == "held 1"
    holder.tell("append before")
    assert await holder.says() == "2"
    holder.tell("full 4096")
    holder.tell("append lost")
    holder.tell(f"full {2**40}")
    holder.tell("append after")
    said = [await holder.says() for _ in range(4)]
    assert (said[0], said[2]) == ("full", "full")
    assert said[1].startswith("R0307 the run log failed: ") and said[3] == said[1]
    os.kill(holder.pid, signal.SIGKILL)
    await holder.process.wait()
    log = await open_log()
    await log.take("run")
    assert await texts(log, "run") == ["before"]
