"""Checks of who may write: one at a time, and nobody behind another's back."""

from __future__ import annotations

import asyncio

from roma_ray import faults
from roma_ray.errors import Fenced, RomaError, RunHeld, RunNotFound, StoreUnavailable, UsageError
from roma_ray.runlog.conformance.bench import Bench, note, notes_of, refused, same
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus


async def a_holder_that_is_heard_keeps_its_run(bench: Bench) -> None:
    log, other, run_id = await bench.open(lease_ttl_s=0.6), await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    first = lease.expires_mono_s
    await asyncio.sleep(1.5)
    with refused(RunHeld, run_id):
        await other.take(run_id)
    with refused(RunHeld, run_id):
        await other.delete(run_id)
    same((lease.expires_mono_s > first, lease.lost.is_set(), lease.failed.done()), (True, False, False))


async def a_holder_that_was_not_heard_is_taken_over_and_writes_nothing_more(bench: Bench) -> None:
    log, other, run_id = await bench.open(lease_ttl_s=0.6), await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    # The writer stands still once its commit is made, and its heart with it.
    faults.arm("runlog.after_commit", "sleep", 2.5)
    slow = log.append(lease, note("mine"))
    await asyncio.sleep(0.2)
    late = log.append(lease, note("late"))
    async with asyncio.timeout(2.2):
        taken = await _take_when_free(other, run_id)
    same(await other.append(taken, note("theirs")), 4)

    same(await slow, 2)
    with refused(Fenced, run_id):
        await late
    await asyncio.wait_for(lease.lost.wait(), 5)
    same(type(lease.failed.exception()), Fenced)
    with refused(Fenced):
        await log.append(lease, note("later"))
    with refused(Fenced):
        await log.release(lease, RunStatus.COMPLETED)
    same(await other.append(taken, note("theirs too")), 5)
    same(await notes_of(other, run_id), ["mine", "theirs", "theirs too"])


async def _take_when_free(log: RunLog, run_id: str) -> Lease:
    while True:
        try:
            return await log.take(run_id)
        except RunHeld:
            await asyncio.sleep(0.05)


async def of_many_that_take_a_run_at_once_one_gets_it(bench: Bench) -> None:
    logs, run_id = [await bench.open() for _ in range(4)], bench.id()
    for epoch in range(2, 6):
        lease = await logs[0].take(run_id) if epoch > 2 else await logs[0].create(run_id, goal="g", started={})
        await logs[0].release(lease, RunStatus.INTERRUPTED)
        tries = await asyncio.gather(*[log.take(run_id) for log in logs], return_exceptions=True)
        won = [log for log, lease in zip(logs, tries, strict=True) if isinstance(lease, Lease)]
        leases = [lease for lease in tries if isinstance(lease, Lease)]
        same((len(won), {type(error) for error in tries if not isinstance(error, Lease)}), (1, {RunHeld}))
        await won[0].release(leases[0], RunStatus.INTERRUPTED)


async def a_run_ends_in_the_state_that_it_is_released_in(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    for status in RunStatus:
        if status is RunStatus.RUNNING:
            continue
        await log.release(lease, status)
        (row,) = [row for row in await log.runs() if row.run_id == run_id]
        same((row.status, row.ended_at is not None), (status, status.is_end))
        lease = await log.take(run_id)
        (row,) = [row for row in await log.runs() if row.run_id == run_id]
        same((row.status, row.ended_at), (RunStatus.RUNNING, None))


async def a_log_that_closes_leaves_its_runs_interrupted_and_free(bench: Bench) -> None:
    log, other, run_id = await bench.open(), await bench.open(), bench.id()
    await log.create(run_id, goal="g", started={})
    await log.close()
    (row,) = [row for row in await other.runs() if row.run_id == run_id]
    same(row.status, RunStatus.INTERRUPTED)
    same((await other.take(run_id)).epoch, 2)


async def what_is_asked_of_a_released_lease_an_unknown_run_or_a_closed_log_is_refused(bench: Bench) -> None:
    log, run_id = await bench.open(), bench.id()
    lease = await log.create(run_id, goal="g", started={})
    await log.release(lease, RunStatus.FAILED)
    await log.release(lease, RunStatus.FAILED)
    same(lease.failed.done(), False)
    with refused(Fenced, "given up"):
        log.append(lease, note("late"))
    with refused(UsageError, "exists already"):
        await log.create(run_id, goal="g", started={})
    for unknown in (log.take(bench.id("none")), log.delete(bench.id("none")), log.send(bench.id("none"), "cancel", {})):
        with refused(RunNotFound, bench.id("none")):
            await unknown
    same((await log.read(bench.id("none")), await log.pending(bench.id("none"))), ([], []))
    await log.close()
    with refused(StoreUnavailable, "closed"):
        await log.take(run_id)


async def a_deleted_run_is_gone_with_its_events_and_mail_and_no_other_one_is(bench: Bench) -> None:
    log, gone, kept = await bench.open(), bench.id("gone"), bench.id("kept")
    for run_id in (gone, kept):
        lease = await log.create(run_id, goal="g", started={})
        await log.append(lease, *[note("x")] * 300)
        await log.send(run_id, "cancel", {})
        if run_id == gone:
            with refused(RunHeld, gone):
                await log.delete(gone)
        await log.release(lease, RunStatus.WAITING)
    await log.delete(gone)
    same((await log.read(gone), await log.pending(gone)), ([], []))
    same((len(await log.read(kept)), len(await log.pending(kept))), (301, 1))
    with refused(RomaError, gone):
        await log.take(gone)
    same((await log.create(gone, goal="anew", started={})).epoch, 1)


CHECKS = (
    a_holder_that_is_heard_keeps_its_run,
    a_holder_that_was_not_heard_is_taken_over_and_writes_nothing_more,
    of_many_that_take_a_run_at_once_one_gets_it,
    a_run_ends_in_the_state_that_it_is_released_in,
    a_log_that_closes_leaves_its_runs_interrupted_and_free,
    what_is_asked_of_a_released_lease_an_unknown_run_or_a_closed_log_is_refused,
    a_deleted_run_is_gone_with_its_events_and_mail_and_no_other_one_is,
)
