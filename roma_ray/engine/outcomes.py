"""Outcomes that the coordinator makes or changes without asking a model. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roma_ray.errors import BY_CODE, AllChildrenFailed, LimitReached, ModelError, RomaError
from roma_ray.types import NodeStatus, NodeType, Outcome, PlannedTask

_LONG_CHARS = 100_000
_GOAL_CHARS = 80


def stopped_by(limit: str) -> Outcome:
    """A step that a limit did not let begin."""
    fault = LimitReached(f"limits.{limit} is reached").fault
    return Outcome(status=NodeStatus.FAILED, fault=fault, limit_reached=limit)


def degraded(outcome: Outcome, limit: str) -> Outcome:
    """A value that was made at once because a limit left too little to plan."""
    warning = f"limits.{limit}: done at once instead of being planned"
    return replace(outcome, status=NodeStatus.PARTIAL, limit_reached=limit, warnings=(*outcome.warnings, warning))


def of_a_cut_plan(outcome: Outcome, limit: str) -> Outcome:
    """What came out of a plan that a limit had cut: partial at best."""
    status = NodeStatus.PARTIAL if outcome.status is NodeStatus.COMPLETED else outcome.status
    return replace(outcome, status=status, limit_reached=limit)


def fit_plan(outcome: Outcome, node_id: str, nodes_left: int) -> Outcome:
    """Cut a plan to the nodes that are left, or refuse it when there are none; anything else stays as it is."""
    if outcome.plan is None or len(outcome.plan.tasks) <= nodes_left:
        return outcome
    tasks = outcome.plan.tasks
    if nodes_left <= 0:
        fault = LimitReached(f"limits.max_nodes is reached: {len(tasks)} subtasks of {node_id} were planned").fault
        # Done at once in the next revision, where there is one.
        return Outcome(status=NodeStatus.FAILED, fault=fault, limit_reached="max_nodes", accepted=False)
    kept = tuple(
        PlannedTask(goal=t.goal, task_type=t.task_type, depends_on=tuple(d for d in t.depends_on if d < nodes_left))
        for t in tasks[:nodes_left]
    )
    warning = f"limits.max_nodes: only {nodes_left} of {len(tasks)} planned subtasks are done"
    return replace(
        outcome,
        plan=replace(outcome.plan, tasks=kept),
        warnings=(*outcome.warnings, warning),
        limit_reached="max_nodes",
    )


def nothing_came_out(children: Sequence[tuple[str, Outcome]], *, may_revise: bool) -> Outcome:
    """The parent of children (goal, outcome) that all failed.

    It asks for a revision with the reasons where a model is among those to blame; else it has the first one's fault.
    """
    reasons = "; ".join(f"{goal[:_GOAL_CHARS]!r}: {o.fault.message if o.fault else o.status}" for goal, o in children)
    faults = [outcome.fault for _, outcome in children if outcome.fault]
    models = any(issubclass(BY_CODE.get(fault.code, RomaError), ModelError) for fault in faults)
    message = f"all {len(children)} subtasks failed: {reasons}"
    fault = AllChildrenFailed(message).fault if models or not faults else replace(faults[0], message=message)
    again = models and may_revise
    return Outcome(
        status=NodeStatus.FAILED,
        node_type=NodeType.PLAN,
        fault=fault,
        accepted=not again,
        feedback=message if again else "",
        limit_reached=next((o.limit_reached for _, o in children if o.limit_reached), ""),
    )


def size_chars(outcome: Outcome) -> int:
    """About how many characters a value has as text; a stored one is only known to be long."""
    if outcome.handle is not None:
        return max(outcome.handle.size_bytes, _LONG_CHARS)
    if isinstance(outcome.value, str):
        return len(outcome.value)
    return 0 if outcome.value is None else 2_000
