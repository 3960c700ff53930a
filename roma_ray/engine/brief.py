"""Where a node stands in the tree, as far as its task has to know."""

from __future__ import annotations

from dataclasses import replace

from roma_ray.engine.context import NEAREST_SIBLINGS
from roma_ray.engine.request import InputSpec, StepRequest
from roma_ray.engine.state import Node, RunState
from roma_ray.types import Outcome, StepKey, child_id


def placed(state: RunState, request: StepRequest) -> StepRequest:
    """`request` with the goals above and beside its node, and why an earlier revision was not accepted."""
    node = state.nodes[request.key.node_id]
    siblings = _siblings(state, node)
    return replace(
        request,
        ancestors=_ancestors(state, node),
        siblings=_nearest_goals(siblings, node.id),
        sibling_count=max(0, len(siblings) - 1),
        feedback=_feedback(state, request.key),
    )


def input_spec(node: Node, outcome: Outcome) -> InputSpec:
    """What is said of one input besides its value."""
    return InputSpec(
        node_id=node.id,
        goal=node.goal,
        task_type=node.task_type,
        depends_on=tuple(needed.rsplit(".", 1)[-1] for needed in node.depends_on),
        status=outcome.status,
        fault=outcome.fault,
        sources=outcome.sources,
        # Within the run's folder: the same work gives the same prompt in another run, such as a fork or a replay.
        where=outcome.handle.path.split("/", 2)[2] if outcome.handle else "",
    )


def children(state: RunState, parent_id: str, revision: int) -> list[Node]:
    """The nodes of a plan that a descend step of the parent brought, in plan order."""
    plan = state.outcomes[StepKey(parent_id, "descend", revision)].plan
    assert plan is not None
    return [state.nodes[child_id(parent_id, i, revision)] for i in range(len(plan.tasks))]


def _ancestors(state: RunState, node: Node) -> tuple[str, ...]:
    goals: list[str] = []
    while node.parent:
        node = state.nodes[node.parent]
        goals.append(node.goal)
    return tuple(reversed(goals))


def _siblings(state: RunState, node: Node) -> list[Node]:
    if not node.parent:
        return []
    prefix = node.id.rsplit(".", 1)[0]
    revision = int(prefix.rsplit("~", 1)[1]) if prefix != node.parent else 0
    return children(state, node.parent, revision)


def _nearest_goals(siblings: list[Node], own_id: str) -> tuple[str, ...]:
    """The goals of the nearest siblings in plan order, without the node's own."""
    here = next((i for i, sibling in enumerate(siblings) if sibling.id == own_id), None)
    if here is None:
        return ()
    start = max(0, min(here - NEAREST_SIBLINGS // 2, len(siblings) - NEAREST_SIBLINGS - 1))
    window = range(start, min(start + NEAREST_SIBLINGS + 1, len(siblings)))
    return tuple(siblings[i].goal for i in window if i != here)


def _feedback(state: RunState, key: StepKey) -> str:
    if key.revision == 0:
        return ""
    for kind in ("ascend", "descend"):
        earlier = state.outcomes.get(StepKey(key.node_id, kind, key.revision - 1))
        if earlier is not None and earlier.feedback:
            return earlier.feedback
    return ""
