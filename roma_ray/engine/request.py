"""What travels from the coordinator to a node task: one session argument per run, one request per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roma_ray.config import Config, Role
from roma_ray.lm.scope import Grant
from roma_ray.redact import Secret
from roma_ray.types import CallRecord, Fault, Json, NodeStatus, NodeType, StepKey, TaskType

DEFAULT_MAX_TOKENS: dict[Role, int] = {
    "atomizer": 1_024,
    "planner": 4_096,
    "executor": 4_096,
    "aggregator": 4_096,
    "verifier": 1_024,
}
"""Longest answers in tokens, where lm.max_tokens is not set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionArgument:
    """What is the same for all steps of a run; sent once to each worker.

    `config` has concrete models and no secrets; `keys` holds those, masked.
    """

    run_id: str
    goal: str
    day: str
    config: Config
    keys: Mapping[str, Secret]
    answer_schema: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of a step; its value is the positional input of the same number.

    An input without a value (`status` failed or skipped) says why in `fault`; its positional input is None.
    """

    node_id: str
    goal: str
    task_type: TaskType = TaskType.THINK
    depends_on: tuple[str, ...] = ()
    status: NodeStatus = NodeStatus.COMPLETED
    fault: Fault | None = None
    sources: tuple[str, ...] = ()
    where: str = ""
    """The path of a stored value, to be named where the value has to be cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """One step to do: which node, where it stands in the tree, and what it may spend.

    `decided` is the node type where it is known before (maximal depth, later revisions, too little left to plan).
    `ancestors` are the goals from the root to the parent, `siblings` the nearest goals of the same plan, `known` the
    answers that the run log already holds for this step.
    """

    key: StepKey
    goal: str
    task_type: TaskType
    decided: NodeType | None = None
    plan_only: bool = False
    ancestors: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    sibling_count: int = 0
    inputs: tuple[InputSpec, ...] = ()
    feedback: str = ""
    max_subtasks: int = 1
    verify: bool = False
    grant: Grant = field(default_factory=Grant)
    known: Mapping[str, Sequence[CallRecord]] = field(default_factory=dict[str, Any])

    @property
    def is_root(self) -> bool:
        return not self.ancestors
