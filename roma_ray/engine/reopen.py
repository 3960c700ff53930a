"""What a run forgets when it is opened again: what failed or was not done, and all that was made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roma_ray.engine.state import RunState
from roma_ray.errors import BY_CODE, Rejected, RomaError, WorldError
from roma_ray.types import Json, NodeStatus, Outcome, RunStatus


def reopen(state: RunState, payload: Mapping[str, Json]) -> None:
    """Forget what failed or was not done, and all that was made from it; what is good stays."""
    state.status, state.fault, state.limit_reached, state.ended_at = RunStatus.RUNNING, None, "", None
    state.recoveries = 0
    state.losses.clear()
    state.fingerprint = payload.get("fingerprint", state.fingerprint)
    state.config = payload.get("config", state.config)
    state.answer_schema = payload.get("answer_schema", state.answer_schema)
    # A node whose first plan failed and whose second did well is good.
    latest = {key.node_id: outcome for key, outcome in state.outcomes.items()}
    anew = {node_id for node_id, outcome in latest.items() if worth_another_try(outcome)}
    given_anew, put_together_anew = downstream(state, anew)
    for node_id in [n for n in state.nodes if any(is_below(n, top) for top in given_anew)]:
        del state.nodes[node_id]
    for key in list(state.outcomes):
        gone = key.node_id not in state.nodes or key.node_id in given_anew
        planned = state.outcomes[key].plan is not None
        if gone or (key.node_id in anew | put_together_anew and not planned):
            del state.outcomes[key]
            state.approvals.pop(key, None)
    for node_id in anew | given_anew | put_together_anew:
        if node_id in state.nodes:
            _back_to_pending(state, node_id, children_too=node_id in given_anew)


def worth_another_try(outcome: Outcome) -> bool:
    if outcome.plan is not None or (outcome.fault is not None and outcome.fault.code == Rejected.code):
        return False
    world = outcome.fault is not None and issubclass(BY_CODE.get(outcome.fault.code, RomaError), WorldError)
    return outcome.status in (NodeStatus.FAILED, NodeStatus.SKIPPED) or bool(outcome.limit_reached) or world


def downstream(state: RunState, anew: set[str]) -> tuple[set[str], set[str]]:
    """What changes with `anew`: the nodes that get other inputs (they start over), and those that only ascend again."""
    dependents: dict[str, list[str]] = {}
    for node in state.nodes.values():
        for needed in node.depends_on:
            dependents.setdefault(needed, []).append(node.id)
    inputs: set[str] = set()
    ascends: set[str] = set()
    queue = list(anew)
    while queue:
        node_id = queue.pop()
        for other in dependents.get(node_id, ()):
            if other not in inputs:
                inputs.add(other)
                queue.append(other)
        parent = state.nodes[node_id].parent
        if parent and parent not in ascends:
            ascends.add(parent)
            queue.append(parent)
    return inputs, ascends


def is_below(node_id: str, top: str) -> bool:
    return node_id.startswith((f"{top}.", f"{top}~"))


def _back_to_pending(state: RunState, node_id: str, *, children_too: bool) -> None:
    node = state.nodes[node_id]
    state.nodes[node_id] = replace(
        node,
        status=NodeStatus.PENDING,
        outcome=None,
        fault=None,
        warnings=(),
        ended_at=None,
        same_as="",
        children=() if children_too else node.children,
    )
