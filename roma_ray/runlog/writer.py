"""The one thread of an open run log that writes: it groups what waits into one commit and keeps the leases alive."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from sqlalchemy import Connection

from roma_ray import faults
from roma_ray.clock import mono_s, now_s
from roma_ray.errors import RomaError, StoreUnavailable
from roma_ray.faults import InjectedFault
from roma_ray.runlog.appends import EventRow, Holding
from roma_ray.runlog.codec import encode
from roma_ray.runlog.database import Database, cause_of
from roma_ray.runlog.events import NewEvent
from roma_ray.runlog.inbox import InboxMessage, waiting
from roma_ray.runlog.lease import Lease, Leases, fenced

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LONGEST_BATCH = 2000
_POLL_S = 0.5
_BEATS_PER_TTL = 3
_NEXT_BEAT_AFTER_A_FAILED_ONE_S = 1.0


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """A lease of this process and what the writer knows of its run."""

    lease: Lease
    loop: asyncio.AbstractEventLoop
    next_seq: int
    broken: Exception | None = None
    """Why nothing can be appended any more. An append after a failed one would leave a gap in the story."""
    mailbox: asyncio.Queue[InboxMessage | None] | None = None
    is_sure: bool = False
    """Whether the database is known to hold every event so far, as it may not after the connection was lost."""
    delivered_id: int = 0
    """The last message that was put into the mailbox."""
    given_id: int = 0
    """The last message that was taken out of it."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Append:
    held: Held
    events: Sequence[NewEvent]
    time_s: float
    future: asyncio.Future[int]
    queued_mono_s: float = field(default_factory=mono_s)
    rows: list[EventRow] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    name: str
    change: Callable[[Connection], Any]
    future: asyncio.Future[Any]
    queued_mono_s: float = field(default_factory=mono_s)


class _Stop:
    """The last job."""


_Note = Callable[[], None]
"""A job that only changes what the thread knows."""
_Job = _Append | _Call | _Stop | _Note


class Writer:
    """Takes appends and calls from event loops, in order, and answers on the loops they came from.

    `stop` before the database is disposed. A lease is renewed three times within `ttl_s`.
    """

    def __init__(self, database: Database, leases: Leases, ttl_s: float) -> None:
        self._database = database
        self._leases = leases
        self._ttl_s = ttl_s
        self._integrity_error: type[Exception] = database.engine.dialect.loaded_dbapi.IntegrityError
        self._connection: Connection | None = None
        self._held: dict[Lease, Held] = {}
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._closed = False
        self._is_deaf = False
        self._next_beat_mono_s = self._next_poll_mono_s = 0.0
        self._thread = threading.Thread(target=self._work, name="roma_ray-runlog", daemon=True)
        self._thread.start()

    # ---- called on an event loop

    def append(self, held: Held, events: Sequence[NewEvent]) -> asyncio.Future[int]:
        """Queue events; the future brings the last seq once they are committed."""
        future: asyncio.Future[int] = held.loop.create_future()
        self._submit(_Append(held=held, events=events, time_s=now_s(), future=future))
        return future

    async def call(self, name: str, change: Callable[[Connection], T]) -> T:
        """What `change(connection)` returns, run in a transaction of its own after everything that was queued before.

        It may run more than once, when a commit's answer gets lost. Passes `runlog.before_<name>` and `after_<name>`.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(_Call(name=name, change=change, future=future))
        return await future

    def hold(self, held: Held) -> None:
        """Renew this lease from now on, and bring it its mail."""
        self._submit(partial(self._held.__setitem__, held.lease, held))

    def drop(self, held: Held, reason: RomaError) -> None:
        """Stop doing so, refuse its appends with this reason, and end its mail."""
        self._submit(partial(self._forget, held, reason))

    async def stop(self) -> None:
        """Write everything that was queued, give up the leases that are left, and end the thread."""
        self._closed = True
        self._jobs.put(_Stop())
        await asyncio.to_thread(self._thread.join)

    def _submit(self, job: _Job) -> None:
        if self._closed:
            raise StoreUnavailable("the run log is closed")
        self._jobs.put(job)

    # ---- the thread

    def _work(self) -> None:
        while True:
            for is_append, group in groupby(self._gather(), lambda job: isinstance(job, _Append)):
                if is_append:
                    self._write([job for job in group if isinstance(job, _Append)])
                    continue
                for job in group:
                    if isinstance(job, _Stop):
                        self._give_everything_up()
                        return
                    self._run(job) if isinstance(job, _Call) else cast(_Note, job)()
            self._beat_and_poll()

    def _gather(self) -> list[_Job]:
        """Everything that waits; after waiting for the next beat or poll at most."""
        wait_s = None
        if self._held:
            wait_s = max(0.0, min(self._next_beat_mono_s, self._next_poll_mono_s) - mono_s())
        jobs: list[_Job] = []
        with suppress(Empty):
            jobs.append(self._jobs.get(timeout=wait_s))
            while len(jobs) < _LONGEST_BATCH:
                jobs.append(self._jobs.get_nowait())
        return jobs

    @contextmanager
    def _connected(self) -> Generator[Connection]:
        if self._connection is None:
            self._connection = self._database.engine.connect()
        try:
            yield self._connection
        except self._database.errors:
            # Nobody knows what state it is in.
            self._drop_connection()
            raise

    @contextmanager
    def _transaction(self) -> Generator[Connection]:
        with self._connected() as connection, connection.begin():
            yield connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()
        for held in self._held.values():
            held.is_sure = False

    # ---- appending

    def _write(self, jobs: Sequence[_Append]) -> None:
        answers: list[_Answer] = []
        batch = [job for job in jobs if self._number(job, answers)]
        if batch:
            try:
                refused = self._database.patiently(
                    lambda failures: self._commit(batch, is_retry=failures > 0), since_mono_s=batch[0].queued_mono_s
                )
            except Exception as error:
                # Even a bug of ours must be answered: a future that never ends would hang its run.
                refused = dict.fromkeys((job.held for job in batch), error)
            for held, reason in refused.items():
                self._lose(held) if reason is None else _break(held, reason)
        # Anything committed under a lease that is broken by now was refused as a whole.
        answers += [(job.future, job.held.broken or job.rows[-1].seq) for job in batch]
        _deliver(answers)

    def _number(self, job: _Append, answers: list[_Answer]) -> bool:
        """Make the rows of a job; an answer instead when that cannot be."""
        held = job.held
        if held.broken is not None:
            answers.append((job.future, held.broken))
            return False
        try:
            payloads = [encode(event.payload) for event in job.events]
        except TypeError as error:
            answers.append((job.future, error))
            return False
        run_id, epoch = held.lease.run_id, held.lease.epoch
        job.rows = [
            EventRow(run_id, seq, epoch, job.time_s, event.type.value, event.node_id, payload)
            for seq, (event, payload) in enumerate(zip(job.events, payloads, strict=True), held.next_seq)
        ]
        held.next_seq += len(job.rows)
        return True

    def _commit(self, batch: Sequence[_Append], *, is_retry: bool) -> Mapping[Held, Exception | None]:
        """Commit the batch; returns those of whom nothing was written with the reason, None when they are fenced."""
        faults.hit("runlog.begin")
        holders: dict[Holding, Held] = {}
        rows: dict[Holding, list[EventRow]] = {}
        for job in batch:
            holding = (job.held.lease.run_id, job.held.lease.epoch)
            holders[holding] = job.held
            rows.setdefault(holding, []).extend(job.rows)
        torn: set[Holding] = set()
        if is_retry or not all(held.is_sure for held in holders.values()):
            refused, torn = self._commit_again(rows)
        else:
            try:
                with self._connected() as connection:
                    refused = self._database.appends.commit(connection, rows)
            except self._integrity_error:
                refused, torn = self._commit_again(rows)
        faults.hit("runlog.after_commit")
        for held in holders.values():
            held.is_sure = True
        return {holders[one]: None for one in refused} | {holders[one]: _torn(one) for one in torn}

    def _commit_again(self, rows: dict[Holding, list[EventRow]]) -> tuple[set[Holding], set[Holding]]:
        with self._connected() as connection:
            return self._database.appends.commit_again(connection, rows)

    # ---- everything else

    def _run(self, job: _Call) -> None:
        def attempt(failures: int) -> Any:
            faults.hit(f"runlog.before_{job.name}")
            with self._transaction() as connection:
                result = job.change(connection)
            faults.hit(f"runlog.after_{job.name}")
            return result

        try:
            answer = self._database.patiently(attempt, since_mono_s=job.queued_mono_s)
        except Exception as error:
            # Whatever it is belongs to the caller; the thread goes on for the others.
            answer = error
        _deliver([(job.future, answer)])

    def _beat_and_poll(self) -> None:
        if mono_s() >= self._next_beat_mono_s:
            between_s = self._ttl_s / _BEATS_PER_TTL
            wait_s = between_s if self._beat() else min(between_s, _NEXT_BEAT_AFTER_A_FAILED_ONE_S)
            self._next_beat_mono_s = mono_s() + wait_s
        if mono_s() >= self._next_poll_mono_s:
            self._poll()
            self._next_poll_mono_s = mono_s() + _POLL_S

    def _beat(self) -> bool:
        """Renew every lease; False when that was not possible."""
        try:
            with self._transaction() as connection:
                lost = self._leases.renew(connection, list(self._held))
                faults.hit("runlog.beat")
        except (InjectedFault, *self._database.errors) as error:
            _log.warning("the leases could not be renewed: %s", cause_of(error))
            return False
        for lease in lost:
            self._lose(self._held[lease])
        return True

    def _poll(self) -> None:
        listening = {held.lease.run_id: held for held in self._held.values() if held.mailbox is not None}
        if not listening:
            return
        try:
            with self._database.reader.connect() as connection:
                mail = waiting(connection, listening)
        except self._database.errors as error:
            if not self._is_deaf:
                _log.warning("the inbox cannot be read: %s", cause_of(error))
            self._is_deaf = True
            return
        self._is_deaf = False
        for run_id, message in mail:
            held = listening[run_id]
            if message.id > held.delivered_id:
                held.delivered_id = message.id
                _post(held, message)

    def _forget(self, held: Held, reason: RomaError) -> None:
        held.broken = held.broken or reason
        self._held.pop(held.lease, None)
        _post(held, None)

    def _lose(self, held: Held) -> None:
        reason = fenced(held.lease)
        _break(held, reason)
        self._forget(held, reason)
        _on(held.loop, held.lease.lost.set)

    def _give_everything_up(self) -> None:
        for held in list(self._held.values()):
            try:
                with self._transaction() as connection:
                    self._leases.give_up(connection, held.lease, None)
            except (RomaError, *self._database.errors) as error:
                # It ends by itself.
                _log.warning("the lease on run %s could not be given up: %s", held.lease.run_id, cause_of(error))
            self._forget(held, StoreUnavailable("the run log is closed"))
        if self._connection is not None:
            self._connection.close()


def _break(held: Held, reason: Exception) -> None:
    if held.broken is None:
        held.broken = reason
        _on(held.loop, _fail, held.lease.failed, reason)


def _torn(holding: Holding) -> StoreUnavailable:
    return StoreUnavailable(
        f"the database lost events of run {holding[0]} that it had committed",
        cure="resume the run; runlog.durability=power keeps events when the database's machine fails",
    )


_Answer = tuple[asyncio.Future[Any], Any]


def _deliver(answers: Iterable[_Answer]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
    for future, answer in answers:
        by_loop.setdefault(future.get_loop(), []).append((future, answer))
    for loop, of_loop in by_loop.items():
        _on(loop, _settle, of_loop)


def _settle(answers: Sequence[_Answer]) -> None:
    for future, answer in answers:
        if isinstance(answer, Exception):
            _fail(future, answer)
        elif not future.done():
            future.set_result(answer)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Asked for once, so that asyncio doesn't complain about a future that nobody awaits.
        future.exception()


def _post(held: Held, message: InboxMessage | None) -> None:
    if held.mailbox is not None:
        _on(held.loop, held.mailbox.put_nowait, message)


def _on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    # A loop that has been closed has nobody left who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
