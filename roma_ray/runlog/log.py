"""The run log as the engine sees it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from functools import partial

from sqlalchemy import Connection, delete

from roma_ray.clock import now_s
from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import Fenced, RunNotFound, StoreFull, StoreUnavailable
from roma_ray.runlog import inbox
from roma_ray.runlog.appends import EventRow
from roma_ray.runlog.codec import encode
from roma_ray.runlog.database import Database
from roma_ray.runlog.events import Event, EventType, NewEvent
from roma_ray.runlog.inbox import InboxMessage
from roma_ray.runlog.lease import Lease, Leases, last_seq
from roma_ray.runlog.opening import open_database
from roma_ray.runlog.owner import this_process
from roma_ray.runlog.reading import Reader, RunRow
from roma_ray.runlog.schema import events, runs
from roma_ray.runlog.schema import inbox as inbox_table
from roma_ray.runlog.writer import Held, Writer
from roma_ray.types import Json, RunStatus

LEASE_TTL_S = 15.0
"""How long a holder that is not heard keeps its run; it is renewed every third of this."""


class RunLog:
    """An open run log: any number of runs, written by one thread, read from any.

    All coroutines belong to one event loop. Every method raises StoreUnavailable when the database cannot be reached
    for 30 s, or refuses, and StoreFull at once when it has no room.
    """

    def __init__(self, database: Database, *, lease_ttl_s: float = LEASE_TTL_S) -> None:
        self._database = database
        self._leases = Leases(database, lease_ttl_s)
        self._reader = Reader(database, self._leases)
        self._writer = Writer(database, self._leases, lease_ttl_s)
        self._held: dict[Lease, Held] = {}

    @classmethod
    async def open(cls, config: RunlogConfig, *, lease_ttl_s: float = LEASE_TTL_S) -> RunLog:
        """Open the log at `config.url`, making or upgrading its tables.

        Raises ConfigError for a URL of no known kind or one that the server refuses, ExtraMissing without the driver,
        FolderUnusable when its file cannot be used, StoreUnavailable, StoreFull.
        """
        return cls(await asyncio.to_thread(open_database, config), lease_ttl_s=lease_ttl_s)

    # ---- holding a run

    async def create(self, run_id: str, *, goal: str, started: dict[str, Json]) -> Lease:
        """Make a run, with `started` as the payload of its first event. Raises UsageError when it exists."""
        return await self._make("create", run_id, goal, [NewEvent(type=EventType.RUN_STARTED, payload=started)])

    async def import_run(self, run_id: str, *, goal: str, events: Sequence[NewEvent]) -> Lease:
        """Make a run whose log begins with these events, all or none of them. Raises UsageError when it exists."""
        return await self._make("import", run_id, goal, events)

    async def take(self, run_id: str, *, then: Sequence[NewEvent] = ()) -> Lease:
        """Take over a run that nobody holds, to go on with it: the next epoch begins with a `lease.taken` event.

        `then` is committed with it. Raises RunNotFound, and RunHeld (naming host, pid and since when) while its holder
        lives and is heard.
        """
        token = secrets.token_hex(16)

        def change(connection: Connection) -> tuple[Lease, int]:
            if lease := self._leases.taken_before(connection, run_id, token):
                return lease, last_seq(connection, run_id)
            lease = self._leases.take(connection, run_id, token)
            owner = {name: value for name, value in asdict(this_process()).items() if name in ("host", "pid")}
            event = NewEvent(type=EventType.LEASE_TAKEN, payload={"owner": owner})
            rows = _rows_of(run_id, lease.epoch, last_seq(connection, run_id) + 1, [event, *then])
            self._database.appends.insert(connection, rows)
            return lease, rows[-1].seq

        return self._hold(*await self._writer.call("take", change))

    def append(self, lease: Lease, *events: NewEvent) -> asyncio.Future[int]:
        """Queue events, at least one; returns at once. Call it on the loop that took the lease.

        The future brings the seq of the last one when all are committed, together and in the order of the calls. It
        fails with Fenced once the run was taken over, StoreFull, StoreUnavailable, or TypeError for a payload that is
        not plain data. It need not be awaited: after a failure nothing later of this lease is written either, and
        `lease.failed` says so.
        """
        held = self._held.get(lease)
        if held is None:
            raise Fenced(f"the lease on run {lease.run_id} was given up")
        return self._writer.append(held, events)

    async def release(self, lease: Lease, status: RunStatus) -> None:
        """Give the run up in this state, after everything appended before. Raises Fenced when it was taken over.

        With an end, whatever else asked to cancel the run is forgotten.
        """
        held = self._held.pop(lease, None)
        if held is None:
            return

        def change(connection: Connection) -> None:
            self._leases.give_up(connection, lease, status)
            inbox.remove_up_to(connection, lease.run_id, held.given_id)
            if status.is_end:
                inbox.remove_cancels(connection, lease.run_id)

        try:
            await self._writer.call("release", change)
        except (StoreUnavailable, StoreFull):
            self._held[lease] = held
            raise
        self._writer.drop(held, Fenced(f"the lease on run {lease.run_id} was given up"))

    async def close(self) -> None:
        """Write what was queued, give up the leases that are left (their runs count as interrupted), and close."""
        await self._writer.stop()
        await asyncio.to_thread(self._database.dispose)

    # ---- mail for whoever holds a run

    async def send(self, run_id: str, kind: str, payload: dict[str, Json]) -> None:
        """Leave a message for whoever coordinates the run, now or later. Raises RunNotFound.

        A `cancel` of a run that has ended is dropped.
        """
        token = secrets.token_hex(16)

        def change(connection: Connection) -> None:
            inbox.put(connection, run_id, token, kind, payload)

        await self._writer.call("send", change)

    async def messages(self, lease: Lease) -> AsyncIterator[InboxMessage]:
        """What was sent to the run, each once, within a second; ends when the lease is lost or released.

        A message counts as handled, and is never given again, when the next one is asked for or the run is released.
        """
        held = self._held.get(lease)
        if held is None:
            return
        held.mailbox = asyncio.Queue()
        while held.broken is None and (message := await held.mailbox.get()) is not None:
            held.given_id = message.id
            yield message
            await self._writer.call("acknowledge", partial(inbox.remove, message_id=message.id))

    async def pending(self, run_id: str) -> list[InboxMessage]:
        """What was sent to a run and not handled yet, oldest first; empty for a run that is not there."""
        return await asyncio.to_thread(self._reader.pending, run_id)

    # ---- anybody's

    async def read(self, run_id: str, *, after: int = 0) -> list[Event]:
        """The events of a run with a seq above `after`, in order; empty for a run that is not there."""
        return await asyncio.to_thread(self._reader.events, run_id, after)

    async def runs(self, *, limit: int | None = 50, before: float | None = None) -> list[RunRow]:
        """The newest `limit` runs, newest first; with `before`, of those made before that wall-clock time."""
        return await asyncio.to_thread(self._reader.runs, limit, before)

    async def run(self, run_id: str) -> RunRow:
        """One run as `runs` lists it. Raises RunNotFound."""
        return await asyncio.to_thread(self._reader.run, run_id)

    async def find(self, prefix: str) -> str:
        """The id of the only run whose id begins so, or is this. Raises RunNotFound that names the candidates."""
        return await asyncio.to_thread(self._reader.find, prefix)

    async def delete(self, run_id: str) -> None:
        """Forget a run, its events and its mail. Raises RunNotFound, and RunHeld while its holder lives."""
        deleted = False

        def change(connection: Connection) -> None:
            nonlocal deleted
            try:
                self._leases.locked(connection, run_id)
            except RunNotFound:
                if deleted:
                    # An earlier try has done it, and only its answer got lost.
                    return
                raise
            for table in (events, inbox_table, runs):
                connection.execute(delete(table).where(table.c.run_id == run_id))
            deleted = True

        await self._writer.call("delete", change)

    # ---- shared

    async def _make(self, name: str, run_id: str, goal: str, events: Sequence[NewEvent]) -> Lease:
        token = secrets.token_hex(16)
        # Thousands of events take a while to encode.
        rows = await asyncio.to_thread(_rows_of, run_id, 1, 1, events)

        def change(connection: Connection) -> tuple[Lease, int]:
            if lease := self._leases.taken_before(connection, run_id, token):
                return lease, len(rows)
            lease = self._leases.insert_run(connection, run_id, goal, token)
            self._database.appends.insert(connection, rows)
            return lease, len(rows)

        return self._hold(*await self._writer.call(name, change))

    def _hold(self, lease: Lease, seq: int) -> Lease:
        loop = asyncio.get_running_loop()
        lease.failed = loop.create_future()
        held = Held(lease=lease, loop=loop, next_seq=seq + 1)
        self._held[lease] = held
        self._writer.hold(held)
        return lease


def _rows_of(run_id: str, epoch: int, first_seq: int, events: Sequence[NewEvent]) -> list[EventRow]:
    time_s = now_s()
    return [
        EventRow(run_id, seq, epoch, time_s, event.type.value, event.node_id, encode(event.payload))
        for seq, event in enumerate(events, first_seq)
    ]
