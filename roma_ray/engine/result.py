"""What a run gives back, and the one JSON document that it is shown as."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from roma_ray import clock
from roma_ray.engine.state import Approval, Node, RunState
from roma_ray.errors import BY_CODE, RomaError
from roma_ray.types import Fault, Json, Outcome, RunStatus, Usage

LONGEST_TREE_OUTPUT_BYTES = 4_096
"""A node's output in the tree is cut here and names its handle; the run's own output never is."""

_EXIT_CODES = {
    RunStatus.COMPLETED: 0,
    RunStatus.WAITING: 3,
    RunStatus.PARTIAL: 4,
    RunStatus.INTERRUPTED: 130,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a run stands when it was left: its answer, what it cost, and its tree.

    `output` is the answer (text, or plain data where a schema was asked for), None where there is none. `wall_s` is
    running time over all resumes. `state` is the folded run log.
    """

    run_id: str
    status: RunStatus
    goal: str
    output: Json
    sources: tuple[str, ...]
    warnings: tuple[str, ...]
    limit_reached: str
    fault: Fault | None
    usage: Usage
    wall_s: float
    state: RunState

    @property
    def exit_code(self) -> int:
        """0 completed, 1 failed, 2 the user's fault, 3 waiting, 4 partial, 75 temporary, 130 interrupted."""
        if self.status in _EXIT_CODES:
            return _EXIT_CODES[self.status]
        return BY_CODE.get(self.fault.code, RomaError).exit_code if self.fault else 1

    @property
    def tree(self) -> dict[str, Json]:
        """The root node with its children inside."""
        return tree_document(self.state)

    def to_plain(self) -> dict[str, Json]:
        """The document that `output=json` prints."""
        return {
            "run_id": self.run_id,
            "status": self.status.value,
            "goal": self.goal,
            "output": self.output,
            "sources": list(self.sources),
            "warnings": list(self.warnings),
            "limit_reached": self.limit_reached or None,
            "error": fault_document(self.fault),
            "approvals": approvals_document(self.state),
            "usage": self.usage.as_dict(),
            "wall_s": round(self.wall_s, 3),
            "tree": self.tree,
        }


def approvals_document(state: RunState) -> list[dict[str, Json]]:
    """What the run waits for a person to say: `id`, `kind`, the node with its goal, and the plan or the answer."""
    return [_approval_document(state, approval) for approval in state.open_approvals]


def _approval_document(state: RunState, approval: Approval) -> dict[str, Json]:
    outcome = state.outcomes[approval.key]
    return {
        "id": str(approval.key),
        "kind": approval.kind,
        "node": approval.key.node_id,
        "goal": state.nodes[approval.key.node_id].goal,
        "asked_at": clock.iso(approval.asked_at),
        "plan": [
            {"goal": task.goal, "task_type": task.task_type.value, "depends_on": list(task.depends_on)}
            for task in (outcome.plan.tasks if outcome.plan else ())
        ],
        "output": _shown(outcome),
    }


def fault_document(fault: Fault | None) -> dict[str, Json] | None:
    """A fault as `{code, message, cure}`."""
    return {"code": fault.code, "message": fault.message, "cure": fault.cure} if fault else None


def tree_document(state: RunState) -> dict[str, Json]:
    """The tree of a run as nested plain data; empty for a run without a root."""
    documents = {node.id: _node_document(node) for node in state.walk()}
    for node in state.walk():
        documents[node.id]["children"] = [documents[child] for child in node.children]
    return documents.get("root", {})


def all_warnings(state: RunState) -> tuple[str, ...]:
    """The run's own warnings, then those of its nodes with the node's id in front."""
    of_nodes = (f"{node.id}: {text}" for node in state.walk() for text in node.warnings)
    return tuple(dict.fromkeys((*state.warnings, *of_nodes)))


def _node_document(node: Node) -> dict[str, Json]:
    return {
        "id": node.id,
        "goal": node.goal,
        "task_type": node.task_type.value,
        "node_type": node.node_type.value if node.node_type else None,
        "status": node.status.value,
        "depends_on": list(node.depends_on),
        "output": _shown(node.outcome) if node.outcome else None,
        "error": fault_document(node.fault),
        "usage": node.usage.as_dict(),
        "started_at": clock.iso(node.started_at),
        "ended_at": clock.iso(node.ended_at),
        "attempts": node.attempts,
        "same_as": node.same_as or None,
        "children": [],
    }


def _shown(outcome: Outcome) -> Json:
    if outcome.handle is not None:
        return f"{outcome.handle.preview}\n[cut: {outcome.handle.size_bytes} bytes are stored as {outcome.handle.path}]"
    if not outcome.has_value:
        return None
    text = outcome.value if isinstance(outcome.value, str) else orjson.dumps(outcome.value).decode()
    raw = text.encode()
    if len(raw) <= LONGEST_TREE_OUTPUT_BYTES:
        return outcome.value
    head = raw[:LONGEST_TREE_OUTPUT_BYTES].decode(errors="ignore")
    return f"{head}\n[cut: the first {LONGEST_TREE_OUTPUT_BYTES} of {len(raw)} bytes; the whole is in the run log]"
