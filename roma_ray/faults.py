"""Named fault points: one-line calls that cost nothing until a test arms one.

A test arms a point in its own process with `arm`, or in a child through ROMA_RAY_FAULTS, a comma-separated list of
`name=action[:argument][@nth]` where nth (1-based, default 1) is the hit that acts:

    ROMA_RAY_FAULTS="runlog.after_commit=exit@3,step.before_submit=sleep:0.5"

With ROMA_RAY_FAULTS_ONCE=FOLDER a point acts in one process only: the first that makes the file FOLDER/NAME. So a
variable that every process of a run inherits, resumes and Ray workers included, kills one of them at each point. A Ray
that we start inherits both variables; one that is joined has what it was started with.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

Action = Literal["raise", "sleep", "exit", "stop"]


class Point(NamedTuple):
    """A fault point and where it stands."""

    name: str
    stands: str


POINTS = (
    Point("step.before_submit", "engine: a node task is about to be handed to the backend"),
    Point("step.before_commit", "engine: a step's outcome is there, and not yet on its way to the run log"),
    Point("step.after_commit", "engine: a step's outcome is committed, and nothing that needs it has started"),
    Point("run.before_end", "engine: the run is done, and its end not yet on its way to the run log"),
    Point("run.after_end", "engine: the end of the run is committed, and its lease not yet given up"),
    Point("approval.asked", "engine: a question to a person is committed, and not yet waited for"),
    Point("approval.answered", "engine: a person's answer is committed, and the step has not gone on"),
    Point("fork.imported", "engine: the beginning of a fork is committed, and nothing of it has run"),
    Point("runlog.begin", "run log: a batch of events is about to be written"),
    Point("runlog.before_commit", "run log: a batch is written, or about to be in one statement, and not committed"),
    Point("runlog.after_commit", "run log: a batch is committed, and nobody has been told"),
    Point("runlog.before_create", "run log: a run is about to be made"),
    Point("runlog.after_create", "run log: a run is made, and its coordinator has not been told"),
    Point("runlog.before_import", "run log: the beginning of a fork is about to be written"),
    Point("runlog.after_import", "run log: the beginning of a fork is committed, and nobody has been told"),
    Point("runlog.before_take", "run log: a run is about to be taken over"),
    Point("runlog.after_take", "run log: a run is taken over, and its coordinator has not been told"),
    Point("runlog.before_release", "run log: a lease is about to be given up"),
    Point("runlog.after_release", "run log: a lease is given up"),
    Point("runlog.before_send", "run log: a message to a run is about to be left"),
    Point("runlog.after_send", "run log: a message to a run is committed, and its sender has not been told"),
    Point("runlog.before_acknowledge", "run log: a message was handled, and is still in the inbox"),
    Point("runlog.after_acknowledge", "run log: a handled message is gone from the inbox"),
    Point("runlog.before_delete", "run log: a run is about to be forgotten"),
    Point("runlog.after_delete", "run log: a run is forgotten, and nobody has been told"),
    Point("runlog.beat", "run log: the leases are renewed in a transaction that is not committed"),
    Point("storage.before_write", "storage: a value is packed, and nothing of it written"),
    Point("storage.before_rename", "storage: a file is whole under a temporary name, and does not have its own"),
    Point("storage.after_write", "storage: a value is written durably, and nobody has been told"),
    Point("cluster.task_received", "cluster: a process has been given a node task"),
    Point("cluster.session_opened", "cluster: the run of a node task is set up in its process"),
    Point("cluster.batch_yielded", "cluster: a batch of call records has left the task"),
    Point("cluster.outcome_yielded", "cluster: an outcome has left the task, and its value has not"),
    Point("lm.before_send", "lm: a request is about to be sent, with a permit and within the budget"),
    Point("lm.answered", "lm: an answer is there, and not looked at"),
    Point("lm.before_record", "lm: an answer is counted, and not yet handed to the run log"),
)
"""Every point that there is."""

_NAMES = frozenset(point.name for point in POINTS)


class InjectedFault(Exception):
    """Raised by a point that is armed with `raise`; never raised in normal operation."""


@dataclass(slots=True)
class _Armed:
    action: Action
    argument: float
    nth: int
    hits: int = 0


_armed: dict[str, _Armed] = {}


def hit(name: str) -> None:
    """Pass the point `name`; acts only when it is armed and this is its nth hit.

    Raises LookupError for a name that POINTS does not list, where any point is armed.
    """
    if _armed:
        _act(name)


def arm(name: str, action: Action, argument: float = 0.0, *, nth: int = 1) -> None:
    """Let the nth hit of `name` raise InjectedFault, sleep `argument` seconds, exit with 137, or stop (SIGSTOP).

    Raises LookupError for a name that POINTS does not list.
    """
    _armed[_known(name)] = _Armed(action, argument, nth)


def disarm() -> None:
    """Forget every armed point."""
    _armed.clear()


def _known(name: str) -> str:
    if name not in _NAMES:
        raise LookupError(f"{name!r} is no fault point; POINTS lists them")
    return name


def _act(name: str) -> None:
    armed = _armed.get(_known(name))
    if armed is None:
        return
    armed.hits += 1
    if armed.hits != armed.nth or not _is_first(name):
        return
    match armed.action:
        case "raise":
            raise InjectedFault(name)
        case "sleep":
            time.sleep(armed.argument)
        case "exit":
            os._exit(137)
        case "stop":
            os.kill(os.getpid(), 19)


def _is_first(name: str) -> bool:
    """Whether no other process has acted at this point, where just one is to."""
    folder = os.environ.get("ROMA_RAY_FAULTS_ONCE")
    if not folder:
        return True
    try:
        Path(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _arm_from_environment(text: str) -> None:
    for item in filter(None, text.split(",")):
        name, _, rest = item.partition("=")
        rest, _, nth = rest.partition("@")
        action, _, argument = rest.partition(":")
        arm(name, action, float(argument or 0), nth=int(nth or 1))  # type: ignore[arg-type]


_arm_from_environment(os.environ.get("ROMA_RAY_FAULTS", ""))
