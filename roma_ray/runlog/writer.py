"""The one thread of an open run log that writes: it groups what waits into one commit and keeps the leases alive."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, select

from roma_ray import faults
from roma_ray.clock import mono_s, now_s
from roma_ray.errors import RomaError, StoreUnavailable
from roma_ray.runlog.appends import Appends, EventRow
from roma_ray.runlog.codec import decode, encode
from roma_ray.runlog.database import Database, cause_of
from roma_ray.runlog.events import NewEvent
from roma_ray.runlog.lease import Lease, fenced, give_up, renew
from roma_ray.runlog.schema import inbox
from roma_ray.types import Json

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LONGEST_BATCH = 2000
_POLL_S = 0.5
_BEATS_PER_TTL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    """What another process sent to the coordinator of a run; `id` grows with time and never comes back."""

    id: int
    time_s: float
    kind: str
    payload: dict[str, Json]


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """A lease of this process and what the writer knows of its run."""

    lease: Lease
    loop: asyncio.AbstractEventLoop
    next_seq: int
    broken: Exception | None = None
    """Why nothing can be appended any more. An append after a failed one would leave a gap in the story."""
    mailbox: asyncio.Queue[InboxMessage | None] | None = None
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
    rows: list[EventRow] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    name: str
    change: Callable[[Connection], Any]
    future: asyncio.Future[Any]


class _Stop:
    """The last job."""


_Note = Callable[[], None]
"""A job that only changes what the thread knows."""
_Job = _Append | _Call | _Stop | _Note


class Writer:
    """Takes appends and calls from event loops, in order, and answers on the loops they came from.

    `stop` before the database is disposed. A lease is renewed three times within `ttl_s`.
    """

    def __init__(self, database: Database, ttl_s: float) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._appends = Appends(database.engine)
        self._integrity_error: type[Exception] = database.engine.dialect.loaded_dbapi.IntegrityError
        self._connection: Connection | None = None
        self._held: dict[Lease, Held] = {}
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._closed = False
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
    def _transaction(self) -> Generator[Connection]:
        if self._connection is None:
            self._connection = self._database.engine.connect()
        try:
            with self._connection.begin():
                yield self._connection
        except self._database.errors:
            # Nobody knows what state it is in.
            self._drop_connection()
            raise

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.invalidate()
            connection.close()

    # ---- appending

    def _write(self, jobs: Sequence[_Append]) -> None:
        answers: list[_Answer] = []
        batch = [job for job in jobs if self._number(job, answers)]
        if batch:
            try:
                refused = self._database.patiently(lambda failures: self._commit(batch, is_retry=failures > 0))
            except Exception as error:
                # Even a bug of ours must be answered: a future that never ends would hang its run.
                for job in batch:
                    job.held.broken = error
            else:
                for held in refused:
                    self._lose(held)
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

    def _commit(self, batch: Sequence[_Append], *, is_retry: bool) -> set[Held]:
        """Commit the batch; returns the holders that were found to be fenced, of whom nothing was written."""
        try:
            return self._commit_once(batch, is_retry=is_retry)
        except self._integrity_error:
            return self._commit_once(batch, is_retry=True)

    def _commit_once(self, batch: Sequence[_Append], *, is_retry: bool) -> set[Held]:
        rows: dict[Held, list[EventRow]] = {}
        for job in batch:
            rows.setdefault(job.held, []).extend(job.rows)
        with self._transaction() as connection:
            # The check and the rows stand in one transaction, so that a holder that slept cannot write behind a taker.
            epochs = self._appends.epochs(connection, {held.lease.run_id for held in rows})
            refused = {held for held in rows if epochs[held.lease.run_id] != held.lease.epoch}
            if is_retry:
                for held in rows.keys() - refused:
                    present = self._appends.present(connection, rows[held])
                    if any(present.get((row.run_id, row.seq), row) != row for row in rows[held]):
                        refused.add(held)
                    rows[held] = [row for row in rows[held] if (row.run_id, row.seq) not in present]
            self._appends.insert(connection, [row for held in rows.keys() - refused for row in rows[held]])
            faults.hit("runlog.before_commit")
        faults.hit("runlog.after_commit")
        return refused

    # ---- everything else

    def _run(self, job: _Call) -> None:
        def attempt(failures: int) -> Any:
            faults.hit(f"runlog.before_{job.name}")
            with self._transaction() as connection:
                result = job.change(connection)
            faults.hit(f"runlog.after_{job.name}")
            return result

        try:
            answer = self._database.patiently(attempt)
        except Exception as error:
            # Whatever it is belongs to the caller; the thread goes on for the others.
            answer = error
        _deliver([(job.future, answer)])

    def _beat_and_poll(self) -> None:
        if mono_s() >= self._next_beat_mono_s:
            self._beat()
            self._next_beat_mono_s = mono_s() + self._ttl_s / _BEATS_PER_TTL
        if mono_s() >= self._next_poll_mono_s:
            self._poll()
            self._next_poll_mono_s = mono_s() + _POLL_S

    def _beat(self) -> None:
        try:
            with self._transaction() as connection:
                lost = renew(connection, list(self._held), self._ttl_s)
        except self._database.errors as error:
            # The next beat comes well before the lease ends.
            _log.warning("a lease could not be renewed: %s", cause_of(error))
            return
        for lease in lost:
            self._lose(self._held[lease])

    def _poll(self) -> None:
        listening = {held.lease.run_id: held for held in self._held.values() if held.mailbox is not None}
        if not listening:
            return
        query = select(inbox).where(inbox.c.run_id.in_(listening)).order_by(inbox.c.id)
        try:
            with self._database.reader.connect() as connection:
                rows = connection.execute(query).all()
        except self._database.errors as error:
            _log.warning("the inbox could not be read: %s", cause_of(error))
            return
        for row in rows:
            held = listening[row.run_id]
            if row.id > held.delivered_id:
                held.delivered_id = row.id
                message = InboxMessage(id=row.id, time_s=row.time_s, kind=row.kind, payload=decode(row.payload))
                _post(held, message)

    def _forget(self, held: Held, reason: RomaError) -> None:
        held.broken = held.broken or reason
        self._held.pop(held.lease, None)
        _post(held, None)

    def _lose(self, held: Held) -> None:
        self._forget(held, fenced(held.lease))
        _on(held.loop, held.lease.lost.set)

    def _give_everything_up(self) -> None:
        for held in list(self._held.values()):
            try:
                with self._transaction() as connection:
                    give_up(connection, held.lease, None)
            except (RomaError, *self._database.errors) as error:
                # It ends by itself.
                _log.warning("the lease on run %s could not be given up: %s", held.lease.run_id, error)
            self._forget(held, StoreUnavailable("the run log is closed"))
        if self._connection is not None:
            self._connection.close()


_Answer = tuple[asyncio.Future[Any], Any]


def _deliver(answers: Iterable[_Answer]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Answer]] = {}
    for future, answer in answers:
        by_loop.setdefault(future.get_loop(), []).append((future, answer))
    for loop, of_loop in by_loop.items():
        _on(loop, _settle, of_loop)


def _settle(answers: Sequence[_Answer]) -> None:
    for future, answer in answers:
        if future.done():
            continue
        if isinstance(answer, Exception):
            future.set_exception(answer)
            # Asked for once, so that asyncio doesn't complain about a future that nobody awaits.
            future.exception()
        else:
            future.set_result(answer)


def _post(held: Held, message: InboxMessage | None) -> None:
    if held.mailbox is not None:
        _on(held.loop, held.mailbox.put_nowait, message)


def _on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    # A loop that has been closed has nobody left who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
