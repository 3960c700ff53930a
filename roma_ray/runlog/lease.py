"""Who coordinates a run: one process at a time, known by a lease that it keeps renewing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from roma_ray.clock import iso, mono_s, now_s
from roma_ray.errors import Fenced, RunHeld, RunNotFound, UsageError
from roma_ray.runlog.database import Database
from roma_ray.runlog.owner import Owner, is_dead, is_of_this_boot, this_process
from roma_ray.runlog.schema import events, runs
from roma_ray.types import RunStatus


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """The right to append to a run.

    `lost` is set, on the loop that took it, once another process has taken the run over; `failed` fails there with
    the reason as soon as nothing can be appended any more, whatever that is, and stays open when the run is released.
    `expires_mono_s` moves on with every heartbeat; a holder that cannot renew it must start nothing new after it.
    """

    run_id: str
    epoch: int
    token: str
    expires_mono_s: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    failed: asyncio.Future[Exception] = field(init=False)


class Leases:
    """The leases in one database, as statements for transactions that somebody else opens."""

    def __init__(self, database: Database, ttl_s: float) -> None:
        self._database = database
        self._ttl_s = ttl_s

    def insert_run(self, connection: Connection, run_id: str, goal: str, token: str) -> Lease:
        """Make the run with its first lease. Raises UsageError when it exists."""
        values = {"run_id": run_id, "goal": _storable(goal), "status": RunStatus.RUNNING, "created_at": now_s()}
        try:
            connection.execute(insert(runs).values(values | self._columns(1, token)))
        except IntegrityError as error:
            raise UsageError(f"a run {run_id} exists already", cure=f"go on with it: resume={run_id}") from error
        return self._lease(run_id, 1, token)

    def take(self, connection: Connection, run_id: str, token: str) -> Lease:
        """Take the run over with the next epoch. Raises RunNotFound, and RunHeld that names a holder which lives."""
        row = self.locked(connection, run_id)
        values = {"status": RunStatus.RUNNING, "ended_at": None} | self._columns(row.epoch + 1, token)
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(values))
        return self._lease(run_id, row.epoch + 1, token)

    def locked(self, connection: Connection, run_id: str) -> Row[Any]:
        """The row of a run that nobody holds, locked until the end of the transaction. Raises as `take` does."""
        query = self.rows().where(runs.c.run_id == run_id).with_for_update()
        row = connection.execute(query).one_or_none()
        if row is None:
            raise RunNotFound(f"there is no run {run_id}")
        if self.is_live(row):
            raise RunHeld(f"run {run_id} is held by {owner_of(row)} since {iso(row.lease_since_at)}")
        return row

    def taken_before(self, connection: Connection, run_id: str, token: str) -> Lease | None:
        """The lease of a try with this token that was committed although its answer got lost."""
        where = (runs.c.run_id == run_id) & (runs.c.lease_token == token)
        epoch = connection.execute(select(runs.c.epoch).where(where)).scalar()
        return None if epoch is None else self._lease(run_id, epoch, token)

    def renew(self, connection: Connection, leases: Sequence[Lease]) -> list[Lease]:
        """Move the end of each lease on; returns those that were lost."""
        expires_mono_s, lost = mono_s() + self._ttl_s, list[Lease]()
        # In the order of the appends, so that two logs of one process cannot wait for each other.
        for lease in sorted(leases, key=lambda lease: lease.run_id):
            values = {"lease_until_s": self._until()}
            if connection.execute(update(runs).where(_held_by(lease)).values(values)).rowcount:
                lease.expires_mono_s = expires_mono_s
            else:
                lost.append(lease)
        return lost

    def give_up(self, connection: Connection, lease: Lease, status: RunStatus | None) -> None:
        """End the lease, leaving the run in `status` (None: as it is). Raises Fenced when it was lost."""
        values: dict[str, Any] = {"lease_until_s": 0.0}
        if status is not None:
            values |= {"status": status, "ended_at": now_s() if status.is_end else None}
        if not connection.execute(update(runs).where(_held_by(lease)).values(values)).rowcount:
            raise fenced(lease)

    def rows(self) -> Select[Any]:
        """All rows of `runs`, as `is_live` takes them."""
        return select(runs, (runs.c.lease_until_s > self._database.lease_clock()).label("is_heard"))

    def is_live(self, row: Row[Any]) -> bool:
        """Whether the lease in a row of `rows` still keeps others out."""
        owner = owner_of(row)
        if not row.is_heard or is_dead(owner):
            return False
        return is_of_this_boot(owner) or not self._database.one_boot

    def _lease(self, run_id: str, epoch: int, token: str) -> Lease:
        return Lease(run_id=run_id, epoch=epoch, token=token, expires_mono_s=mono_s() + self._ttl_s)

    def _columns(self, epoch: int, token: str) -> dict[str, Any]:
        columns = {"epoch": epoch, "lease_token": token, "lease_since_at": now_s(), "lease_until_s": self._until()}
        return columns | {f"owner_{name}": value for name, value in asdict(this_process()).items()}

    def _until(self) -> Any:
        return self._database.lease_clock() + self._ttl_s


def owner_of(row: Row[Any]) -> Owner:
    """The owner that a row of the table `runs` names."""
    return Owner(host=row.owner_host, boot=row.owner_boot, pid=row.owner_pid, start=row.owner_start)


def last_seq(connection: Connection, run_id: str) -> int:
    """The highest seq of the run, 0 when it has no events."""
    return connection.execute(select(func.max(events.c.seq)).where(events.c.run_id == run_id)).scalar() or 0


def fenced(lease: Lease) -> Fenced:
    """The error for a holder whose run was taken over."""
    return Fenced(f"another process took over run {lease.run_id}")


def _held_by(lease: Lease) -> Any:
    return (runs.c.run_id == lease.run_id) & (runs.c.epoch == lease.epoch) & (runs.c.lease_token == lease.token)


def _storable(text: str) -> str:
    # This column is for lists only; the run's first event has the goal as it was given.
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
