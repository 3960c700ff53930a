"""What is known of a run: its nodes, what its steps brought, what it spent, what a person was asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from roma_ray.types import CallRecord, Fault, Json, NodeStatus, NodeType, Outcome, RunStatus, StepKey, TaskType, Usage

ROOT = "root"

ApprovalKind = Literal["plan", "final"]
Verdict = Literal["approve", "edit", "reject"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of the tree as far as the events tell; replaced, never changed.

    `depends_on` and `children` hold node ids. `children` are those of the latest revision that was planned; those of
    earlier revisions stay in the state and are found by their ids.
    """

    id: str
    goal: str
    task_type: TaskType = TaskType.THINK
    parent: str = ""
    depth: int = 0
    depends_on: tuple[str, ...] = ()
    children: tuple[str, ...] = ()
    node_type: NodeType | None = None
    status: NodeStatus = NodeStatus.PENDING
    revision: int = 0
    outcome: Outcome | None = None
    fault: Fault | None = None
    warnings: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    attempts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    worker: str = ""
    waits_for: str = ""
    """What its model call waits for before it is sent; empty when none waits."""
    same_as: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What a person was asked: whether the plan, or the final answer, that a step brought may count.

    `verdict` is empty until somebody has answered; `words` are what was said with it.
    """

    key: StepKey
    kind: ApprovalKind
    asked_at: float
    verdict: Verdict | Literal[""] = ""
    words: str = ""
    by: str = ""

    @property
    def is_open(self) -> bool:
        return not self.verdict


@dataclass(frozen=True, slots=True)
class Solved:
    """A node with its final outcome and the step that made it."""

    node: Node
    key: StepKey
    outcome: Outcome


@dataclass(slots=True, kw_only=True)
class RunState:
    """Everything the events of one run say. `nodes` is the one mutable index, so that a fold is linear in events."""

    run_id: str = ""
    goal: str = ""
    day: str = ""
    version: str = ""
    config: dict[str, Json] = field(default_factory=dict)
    files: tuple[dict[str, Json], ...] = ()
    answer_schema: Json = None
    status: RunStatus = RunStatus.RUNNING
    fault: Fault | None = None
    limit_reached: str = ""
    warnings: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seq: int = 0
    epoch: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    ran_s: float = 0.0
    """Running time of all epochs before this one."""
    epoch_ran_s: float = 0.0
    """Running time of this epoch, as far as its events tell; never by wall clock, which may be set."""
    nodes: dict[str, Node] = field(default_factory=dict)
    outcomes: dict[StepKey, Outcome] = field(default_factory=dict)
    answers: dict[str, dict[str, list[CallRecord]]] = field(default_factory=dict)
    """Per step without a good outcome, per request key: the answers it already has."""
    losses: dict[str, int] = field(default_factory=dict)
    """Per step: how many workers died while they ran it."""
    approvals: dict[StepKey, Approval] = field(default_factory=dict)
    recoveries: int = 0
    """How often in a row the run's process died without having got further than the one before."""
    forked_from: dict[str, Json] | None = None
    """`run_id` and `node_id` of the run that this one began as, and the node from which it was done anew."""
    fingerprint: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Node | None:
        return self.nodes.get(ROOT)

    @property
    def open_approvals(self) -> list[Approval]:
        """What waits for a person now, in the order of asking."""
        return [approval for approval in self.approvals.values() if approval.is_open]

    def rejections(self, node_id: str) -> int:
        """How often a person sent this node back."""
        return sum(a.verdict == "reject" for key, a in self.approvals.items() if key.node_id == node_id)

    def walk(self) -> Iterator[Node]:
        """The current tree from the root, parents before children, children in plan order."""
        stack = [ROOT] if ROOT in self.nodes else []
        while stack:
            node = self.nodes[stack.pop()]
            yield node
            stack.extend(reversed(node.children))
