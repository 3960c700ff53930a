"""What goes on beside the work of a run: its mail is read, its workers hear of us, and reasons to leave it are seen."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from roma_ray import clock
from roma_ray.cluster.backend import Backend
from roma_ray.engine.run import Run
from roma_ray.engine.state import Solved
from roma_ray.errors import Cancelled, RomaError
from roma_ray.runlog import inbox
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import Fault, RunStatus

_log = logging.getLogger(__name__)

_RENEW_S = 5.0
"""How often workers are told that the coordinator is there; what it promises lasts three times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Why a run is left before its work is done: with a state of its own, or because of an error."""

    status: RunStatus = RunStatus.INTERRUPTED
    fault: Fault | None = None
    error: RomaError | None = None


async def watch(
    run: Run, lease: Lease, log: RunLog, backend: Backend, solving: asyncio.Task[Solved], left: list[Leave]
) -> None:
    """Cancel `solving`, with the reason in `left`, when the run has to be left.

    Somebody asks for it, only people can go on, or the log can take nothing more.
    """
    reasons = [
        asyncio.create_task(_read_mail(run, lease, log)),
        asyncio.create_task(_only_people(run)),
        asyncio.create_task(_log_lost(lease)),
    ]
    renewing = asyncio.create_task(_renew(lease, backend))
    try:
        done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        left.append(_reason(done.pop()))
        solving.cancel()
    finally:
        for task in (*reasons, renewing):
            task.cancel()


def _reason(ended: asyncio.Task[Leave]) -> Leave:
    try:
        return ended.result()
    except RomaError as error:
        return Leave(error=error)
    except Exception as error:
        # A bug of ours must not become a run that hears nothing any more.
        _log.exception("a run's watch failed")
        return Leave(error=RomaError(f"{type(error).__name__}: {error}"))


async def _read_mail(run: Run, lease: Lease, log: RunLog) -> Leave:
    async for message in log.messages(lease):
        match message.kind:
            case inbox.CANCEL:
                reason = str(message.payload.get("reason") or "the run was cancelled")
                return Leave(status=RunStatus.CANCELLED, fault=Cancelled(reason).fault)
            case inbox.APPROVE:
                await run.hear(message.payload)
            case _:
                run.warn(f"a message of the unknown kind {message.kind!r} was left aside")
    return await _log_lost(lease)


async def _only_people(run: Run) -> Leave:
    await run.approvals.only_people()
    return Leave(status=RunStatus.WAITING)


async def _log_lost(lease: Lease) -> Leave:
    try:
        await asyncio.shield(lease.failed)
    except RomaError as error:
        return Leave(error=error)
    raise AssertionError("unreachable: it only ever fails")


async def _renew(lease: Lease, backend: Backend) -> None:
    """Let the workers know, as long as it is so, that this process is the one to work for."""
    while True:
        backend.renew_session(lease.run_id, max(0.0, lease.expires_mono_s - clock.mono_s()))
        await asyncio.sleep(_RENEW_S)
