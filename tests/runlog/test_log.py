"""What a run log promises to the one that uses it; on every dialect."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import insert

from roma_ray import faults
from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import Fenced, RunHeld, RunNotFound, StoreUnavailable, UsageError
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.inbox import InboxMessage
from roma_ray.runlog.log import RunLog
from roma_ray.runlog.schema import events
from roma_ray.types import RunStatus
from tests.runlog.conftest import OpenLog


def warning(text: str, node_id: str = "") -> NewEvent:
    return NewEvent(type=EventType.WARNING, node_id=node_id, payload={"text": text})


async def texts(log: RunLog, run_id: str) -> list[str]:
    return [event.payload["text"] for event in await log.read(run_id) if event.type is EventType.WARNING]


async def test_a_run_tells_its_story_in_order_over_epochs(open_log: OpenLog) -> None:
    log = await open_log()
    lease = await log.create("run", goal="why?", started={"goal": "why?"})
    futures = [log.append(lease, warning(f"{n}a"), warning(f"{n}b", "root.1")) for n in range(50)]
    assert await asyncio.gather(*futures) == list(range(3, 103, 2))
    await log.release(lease, RunStatus.WAITING)
    await log.take("run")

    story = await log.read("run")

    assert [event.seq for event in story] == list(range(1, 103))
    assert (story[0].type, story[0].payload, story[0].epoch) == (EventType.RUN_STARTED, {"goal": "why?"}, 1)
    assert [e.payload["text"] for e in story[1:-1]] == [f"{n}{letter}" for n in range(50) for letter in "ab"]
    assert (story[2].node_id, story[2].run_id) == ("root.1", "run")
    assert (story[-1].type, story[-1].epoch) == (EventType.LEASE_TAKEN, 2)
    assert story[-1].payload["owner"].keys() == {"host", "pid"}
    assert [event.seq for event in await log.read("run", after=100)] == [101, 102]


async def test_what_one_log_wrote_another_one_reads(url: str) -> None:
    log = await RunLog.open(RunlogConfig(url=url))
    lease = await log.create("run", goal="g", started={})
    log.append(lease, warning("not awaited"))
    await log.close()
    log = await RunLog.open(RunlogConfig(url=url, durability="process"))
    assert await texts(log, "run") == ["not awaited"]
    assert (await log.runs())[0].status is RunStatus.INTERRUPTED
    assert (await log.take("run")).epoch == 2
    await log.close()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 130), min_size=1, max_size=8), awaited=st.sets(st.integers(0, 7)))
async def test_any_split_of_the_same_events_reads_back_the_same(
    open_log: OpenLog, sizes: list[int], awaited: set[int]
) -> None:
    log = await open_log()
    run_id = f"run{len(await log.runs(limit=10_000))}"
    lease = await log.create(run_id, goal="g", started={})
    told = iter(range(10_000))
    for number, size in enumerate(sizes):
        future = log.append(lease, *[warning(str(next(told))) for _ in range(size)])
        if number in awaited:
            await future
    await log.release(lease, RunStatus.COMPLETED)
    await log.close()
    log = await open_log()
    assert await texts(log, run_id) == [str(n) for n in range(sum(sizes))]


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_a_commit_whose_answer_gets_lost_is_not_doubled(open_log: OpenLog, point: str) -> None:
    log = await open_log()
    lease = await log.create("run", goal="g", started={})
    faults.arm(f"runlog.{point}", "raise")
    try:
        assert await log.append(lease, warning("a"), warning("b")) == 3
    finally:
        faults.disarm()
    assert await log.append(lease, warning("c")) == 4
    assert await texts(log, "run") == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["create", "take", "send", "release"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_no_other_change_is_doubled_either(open_log: OpenLog, name: str, when: str) -> None:
    log = await open_log()
    faults.arm(f"runlog.{when}_{name}", "raise")
    try:
        lease = await log.create("run", goal="g", started={})
        await log.send("run", "cancel", {})
        await log.release(lease, RunStatus.INTERRUPTED)
        lease = await log.take("run")
    finally:
        faults.disarm()
    assert lease.epoch == 2 and await log.append(lease, warning("x")) == 3
    assert [event.type for event in await log.read("run")][:2] == [EventType.RUN_STARTED, EventType.LEASE_TAKEN]
    mail = log.messages(lease)
    assert (await anext(mail)).kind == "cancel"
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(mail), 1.2)


async def test_a_foreign_event_under_my_number_means_fenced(open_log: OpenLog) -> None:
    log, other = await open_log(), await open_log()
    lease = await log.create("run", goal="g", started={})
    with other._database.engine.begin() as connection:  # pyright: ignore[reportPrivateUsage]
        columns = {"run_id": "run", "epoch": 1, "time_s": 1.0, "node_id": "", "payload": b"\0{}"}
        connection.execute(insert(events).values(**columns, seq=3, type=EventType.WARNING))
    good = await log.create("good", goal="g", started={})
    mine, theirs = log.append(lease, warning("a"), warning("b")), log.append(good, warning("ok"))
    with pytest.raises(Fenced):
        await mine
    assert await theirs == 2
    assert [event.seq for event in await log.read("run")] == [1, 3]
    await asyncio.wait_for(lease.lost.wait(), 5)


async def test_a_lease_is_kept_by_its_heartbeat_and_a_living_process_is_not_robbed(open_log: OpenLog) -> None:
    log, other = await open_log(lease_ttl_s=0.6), await open_log()
    lease = await log.create("run", goal="g", started={})
    first = lease.expires_mono_s
    await asyncio.sleep(1.5)
    with pytest.raises(RunHeld):
        await other.take("run")
    assert lease.expires_mono_s > first and not lease.lost.is_set()


async def test_a_failed_append_that_nobody_awaits_complains_to_nobody(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = await open_log()
    lease = await log.create("run", goal="g", started={})
    log.append(lease, NewEvent(type=EventType.WARNING, payload={"text": object()}))
    assert await log.append(lease, warning("next")) == 2
    gc.collect()
    await asyncio.sleep(0)
    assert caplog.text == ""
    with pytest.raises(TypeError):
        await log.append(lease, NewEvent(type=EventType.WARNING, payload={"text": object()}))


async def test_what_is_asked_of_a_closed_log_or_a_released_lease_is_refused(open_log: OpenLog) -> None:
    log = await open_log()
    lease = await log.create("run", goal="g", started={})
    await log.release(lease, RunStatus.FAILED)
    await log.release(lease, RunStatus.FAILED)
    with pytest.raises(Fenced, match="given up"):
        await log.append(lease, warning("late"))
    with pytest.raises(UsageError, match="run exists already"):
        await log.create("run", goal="g", started={})
    with pytest.raises(RunNotFound):
        await log.take("none")
    await log.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await log.take("run")


async def test_messages_come_in_order_each_once_and_unhandled_ones_again_to_the_next_holder(open_log: OpenLog) -> None:
    log, other = await open_log(), await open_log()
    lease = await log.create("run", goal="g", started={})
    for n in range(3):
        await other.send("run", "note", {"n": n})
    mail = log.messages(lease)
    assert [(await anext(mail)).payload for _ in range(3)] == [{"n": 0}, {"n": 1}, {"n": 2}]
    # 2 was given but the next one never asked for; the holder goes away without a word.
    await log.close()
    lease = await other.take("run")
    await other.send("run", "note", {"n": 3})
    mail = other.messages(lease)
    assert [(await anext(mail)).payload for _ in range(2)] == [{"n": 2}, {"n": 3}]
    # Releasing handles what was given, so that a cancel does not hit whoever resumes.
    await other.release(lease, RunStatus.CANCELLED)
    assert [message async for message in mail] == []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(other.messages(await other.take("run"))), 1.2)
    with pytest.raises(RunNotFound):
        await other.send("none", "cancel", {})


async def test_mail_ends_when_the_run_is_released(open_log: OpenLog) -> None:
    log = await open_log()
    lease = await log.create("run", goal="g", started={})

    async def all_of(mail: AsyncIterator[InboxMessage]) -> list[InboxMessage]:
        return [message async for message in mail]

    reading = asyncio.create_task(all_of(log.messages(lease)))
    await asyncio.sleep(0)
    await log.release(lease, RunStatus.COMPLETED)
    assert await asyncio.wait_for(reading, 5) == []


async def test_runs_are_listed_newest_first_and_found_by_the_beginning_of_their_id(open_log: OpenLog) -> None:
    log = await open_log()
    for run_id in ("01ab", "01ac", "02%_", "01a"):
        lease = await log.create(run_id, goal=f"goal {run_id}", started={})
        await log.release(lease, RunStatus.COMPLETED)
    listed = await log.runs(limit=3)
    assert [row.run_id for row in listed] == ["01a", "02%_", "01ac"]
    assert (listed[0].goal, listed[0].status) == ("goal 01a", RunStatus.COMPLETED)
    assert listed[0].ended_at is not None and listed[0].ended_at >= listed[0].created_at
    assert [await log.find(prefix) for prefix in ("02", "01ab", "01a", "02%")] == ["02%_", "01ab", "01a", "02%_"]
    for prefix, said in (("01", "several .*: 01a, 01ab, 01ac"), ("0_", "no run id"), ("", "no run id")):
        with pytest.raises(RunNotFound, match=said):
            await log.find(prefix)


async def test_fifty_thousand_events_are_written_and_read_while_the_loop_goes_on(open_log: OpenLog) -> None:
    log = await open_log()
    lease = await log.create("run", goal="g", started={})
    for n in range(5000):
        last = log.append(lease, *[warning(f"{n}.{k} " + "x" * 400) for k in range(10)])
    assert await last == 50_001
    turns, reading = 0, asyncio.create_task(log.read("run"))
    while not reading.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert len(await reading) == 50_001 and turns > 10
