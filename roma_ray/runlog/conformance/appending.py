"""Checks of what is written: all of it, once, in order, or not at all."""

from __future__ import annotations

import asyncio

from roma_ray import faults
from roma_ray.errors import UsageError
from roma_ray.runlog.conformance.bench import Bench, note, notes_of, refused, same
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus


async def a_run_tells_its_story_in_order_over_epochs(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="why?", started={"goal": "why?"})
    futures = [log.append(lease, note(f"{n}a"), note(f"{n}b", "root.1")) for n in range(50)]
    same(await asyncio.gather(*futures), list(range(3, 103, 2)))
    await log.release(lease, RunStatus.WAITING)
    await log.take(run_id)

    story = await log.read(run_id)

    same([event.seq for event in story], list(range(1, 103)))
    same((story[0].type, story[0].payload, story[0].epoch), (EventType.RUN_STARTED, {"goal": "why?"}, 1))
    same([event.payload["text"] for event in story[1:-1]], [f"{n}{letter}" for n in range(50) for letter in "ab"])
    same((story[2].node_id, story[2].run_id), ("root.1", run_id))
    same((story[-1].type, story[-1].epoch), (EventType.LEASE_TAKEN, 2))
    same(sorted(story[-1].payload["owner"]), ["host", "pid"])
    same([event.seq for event in await log.read(run_id, after=100)], [101, 102])


async def what_one_log_wrote_another_one_reads(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    log.append(lease, note("not awaited"))
    await log.close()
    log = await bench.open()
    same(await notes_of(log, run_id), ["not awaited"])
    same((await log.take(run_id)).epoch, 2)


async def events_read_back_in_order_however_they_were_split(bench: Bench) -> None:
    log, run_id, written = await bench.open(), bench.id(), 0
    lease = await log.create(run_id, goal="g", started={})
    for size in (1, 2, 99, 100, 101, 257, 1, 1000):
        future = log.append(lease, *[note(str(written + n)) for n in range(size)])
        written += size
        if size % 2:
            await future
    await log.release(lease, RunStatus.COMPLETED)
    same(await notes_of(await bench.open(), run_id), [str(n) for n in range(written)])


async def odd_texts_and_numbers_read_back_exactly(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    payload = {"a": "\0 \ud800 \U0001f600 ' \" %s ? $1", "b": [2**70, -1.5e-300, None, True], "c": {"": "x" * 100_000}}
    lease = await log.create(run_id, goal="a\0b \ud800", started=payload)
    await log.append(lease, NewEvent(type=EventType.WARNING, node_id="root.0~1.2%'?", payload=payload))
    story = await log.read(run_id)
    same([event.payload for event in story], [payload, payload])
    same(story[1].node_id, "root.0~1.2%'?")


async def a_reader_never_sees_half_of_what_was_appended_together(bench: Bench) -> None:
    log, other, run_id = await bench.open(), await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    last = asyncio.ensure_future(log.append(lease, *[note("x")] * 150))
    while not last.done():
        for _ in range(3):
            last = log.append(lease, *[note("x")] * 150)
        same(len(await other.read(run_id)) % 150, 1)
        if len(await other.read(run_id)) > 3000:
            await last


async def a_commit_whose_answer_gets_lost_is_not_doubled(bench: Bench) -> None:
    await _append_around_a_fault(bench, "runlog.after_commit")


async def a_commit_that_failed_is_made_after_all(bench: Bench) -> None:
    await _append_around_a_fault(bench, "runlog.before_commit")


async def _append_around_a_fault(bench: Bench, point: str) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    same(await log.append(lease, note("first")), 2)
    faults.arm(point, "raise")
    same(await log.append(lease, note("a"), note("b")), 4)
    same(await log.append(lease, note("c")), 5)
    same(await notes_of(log, run_id), ["first", "a", "b", "c"])


async def no_other_change_is_doubled_when_its_answer_gets_lost(bench: Bench) -> None:
    await _change_around_faults(bench, "after")


async def every_other_change_that_failed_is_made_after_all(bench: Bench) -> None:
    await _change_around_faults(bench, "before")


_CHANGES = ("create", "import", "take", "send", "acknowledge", "release", "delete")


async def _change_around_faults(bench: Bench, when: str) -> None:
    log, run_id, copied = await bench.open(), bench.id(), bench.id("copy")
    for name in _CHANGES:
        faults.arm(f"runlog.{when}_{name}", "raise")
    lease = await log.create(run_id, goal="g", started={})
    await log.send(run_id, "first", {})
    await log.release(lease, RunStatus.INTERRUPTED)
    lease = await log.take(run_id)
    same((lease.epoch, await log.append(lease, note("x"))), (2, 3))
    await log.send(run_id, "second", {})
    mail = log.messages(lease)
    same([(await anext(mail)).kind, (await anext(mail)).kind], ["first", "second"])
    same([message.kind for message in await log.pending(run_id)], ["second"])
    await log.release(await log.import_run(copied, goal="g", events=[note("y"), note("z")]), RunStatus.FAILED)
    same([event.seq for event in await log.read(copied)], [1, 2])
    await log.delete(copied)
    same(await log.read(copied), [])


async def an_imported_run_begins_with_all_its_events_and_is_held(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.import_run(run_id, goal="g", events=[note(str(n), f"root.{n}") for n in range(3000)])
    same((lease.epoch, await log.append(lease, note("3000"))), (1, 3001))
    story = await log.read(run_id)
    same([event.seq for event in story], list(range(1, 3002)))
    same([event.payload["text"] for event in story], [str(n) for n in range(3001)])
    same({event.epoch for event in story}, {1})
    with refused(UsageError, "exists already"):
        await log.import_run(run_id, goal="g", events=[note("again")])
    same(len(await log.read(run_id)), 3001)


async def what_is_not_plain_data_is_refused_and_the_next_goes_on(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    bad = NewEvent(type=EventType.WARNING, payload={"text": object()})
    with refused(TypeError):
        await log.append(lease, bad)
    same(await log.append(lease, note("next")), 2)
    same(lease.failed.done(), False)


async def many_runs_share_one_commit_and_keep_to_themselves(bench: Bench) -> None:
    log: RunLog = await bench.open()
    leases = [await log.create(bench.id(str(n)), goal="g", started={}) for n in range(20)]
    await asyncio.gather(*[log.append(lease, note(f"{lease.run_id} {n}")) for n in range(20) for lease in leases])
    for lease in leases:
        same(await notes_of(log, lease.run_id), [f"{lease.run_id} {n}" for n in range(20)])


CHECKS = (
    a_run_tells_its_story_in_order_over_epochs,
    what_one_log_wrote_another_one_reads,
    events_read_back_in_order_however_they_were_split,
    odd_texts_and_numbers_read_back_exactly,
    a_reader_never_sees_half_of_what_was_appended_together,
    a_commit_whose_answer_gets_lost_is_not_doubled,
    a_commit_that_failed_is_made_after_all,
    no_other_change_is_doubled_when_its_answer_gets_lost,
    every_other_change_that_failed_is_made_after_all,
    an_imported_run_begins_with_all_its_events_and_is_held,
    what_is_not_plain_data_is_refused_and_the_next_goes_on,
    many_runs_share_one_commit_and_keep_to_themselves,
)
