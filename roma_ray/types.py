"""The frozen data that travels between the layers; every type reads back from the plain data it writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

Json = Any
"""Plain data: None, bool, int, float, str, lists and string-keyed dicts of the same."""


class TaskType(StrEnum):
    """What kind of work a subtask is; the five kinds are meant to be mutually exclusive."""

    RETRIEVE = "RETRIEVE"
    WRITE = "WRITE"
    THINK = "THINK"
    CODE_INTERPRET = "CODE_INTERPRET"
    IMAGE_GENERATION = "IMAGE_GENERATION"


class NodeType(StrEnum):
    """Whether a node is split further (PLAN) or done at once (EXECUTE)."""

    PLAN = "PLAN"
    EXECUTE = "EXECUTE"

    @property
    def is_plan(self) -> bool:
        return self is NodeType.PLAN

    @property
    def is_execute(self) -> bool:
        return self is NodeType.EXECUTE


class PredictionStrategy(StrEnum):
    """How a module asks its model; `parse` also takes the usual short names in any case."""

    PREDICT = "Predict"
    CHAIN_OF_THOUGHT = "ChainOfThought"
    REACT = "ReAct"
    REACT_V2 = "ReActV2"
    CODE_ACT = "CodeAct"
    PROGRAM_OF_THOUGHT = "ProgramOfThought"
    RLM = "RLM"
    BEST_OF_N = "BestOfN"
    REFINE = "Refine"
    MULTI_CHAIN_COMPARISON = "MultiChainComparison"
    MAJORITY = "majority"
    KNN = "KNN"
    PARALLEL = "Parallel"

    @classmethod
    def parse(cls, value: str | PredictionStrategy) -> PredictionStrategy:
        """The strategy that `value` names: an enum member, its value, or an alias such as `cot` or `best-of-n`.

        Raises ValueError that lists the names when there is none.
        """
        wanted = re.sub(r"[-_ ]", "", str(value)).lower()
        wanted = {"cot": "chainofthought", "pot": "programofthought", "mcc": "multichaincomparison"}.get(wanted, wanted)
        for strategy in cls:
            if strategy.value.lower() == wanted:
                return strategy
        raise ValueError(f"Invalid prediction strategy {value!r}; one of: {', '.join(s.value for s in cls)}")


class SubTask(BaseModel):
    """One part of a plan as the Planner words it and as the Aggregator reads it.

    `dependencies` names earlier subtasks by their position (0-based, as text); `result` and `context_input` are
    filled in once the subtask is done.
    """

    model_config = ConfigDict(frozen=True)

    goal: str = Field(min_length=1, description="What has to be done, complete in itself")
    task_type: TaskType = Field(description="The kind of work")
    dependencies: list[str] = Field(default_factory=list, description="Positions of the subtasks it needs")
    result: str | None = Field(default=None, description="What came out, once done")
    context_input: str | None = Field(default=None, description="What it was given from its dependencies")

    @field_validator("dependencies", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        if value is None:
            return []
        return [str(item) for item in value if item is not None] if isinstance(value, list | tuple) else value

    @field_validator("task_type", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.strip().upper().replace("-", "_").replace(" ", "_") if isinstance(value, str) else value


class RunStatus(StrEnum):
    """The state of a run: the first three are open, the others are ends that only `resume` leaves."""

    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTER = "dead_letter"

    @property
    def is_end(self) -> bool:
        return self not in (RunStatus.RUNNING, RunStatus.WAITING, RunStatus.INTERRUPTED)


class NodeStatus(StrEnum):
    """The state of one node of the tree."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    PARTIAL = "partial"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"

    @property
    def has_value(self) -> bool:
        return self in (NodeStatus.COMPLETED, NodeStatus.PARTIAL)


StepKind = Literal["descend", "ascend"]


class StepKey(NamedTuple):
    """Names one durable step; never depends on the order in which things finish."""

    node_id: str
    kind: StepKind
    revision: int = 0

    def __str__(self) -> str:
        return f"{self.node_id}/{self.kind}~{self.revision}"

    @classmethod
    def parse(cls, text: str) -> StepKey:
        """Read back what `str` wrote."""
        node_id, _, rest = text.rpartition("/")
        kind, _, revision = rest.partition("~")
        return cls(node_id, kind, int(revision))  # type: ignore[arg-type]


def child_id(parent_id: str, index: int, revision: int = 0) -> str:
    """The id of child `index` (0-based) of a plan: `root.0`, or `root~1.0` where the parent was planned anew."""
    return f"{parent_id}~{revision}.{index}" if revision else f"{parent_id}.{index}"


class _Plain:
    """`to_plain`/`from_plain` for a flat frozen dataclass; defaults are left out, so that rows stay small."""

    __slots__ = ()

    def to_plain(self) -> dict[str, Json]:
        """The fields that differ from their defaults, as plain data."""
        data: dict[str, Json] = {}
        for f in fields(self):  # type: ignore[arg-type]
            value = getattr(self, f.name)
            if value == f.default or (not value and f.default_factory is tuple):
                continue
            data[f.name] = _plain_value(value)
        return data

    @classmethod
    def from_plain(cls, data: Mapping[str, Json]) -> Self:
        """Read back what `to_plain` wrote; a field that this version does not know is ignored."""
        known = {f.name for f in fields(cls)}  # type: ignore[arg-type]
        return cls(**{k: cls._read_field(k, v) for k, v in data.items() if k in known})

    @classmethod
    def _read_field(cls, name: str, value: Json) -> Any:
        return tuple(value) if isinstance(value, list) else value


def _plain_value(value: Any) -> Json:
    if isinstance(value, _Plain):
        return value.to_plain()
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, tuple):
        return [_plain_value(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(_Plain):
    """What was spent. `cost_usd` is None as soon as one call had no known price.

    `lm_calls` counts answered requests, `failed_calls` HTTP attempts without an answer, `cached_calls` answers that
    came from the run log or the cache and cost nothing.
    """

    lm_calls: int = 0
    failed_calls: int = 0
    cached_calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = 0.0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            lm_calls=self.lm_calls + other.lm_calls,
            failed_calls=self.failed_calls + other.failed_calls,
            cached_calls=self.cached_calls + other.cached_calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost_usd=(self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
        )

    def as_dict(self) -> dict[str, Json]:
        """All six fields by name, for reports."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(_Plain):
    """An error as data: its stable code, one line of cause, one line of cure."""

    code: str
    message: str
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueHandle(_Plain):
    """Where a stored value lies and what it looks like; enough to read it, check it and tell a model about it.

    `path` is relative to the base path of the store, `sha256` the hash of the stored bytes. `kind` says how to read
    it: `text` (a one-column table), `table` (one row a record) or `json`.
    """

    path: str
    sha256: str
    size_bytes: int
    kind: Literal["text", "table", "json"]
    rows: int = 0
    columns: tuple[str, ...] = ()
    preview: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord(_Plain):
    """One model call of a step, answered or failed: what the run log keeps so that nothing is paid twice.

    `request_key` is the SHA-256 of the canonical request and `ordinal` its number among identical requests of the
    step (0-based). `request` is the canonical request (dspy.lm15 serde), absent with `runlog.prompts=hash`;
    `response` the canonical response, absent for a failed call and for one that the run log answered. `cached` marks an
    answer that was already known: it adds 1 to `cached_calls` and nothing else.
    """

    step: str
    role: str
    model: str
    request_key: str
    ordinal: int = 0
    usage: Usage = field(default_factory=Usage)
    request: Json = None
    response: Json = None
    latency_s: float = 0.0
    finish_reason: str = ""
    cached: bool = False
    fault: Fault | None = None

    @classmethod
    def _read_field(cls, name: str, value: Json) -> Any:
        if name == "usage":
            return Usage.from_plain(value)
        return Fault.from_plain(value) if name == "fault" else value


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWaiting(_Plain):
    """A model call that waits longer than a moment before it is sent, and for what: for people who watch the tree.

    `wait_s` is the time still to go where it is known (a pause), else 0 (a permit).
    """

    step: str
    role: str
    reason: str
    wait_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask(_Plain):
    """One subtask of a checked plan; `depends_on` holds positions in the same plan, all valid and acyclic."""

    goal: str
    task_type: TaskType = TaskType.THINK
    depends_on: tuple[int, ...] = ()

    @classmethod
    def _read_field(cls, name: str, value: Json) -> Any:
        return TaskType(value) if name == "task_type" else (tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(_Plain):
    """A plan that passed all checks."""

    tasks: tuple[PlannedTask, ...]

    @classmethod
    def _read_field(cls, name: str, value: Json) -> Any:
        return tuple(PlannedTask.from_plain(item) for item in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(_Plain):
    """The envelope that a step returns, whether it went well or not.

    A descend step ends with a `plan` (to be solved) or a value; an ascend step with a value. A value small enough
    stands in `value`, a larger one is stored and `handle` says where. `accepted` is False when the Verifier, or the
    failure of all children, asks for another revision, with the reasons in `feedback`.
    """

    status: NodeStatus
    node_type: NodeType = NodeType.EXECUTE
    plan: Plan | None = None
    value: Json = None
    handle: ValueHandle | None = None
    sources: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fault: Fault | None = None
    accepted: bool = True
    verdict: bool | None = None
    feedback: str = ""
    limit_reached: str = ""
    same_as: str = ""

    @property
    def has_value(self) -> bool:
        return self.plan is None and self.status.has_value

    @classmethod
    def _read_field(cls, name: str, value: Json) -> Any:
        read = _OUTCOME_FIELDS.get(name)
        if read is not None and value is not None:
            return read(value)
        return value


_OUTCOME_FIELDS: dict[str, Any] = {
    "status": NodeStatus,
    "node_type": NodeType,
    "plan": Plan.from_plain,
    "handle": ValueHandle.from_plain,
    "fault": Fault.from_plain,
    "sources": tuple,
    "warnings": tuple,
}
