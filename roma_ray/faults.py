"""Named fault points: one-line calls that cost nothing until a test arms one.

A test arms a point in its own process with `arm`, or in a child through ROMA_RAY_FAULTS, a comma-separated list of
`name=action[:argument][@nth]` where nth (1-based, default 1) is the hit that acts:

    ROMA_RAY_FAULTS="runlog.after_commit=exit@3,step.before_submit=sleep:0.5"
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Literal

Action = Literal["raise", "sleep", "exit", "stop"]


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
    """Pass the point `name`; acts only when it is armed and this is its nth hit."""
    if _armed:
        _act(name)


def arm(name: str, action: Action, argument: float = 0.0, *, nth: int = 1) -> None:
    """Let the nth hit of `name` raise InjectedFault, sleep `argument` seconds, exit with 137, or stop (SIGSTOP)."""
    _armed[name] = _Armed(action, argument, nth)


def disarm() -> None:
    """Forget every armed point."""
    _armed.clear()


def _act(name: str) -> None:
    armed = _armed.get(name)
    if armed is None:
        return
    armed.hits += 1
    if armed.hits != armed.nth:
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


def _arm_from_environment(text: str) -> None:
    for item in filter(None, text.split(",")):
        name, _, rest = item.partition("=")
        rest, _, nth = rest.partition("@")
        action, _, argument = rest.partition(":")
        arm(name, action, float(argument or 0), nth=int(nth or 1))  # type: ignore[arg-type]


_arm_from_environment(os.environ.get("ROMA_RAY_FAULTS", ""))
