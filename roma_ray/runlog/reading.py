"""What can be read of the run log by anybody, whoever holds the runs; nothing here waits for a writer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, Row, select

from roma_ray.errors import RunNotFound
from roma_ray.runlog import inbox
from roma_ray.runlog.codec import decode
from roma_ray.runlog.database import Database
from roma_ray.runlog.events import Event, EventType
from roma_ray.runlog.inbox import InboxMessage
from roma_ray.runlog.lease import Leases, owner_of
from roma_ray.runlog.schema import events, runs
from roma_ray.types import RunStatus

T = TypeVar("T")

_CANDIDATES_SHOWN = 5
_LAST_CHARACTER = "\U0010ffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run in a list. Times are wall-clock seconds; `owner` says who holds it or held it last."""

    run_id: str
    goal: str
    status: RunStatus
    created_at: float
    ended_at: float | None
    owner: str


class Reader:
    """Reads through connections of its own. Every method blocks, 30 s at most, and raises StoreUnavailable then."""

    def __init__(self, database: Database, leases: Leases) -> None:
        self._database = database
        self._leases = leases

    def events(self, run_id: str, after: int) -> list[Event]:
        """The events of a run with a seq above `after`, in order."""
        query = select(*events.c).where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq)
        return [_event(row) for row in self._rows(query)]

    def runs(self, limit: int | None, before: float | None) -> list[RunRow]:
        """The newest `limit` runs, of those that were made before a wall-clock time, newest first."""
        query = self._leases.rows().order_by(runs.c.created_at.desc(), runs.c.run_id.desc())
        if before is not None:
            query = query.where(runs.c.created_at < before)
        return [self._run(row) for row in self._rows(query.limit(limit))]

    def run(self, run_id: str) -> RunRow:
        """One run as `runs` lists it. Raises RunNotFound."""
        for row in self._rows(self._leases.rows().where(runs.c.run_id == run_id)):
            return self._run(row)
        raise RunNotFound(f"there is no run {run_id}")

    def find(self, prefix: str) -> str:
        """The id of the only run whose id begins so, or is this. Raises RunNotFound that names the candidates."""
        # Not LIKE, which takes a for A in SQLite.
        begins = (runs.c.run_id >= prefix) & (runs.c.run_id <= prefix + _LAST_CHARACTER)
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

    def pending(self, run_id: str) -> list[InboxMessage]:
        """What lies in the inbox of a run, oldest first."""
        return [message for _, message in self._patiently(lambda connection: inbox.waiting(connection, [run_id]))]

    def _run(self, row: Row[Any]) -> RunRow:
        status = RunStatus(row.status)
        if status is RunStatus.RUNNING and not self._leases.is_live(row):
            status = RunStatus.INTERRUPTED
        return RunRow(
            run_id=row.run_id,
            goal=row.goal,
            status=status,
            created_at=row.created_at,
            ended_at=row.ended_at,
            owner=str(owner_of(row)),
        )

    def _rows(self, query: Any) -> list[Row[Any]]:
        return self._patiently(lambda connection: list(connection.execute(query).all()))

    def _patiently(self, read: Callable[[Connection], T]) -> T:
        def attempt(failures: int) -> T:
            with self._database.reader.connect() as connection:
                return read(connection)

        return self._database.patiently(attempt)


def _event(row: Row[Any]) -> Event:
    return Event(
        run_id=row.run_id,
        seq=row.seq,
        epoch=row.epoch,
        time_s=row.time_s,
        type=EventType(row.type),
        node_id=row.node_id,
        payload=decode(row.payload),
    )
