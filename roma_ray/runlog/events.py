"""The events of a run: what can be in the log, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from roma_ray.types import Json


class EventType(StrEnum):
    """Every kind of event, with what its payload holds.

    The payloads are plain data; `step` is always the text of a StepKey.
    """

    RUN_STARTED = "run.started"
    """goal, day, version, config (no secrets), files, fingerprint; forked_from where another run was its beginning"""
    RUN_REOPENED = "run.reopened"
    """config and fingerprint that hold from now on; changes: what differs from those before, in words"""
    LEASE_TAKEN = "lease.taken"
    """owner: host, pid; the first event of every epoch after the first"""
    STEP_STARTED = "step.started"
    """step, worker, ran_s (running time of this epoch so far); for the live tree only, never waited for"""
    CALL_ANSWERED = "call.answered"
    """a CallRecord with a response: this request of this step is never sent again"""
    CALL_CACHED = "call.cached"
    """a CallRecord whose answer was known already"""
    CALL_FAILED = "call.failed"
    """a CallRecord with a fault: attempts that brought no answer"""
    CALL_WAITING = "call.waiting"
    """a CallWaiting: a call waits for a permit or a pause; for the live tree only, never waited for"""
    STEP_DONE = "step.done"
    """step, outcome (an Outcome), ran_s"""
    APPROVAL_ASKED = "approval.asked"
    """step, kind (plan or final): this step's outcome counts once a person has answered"""
    APPROVAL_ANSWERED = "approval.answered"
    """step, verdict (approve, edit, reject), words, plan or value where it was edited, by"""
    WORKER_LOST = "worker.lost"
    """step, reason, attempt: the process that ran this step died"""
    WARNING = "warning"
    """text: something a person should know that belongs to no outcome"""
    RUN_ENDED = "run.ended"
    """status, fault, limit_reached, wall_s (running time of this epoch)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event on its way into the log; `node_id` is empty where it belongs to the run as a whole."""

    type: EventType
    node_id: str = ""
    payload: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event as it stands in the log. `seq` counts from 1 within the run, `time_s` is wall-clock time."""

    run_id: str
    seq: int
    epoch: int
    time_s: float
    type: EventType
    node_id: str
    payload: dict[str, Json]
