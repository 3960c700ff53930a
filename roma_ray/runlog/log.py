"""The run log as the engine sees it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, make_url, select
from sqlalchemy.exc import ArgumentError

from roma_ray.clock import now_s
from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import ConfigError, Fenced, RunNotFound, StoreUnavailable
from roma_ray.runlog.appends import Appends, EventRow
from roma_ray.runlog.codec import decode, encode
from roma_ray.runlog.database import Database
from roma_ray.runlog.events import Event, EventType, NewEvent
from roma_ray.runlog.lease import (
    Lease,
    give_up,
    insert_run,
    is_live,
    last_seq,
    owner_of,
    take_lease,
    taken_before,
    this_process,
)
from roma_ray.runlog.schema import events, inbox, runs
from roma_ray.runlog.sqlite import open_sqlite
from roma_ray.runlog.writer import Held, InboxMessage, Writer
from roma_ray.types import Json, RunStatus

LEASE_TTL_S = 15.0
"""How long a holder that is not heard keeps its run; it is renewed every third of this."""
_CANDIDATES_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run in a list. Times are wall-clock seconds; `owner` says who holds it or held it last."""

    run_id: str
    goal: str
    status: RunStatus
    created_at: float
    ended_at: float | None
    owner: str


class RunLog:
    """An open run log: any number of runs, written by one thread, read from any.

    All coroutines belong to one event loop. Every method raises StoreUnavailable when the database cannot be reached
    for 30 s, or refuses.
    """

    def __init__(self, database: Database, *, lease_ttl_s: float = LEASE_TTL_S) -> None:
        self._database = database
        self._ttl_s = lease_ttl_s
        self._writer = Writer(database, lease_ttl_s)
        self._appends = Appends(database.engine)
        self._held: dict[Lease, Held] = {}

    @classmethod
    async def open(cls, config: RunlogConfig, *, lease_ttl_s: float = LEASE_TTL_S) -> RunLog:
        """Open the log at `config.url`, making or upgrading its tables.

        Raises ConfigError for a URL of no known kind, FolderUnusable when its file cannot be used, StoreUnavailable.
        """
        return cls(await asyncio.to_thread(_open_database, config), lease_ttl_s=lease_ttl_s)

    async def create(self, run_id: str, *, goal: str, started: dict[str, Json]) -> Lease:
        """Make a run, with `started` as the payload of its first event. Raises UsageError when it exists."""
        token = secrets.token_hex(16)

        def change(connection: Connection) -> tuple[Lease, int]:
            if lease := taken_before(connection, run_id, token, self._ttl_s):
                return lease, 1
            lease = insert_run(connection, run_id, goal, token, self._ttl_s)
            return lease, self._append_first(connection, lease, 1, EventType.RUN_STARTED, started)

        return self._hold(*await self._writer.call("create", change))

    async def take(self, run_id: str) -> Lease:
        """Take over a run that nobody holds, to go on with it: the next epoch begins with a `lease.taken` event.

        Raises RunNotFound, and RunHeld (naming host, pid and since when) while its holder lives and is heard.
        """
        token = secrets.token_hex(16)

        def change(connection: Connection) -> tuple[Lease, int]:
            if lease := taken_before(connection, run_id, token, self._ttl_s):
                return lease, last_seq(connection, run_id)
            lease = take_lease(connection, run_id, token, self._ttl_s)
            owner = {name: value for name, value in asdict(this_process()).items() if name in ("host", "pid")}
            seq = last_seq(connection, run_id) + 1
            return lease, self._append_first(connection, lease, seq, EventType.LEASE_TAKEN, {"owner": owner})

        return self._hold(*await self._writer.call("take", change))

    def append(self, lease: Lease, *events: NewEvent) -> asyncio.Future[int]:
        """Queue events, at least one; returns at once. Call it on the loop that took the lease.

        The future brings the seq of the last one when all are committed, together and in the order of the calls. It
        fails with Fenced once the run was taken over, StoreUnavailable, or TypeError for a payload that is not plain
        data. It need not be awaited: after a failure nothing later of this lease is written either.
        """
        held = self._held.get(lease)
        if held is None:
            raise Fenced(f"the lease on run {lease.run_id} was given up")
        return self._writer.append(held, events)

    async def read(self, run_id: str, *, after: int = 0) -> list[Event]:
        """The events of a run with a seq above `after`, in order; empty for a run that is not there."""
        return await asyncio.to_thread(self._read, run_id, after)

    async def runs(self, *, limit: int = 50) -> list[RunRow]:
        """The newest `limit` runs, newest first."""
        return await asyncio.to_thread(self._runs, limit)

    async def find(self, prefix: str) -> str:
        """The id of the only run whose id begins so, or is this. Raises RunNotFound that names the candidates."""
        return await asyncio.to_thread(self._find, prefix)

    async def send(self, run_id: str, kind: str, payload: dict[str, Json]) -> None:
        """Leave a message for whoever coordinates the run, now or later. Raises RunNotFound."""
        token = secrets.token_hex(16)
        values = {"run_id": run_id, "token": token, "time_s": now_s(), "kind": kind, "payload": encode(payload)}

        def change(connection: Connection) -> None:
            if connection.execute(select(runs.c.run_id).where(runs.c.run_id == run_id)).first() is None:
                raise RunNotFound(f"there is no run {run_id}")
            if connection.execute(select(inbox.c.id).where(inbox.c.token == token)).first() is None:
                connection.execute(insert(inbox).values(values))

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
            await self._writer.call("acknowledge", partial(_delete_message, message.id))

    async def release(self, lease: Lease, status: RunStatus) -> None:
        """Give the run up in this state, after everything appended before. Raises Fenced when it was taken over."""
        held = self._held.pop(lease, None)
        if held is None:
            return

        def change(connection: Connection) -> None:
            given = (inbox.c.run_id == lease.run_id) & (inbox.c.id <= held.given_id)
            give_up(connection, lease, status)
            connection.execute(delete(inbox).where(given))

        try:
            await self._writer.call("release", change)
        except StoreUnavailable:
            self._held[lease] = held
            raise
        self._writer.drop(held, Fenced(f"the lease on run {lease.run_id} was given up"))

    async def close(self) -> None:
        """Write what was queued, give up the leases that are left (their runs count as interrupted), and close."""
        await self._writer.stop()
        await asyncio.to_thread(self._database.dispose)

    def _hold(self, lease: Lease, seq: int) -> Lease:
        held = Held(lease=lease, loop=asyncio.get_running_loop(), next_seq=seq + 1)
        self._held[lease] = held
        self._writer.hold(held)
        return lease

    def _append_first(
        self, connection: Connection, lease: Lease, seq: int, kind: EventType, payload: dict[str, Json]
    ) -> int:
        row = EventRow(lease.run_id, seq, lease.epoch, now_s(), kind.value, "", encode(payload))
        self._appends.insert(connection, [row])
        return seq

    def _read(self, run_id: str, after: int) -> list[Event]:
        query = select(*events.c).where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq)
        return [
            Event(
                run_id=run_id,
                seq=row.seq,
                epoch=row.epoch,
                time_s=row.time_s,
                type=EventType(row.type),
                node_id=row.node_id,
                payload=decode(row.payload),
            )
            for row in self._rows(query)
        ]

    def _runs(self, limit: int) -> list[RunRow]:
        query = select(runs).order_by(runs.c.created_at.desc(), runs.c.run_id.desc()).limit(limit)
        return [_run_row(row) for row in self._rows(query)]

    def _find(self, prefix: str) -> str:
        begins = runs.c.run_id.startswith(prefix, autoescape=True)
        query = select(runs.c.run_id).where(begins).order_by(runs.c.run_id).limit(_CANDIDATES_SHOWN + 1)
        found = [row.run_id for row in self._rows(query)]
        if prefix in found:
            return prefix
        if not found or not prefix:
            raise RunNotFound(f"no run id begins with {prefix!r}")
        if len(found) > 1:
            shown = ", ".join(found[:_CANDIDATES_SHOWN]) + (" …" if len(found) > _CANDIDATES_SHOWN else "")
            raise RunNotFound(f"several run ids begin with {prefix!r}: {shown}", cure="give more of the id")
        return found[0]

    def _rows(self, query: Any) -> list[Row[Any]]:
        def attempt(failures: int) -> list[Row[Any]]:
            with self._database.reader.connect() as connection:
                return list(connection.execute(query).all())

        return self._database.patiently(attempt)


def _open_database(config: RunlogConfig) -> Database:
    try:
        url = make_url(config.url)
    except ArgumentError as error:
        raise ConfigError(f"runlog.url {config.url!r} is not a URL", cure="write it as sqlite:///PATH") from error
    if url.drivername != "sqlite":
        raise ConfigError(f"runlog.url {url.drivername}:// is not supported", cure="write it as sqlite:///PATH")
    return open_sqlite(url, config.durability)


def _delete_message(message_id: int, connection: Connection) -> None:
    connection.execute(delete(inbox).where(inbox.c.id == message_id))


def _run_row(row: Row[Any]) -> RunRow:
    status = RunStatus(row.status)
    if status is RunStatus.RUNNING and not is_live(row):
        status = RunStatus.INTERRUPTED
    return RunRow(
        run_id=row.run_id,
        goal=row.goal,
        status=status,
        created_at=row.created_at,
        ended_at=row.ended_at,
        owner=str(owner_of(row)),
    )
