"""The cases, each with the work it takes at best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Engine = Literal["floor", "floor on ray", "inline", "ray"]
ENGINES: tuple[Engine, ...] = ("floor", "inline", "ray")

# Enough for every case, so that only what is measured limits.
_ROOM = ("limits.max_subtasks=1000", "limits.max_nodes=20000", "limits.run_timeout_s=7200", "lm.max_concurrency=1000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One goal. `stages` holds the number of calls that can be open at once, one number a call on the longest path.

    So `sum(stages)` is the ideal number of calls and `len(stages) * latency_s` the ideal time. `cold` measures the
    start of the process up to its first model call instead of a warm solve.
    """

    name: str
    goal: str
    stages: tuple[int, ...]
    latency_s: float = 0.0
    overrides: tuple[str, ...] = _ROOM
    cold: bool = False
    once: bool = False
    """Too long to be repeated."""
    warm_up: Case | None = None
    """What is solved before it counts; the case itself where this is None."""

    @property
    def calls(self) -> int:
        return sum(self.stages)

    @property
    def ideal_s(self) -> float:
        return len(self.stages) * self.latency_s


def _fan_out(width: int, latency_s: float) -> Case:
    # Atomizer and Planner of the root, Atomizer and Executor of each subtask, Aggregator of the root.
    stages = (1, 1, width, width, 1)
    return Case(name=f"fan-out {width}", goal=f"Do all N={width}", stages=stages, latency_s=latency_s)


def _chain(length: int, latency_s: float) -> Case:
    stages = (1, 1, *(1, 1) * length, 1)
    return Case(name=f"chain {length}", goal=f"One by one CHAIN={length}", stages=stages, latency_s=latency_s)


def _tree(breadth: int, depth: int, *, once: bool = False, warm_up: Case | None = None) -> Case:
    """All leaves at max_depth: they are executed without being asked whether they are atomic."""
    planned = [breadth**level for level in range(depth)]
    down = [width for width in planned for _ in ("atomize", "plan")]
    nodes = sum(planned) + breadth**depth
    return Case(
        name=f"tree of {nodes:,} nodes",
        goal=f"All the way down TREE={breadth}:{depth}",
        stages=(*down, breadth**depth, *reversed(planned)),
        overrides=(*_ROOM, f"limits.max_depth={depth}"),
        once=once,
        warm_up=warm_up,
    )


COLD = Case(name="cold start", goal="Begin AHOLD EHOLD", stages=(1,), cold=True)
SMALL_TREE = _tree(10, 3)
BIG_TREE = _tree(10, 4, once=True, warm_up=SMALL_TREE)
FAN_OUTS = {(width, latency_s): _fan_out(width, latency_s) for latency_s in (0.0, 1.0) for width in (10, 50, 200)}
CASES: tuple[Case, ...] = (COLD, *FAN_OUTS.values(), _chain(20, 0.0), _chain(10, 1.0), SMALL_TREE, BIG_TREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One measured case. CPU and peak memory (PSS) are of the process and all its children.

    `load` is the machine's load average (1 min) when it began: above the number of CPUs, walls and even CPU seconds
    are dearer than they would be.
    """

    wall_s: float
    cpu_s: float
    calls: int
    peak_mb: float
    load: float
    status: str = "completed"

    @property
    def cpu_ms_per_call(self) -> float:
        return self.cpu_s * 1e3 / max(self.calls, 1)
