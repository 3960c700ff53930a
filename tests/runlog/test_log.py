"""What a run log does besides what the conformance checks say; on both databases."""

from __future__ import annotations

import asyncio
import gc

import pytest
from sqlalchemy import insert

from roma_ray.errors import Fenced
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.schema import events
from tests.runlog.conftest import OpenLog


def warning(text: str, node_id: str = "") -> NewEvent:
    return NewEvent(type=EventType.WARNING, node_id=node_id, payload={"text": text})


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


async def test_fifty_thousand_events_are_written_and_read_while_the_loop_goes_on(open_log: OpenLog) -> None:
    log = await open_log()
    lease = await log.create("run", goal="g", started={})
    appended = [log.append(lease, *[warning(f"{n}.{k} " + "x" * 400) for k in range(10)]) for n in range(5000)]
    assert await appended[-1] == 50_001
    turns, reading = 0, asyncio.create_task(log.read("run"))
    while not reading.done():
        await asyncio.sleep(0.005)
        turns += 1
    assert len(await reading) == 50_001 and turns > 10
