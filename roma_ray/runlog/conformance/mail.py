"""Checks of what other processes leave for the coordinator of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from roma_ray.runlog.conformance.bench import Bench, refused, same
from roma_ray.runlog.inbox import InboxMessage
from roma_ray.types import RunStatus

_LONGER_THAN_MAIL_TAKES_S = 1.2


async def messages_come_in_order_each_once_and_unhandled_ones_again_to_the_next_holder(bench: Bench) -> None:
    log, other, run_id = await bench.open(), await bench.open(), bench.id()
    await log.create(run_id, goal="g", started={})
    await log.close()
    log = await bench.open()
    lease = await log.take(run_id)
    for n in range(3):
        await other.send(run_id, "note", {"n": n})
    same([message.payload for message in await other.pending(run_id)], [{"n": 0}, {"n": 1}, {"n": 2}])
    mail = log.messages(lease)
    same([(await anext(mail)).payload["n"] for _ in range(3)], [0, 1, 2])
    same([message.payload["n"] for message in await other.pending(run_id)], [2])
    # 2 was given but the next one never asked for; the holder goes away without a word.
    await log.close()
    lease = await other.take(run_id)
    await other.send(run_id, "note", {"n": 3})
    mail = other.messages(lease)
    same([(await anext(mail)).payload["n"] for _ in range(2)], [2, 3])
    # Releasing handles what was given, so that a cancel does not hit whoever resumes.
    await other.release(lease, RunStatus.CANCELLED)
    same(await _all_of(mail), [])
    same(await other.pending(run_id), [])
    with refused(TimeoutError):
        await asyncio.wait_for(anext(other.messages(await other.take(run_id))), _LONGER_THAN_MAIL_TAKES_S)


async def of_messages_that_many_send_at_once_none_is_missed(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    senders = [await bench.open() for _ in range(4)]
    mail = log.messages(lease)
    first = asyncio.ensure_future(anext(mail))
    await asyncio.gather(
        *[sender.send(run_id, "note", {"from": n, "n": k}) for n, sender in enumerate(senders) for k in range(15)]
    )
    async with asyncio.timeout(10):
        got = [await first, *[await anext(mail) for _ in range(59)]]
    same([message.id for message in got], sorted({message.id for message in got}))
    for n in range(4):
        same([message.payload["n"] for message in got if message.payload["from"] == n], list(range(15)))


async def mail_ends_when_the_run_is_released(bench: Bench) -> None:
    log = await bench.open()
    lease = await log.create(bench.id(), goal="g", started={})
    reading = asyncio.create_task(_all_of(log.messages(lease)))
    await asyncio.sleep(0)
    await log.release(lease, RunStatus.COMPLETED)
    same(await asyncio.wait_for(reading, 5), [])


async def a_cancel_dies_with_the_run_that_it_was_meant_for(bench: Bench) -> None:
    log, other, run_id = await bench.open(), await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    for status in RunStatus:
        if status is RunStatus.RUNNING:
            continue
        for kind in ("cancel", "note", "cancel"):
            await other.send(run_id, kind, {})
        await log.release(lease, status)
        await other.send(run_id, "cancel", {})
        left = [message.kind for message in await other.pending(run_id)]
        same(left, ["note"] if status.is_end else ["cancel", "note", "cancel", "cancel"])
        lease = await log.take(run_id)
        # What is handled is gone, so that each state begins with an empty box.
        mail = log.messages(lease)
        for _ in left:
            await anext(mail)
        await log.release(lease, RunStatus.INTERRUPTED)
        lease = await log.take(run_id)


async def _all_of(mail: AsyncIterator[InboxMessage]) -> list[InboxMessage]:
    return [message async for message in mail]


CHECKS = (
    messages_come_in_order_each_once_and_unhandled_ones_again_to_the_next_holder,
    of_messages_that_many_send_at_once_none_is_missed,
    mail_ends_when_the_run_is_released,
    a_cancel_dies_with_the_run_that_it_was_meant_for,
)
