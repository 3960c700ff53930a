"""Who coordinates a run: one process at a time, known by a lease that it keeps renewing."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection, Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from roma_ray.clock import iso, mono_s, now_s
from roma_ray.errors import Fenced, RunHeld, RunNotFound, UsageError
from roma_ray.runlog.schema import events, runs
from roma_ray.types import RunStatus


@dataclass(slots=True, kw_only=True, eq=False)
class Lease:
    """The right to append to a run.

    `lost` is set, on the loop that took it, once another process has taken the run over. `expires_mono_s` moves on
    with every heartbeat; a holder that cannot renew it must start nothing new after it.
    """

    run_id: str
    epoch: int
    token: str
    expires_mono_s: float
    lost: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told from every other one for ever: a pid alone comes back.

    `boot` is the boot of the machine and the pid name space, `start` the process's start on that boot's clock.
    """

    host: str
    boot: str
    pid: int
    start: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def this_process() -> Owner:
    """The owner that this process is."""
    return _owner_of(os.getpid())


@lru_cache(maxsize=4)
def _owner_of(pid: int) -> Owner:
    return Owner(host=socket.gethostname(), boot=_boot(), pid=pid, start=start_of(pid) or "")


def is_dead(owner: Owner) -> bool:
    """Whether that process is known to be gone. False when it lives, or lives where one cannot look."""
    here = this_process()
    if (owner.host, owner.boot) != (here.host, here.boot):
        return False
    return start_of(owner.pid) != owner.start


def _boot() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Containers on one host share its boot but not its pids.
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{psutil.boot_time():.0f}"


def start_of(pid: int) -> str | None:
    """When `pid` started, None when there is no such process or it has ended and only waits to be reaped."""
    try:
        # Not psutil: on Linux its start times move when the machine's clock is set.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
    except psutil.NoSuchProcess:
        return None


def owner_of(row: Row[Any]) -> Owner:
    """The owner that a row of the table `runs` names."""
    return Owner(host=row.owner_host, boot=row.owner_boot, pid=row.owner_pid, start=row.owner_start)


def is_live(row: Row[Any]) -> bool:
    """Whether the lease in a row of the table `runs` still keeps others out."""
    return row.lease_expires_at > now_s() and not is_dead(owner_of(row))


def insert_run(connection: Connection, run_id: str, goal: str, token: str, ttl_s: float) -> Lease:
    """Make the run with its first lease. Raises UsageError when it exists and this very token did not make it."""
    lease, columns = _new_lease(run_id, 1, token, ttl_s)
    values = {"run_id": run_id, "goal": goal, "status": RunStatus.RUNNING, "created_at": now_s(), **columns}
    try:
        connection.execute(insert(runs).values(values))
    except IntegrityError as error:
        raise UsageError(f"a run {run_id} exists already", cure=f"go on with it: resume={run_id}") from error
    return lease


def take_lease(connection: Connection, run_id: str, token: str, ttl_s: float) -> Lease:
    """Take the run over with the next epoch. Raises RunNotFound, and RunHeld that names a holder which lives."""
    row = connection.execute(select(runs).where(runs.c.run_id == run_id).with_for_update()).one_or_none()
    if row is None:
        raise RunNotFound(f"there is no run {run_id}")
    if is_live(row):
        raise RunHeld(f"run {run_id} is held by {owner_of(row)} since {iso(row.lease_since_at)}")
    lease, columns = _new_lease(run_id, row.epoch + 1, token, ttl_s)
    values = {"status": RunStatus.RUNNING, "ended_at": None, **columns}
    connection.execute(update(runs).where(runs.c.run_id == run_id).values(values))
    return lease


def _new_lease(run_id: str, epoch: int, token: str, ttl_s: float) -> tuple[Lease, dict[str, Any]]:
    now, owner = now_s(), asdict(this_process())
    columns = {"epoch": epoch, "lease_token": token, "lease_since_at": now, "lease_expires_at": now + ttl_s}
    lease = Lease(run_id=run_id, epoch=epoch, token=token, expires_mono_s=mono_s() + ttl_s)
    return lease, columns | {f"owner_{name}": value for name, value in owner.items()}


def taken_before(connection: Connection, run_id: str, token: str, ttl_s: float) -> Lease | None:
    """The lease of a try with this token that was committed although its answer got lost."""
    where = (runs.c.run_id == run_id) & (runs.c.lease_token == token)
    epoch = connection.execute(select(runs.c.epoch).where(where)).scalar()
    if epoch is None:
        return None
    return Lease(run_id=run_id, epoch=epoch, token=token, expires_mono_s=mono_s() + ttl_s)


def renew(connection: Connection, leases: Sequence[Lease], ttl_s: float) -> list[Lease]:
    """Move the expiry of each lease on; returns those that were lost."""
    expires_mono_s, lost = mono_s() + ttl_s, list[Lease]()
    for lease in leases:
        values = {"lease_expires_at": now_s() + ttl_s}
        if connection.execute(update(runs).where(_held_by(lease)).values(values)).rowcount:
            lease.expires_mono_s = expires_mono_s
        else:
            lost.append(lease)
    return lost


def give_up(connection: Connection, lease: Lease, status: RunStatus | None) -> None:
    """End the lease, leaving the run in `status` (None: as it is). Raises Fenced when it was lost."""
    values: dict[str, Any] = {"lease_expires_at": 0.0}
    if status is not None:
        values |= {"status": status, "ended_at": now_s() if status.is_end else None}
    if not connection.execute(update(runs).where(_held_by(lease)).values(values)).rowcount:
        raise fenced(lease)


def last_seq(connection: Connection, run_id: str) -> int:
    """The highest seq of the run, 0 when it has no events."""
    return connection.execute(select(func.max(events.c.seq)).where(events.c.run_id == run_id)).scalar() or 0


def fenced(lease: Lease) -> Fenced:
    """The error for a holder whose run was taken over."""
    return Fenced(f"another process took over run {lease.run_id}")


def _held_by(lease: Lease) -> Any:
    return (runs.c.run_id == lease.run_id) & (runs.c.epoch == lease.epoch) & (runs.c.lease_token == lease.token)
