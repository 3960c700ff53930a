"""The state of a run as a fold over its events: the same for a live run, a resumed one and a finished one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from roma_ray.errors import BY_CODE, RomaError, WorldError
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import (
    CallRecord,
    Fault,
    Json,
    NodeStatus,
    NodeType,
    Outcome,
    RunStatus,
    StepKey,
    TaskType,
    Usage,
    child_id,
)

ROOT = "root"


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
    same_as: str = ""


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
    """Running time of the epochs that ended in order."""
    nodes: dict[str, Node] = field(default_factory=dict)
    outcomes: dict[StepKey, Outcome] = field(default_factory=dict)
    answers: dict[str, dict[str, list[CallRecord]]] = field(default_factory=dict)
    """Per step without a good outcome, per request key: the answers it already has."""
    losses: dict[str, int] = field(default_factory=dict)
    """Per step: how many workers died while they ran it."""

    @property
    def root(self) -> Node | None:
        return self.nodes.get(ROOT)

    def walk(self) -> Iterator[Node]:
        """The current tree from the root, parents before children, children in plan order."""
        stack = [ROOT] if ROOT in self.nodes else []
        while stack:
            node = self.nodes[stack.pop()]
            yield node
            stack.extend(reversed(node.children))


def fold(events: Iterable[Event]) -> RunState:
    """The state after `events`, given in the order of their seq."""
    state = RunState()
    for event in events:
        apply(state, event)
    return state


def apply(state: RunState, event: Event) -> None:
    """Bring `state` up to `event`. Total: every type of event has its branch, an unknown node is an error of ours."""
    state.seq, state.epoch = event.seq, event.epoch
    payload = event.payload
    match event.type:
        case EventType.RUN_STARTED:
            _start(state, event)
        case EventType.RUN_REOPENED:
            _reopen(state)
        case EventType.LEASE_TAKEN:
            state.status = RunStatus.RUNNING
        case EventType.STEP_STARTED:
            _start_step(state, event)
        case EventType.CALL_ANSWERED | EventType.CALL_CACHED | EventType.CALL_FAILED:
            _count_call(state, event.node_id, CallRecord.from_plain(payload))
        case EventType.STEP_DONE:
            _finish_step(state, event)
        case EventType.WORKER_LOST:
            state.losses[payload["step"]] = state.losses.get(payload["step"], 0) + 1
        case EventType.WARNING:
            state.warnings = (*state.warnings, payload["text"])
        case EventType.RUN_ENDED:
            _end(state, event)


def _start(state: RunState, event: Event) -> None:
    payload = event.payload
    state.run_id, state.goal, state.day = event.run_id, payload["goal"], payload["day"]
    state.version, state.config = payload.get("version", ""), payload.get("config", {})
    state.files, state.answer_schema = tuple(payload.get("files", ())), payload.get("answer_schema")
    state.started_at = event.time_s
    state.nodes[ROOT] = Node(id=ROOT, goal=state.goal)


def _reopen(state: RunState) -> None:
    """Forget what failed or was not done, and all that was made from it; what is good stays."""
    state.status, state.fault, state.limit_reached, state.ended_at = RunStatus.RUNNING, None, "", None
    state.losses.clear()
    anew = {key.node_id for key, outcome in state.outcomes.items() if _worth_another_try(outcome)}
    given_anew, put_together_anew = _downstream(state, anew)
    for node_id in [n for n in state.nodes if any(_is_below(n, top) for top in given_anew)]:
        del state.nodes[node_id]
    for key in list(state.outcomes):
        gone = key.node_id not in state.nodes or key.node_id in given_anew
        planned = state.outcomes[key].plan is not None
        if gone or (key.node_id in anew | put_together_anew and not planned):
            del state.outcomes[key]
    for node_id in anew | given_anew | put_together_anew:
        if node_id in state.nodes:
            _back_to_pending(state, node_id, children_too=node_id in given_anew)


def _worth_another_try(outcome: Outcome) -> bool:
    if outcome.plan is not None:
        return False
    world = outcome.fault is not None and issubclass(BY_CODE.get(outcome.fault.code, RomaError), WorldError)
    return outcome.status in (NodeStatus.FAILED, NodeStatus.SKIPPED) or bool(outcome.limit_reached) or world


def _downstream(state: RunState, anew: set[str]) -> tuple[set[str], set[str]]:
    """What changes with `anew`: nodes that get other inputs (they start over), and nodes that only ascend again."""
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


def _is_below(node_id: str, top: str) -> bool:
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


def _start_step(state: RunState, event: Event) -> None:
    key = StepKey.parse(event.payload["step"])
    node = state.nodes[key.node_id]
    state.nodes[key.node_id] = replace(
        node,
        status=NodeStatus.RUNNING,
        revision=key.revision,
        attempts=node.attempts + 1,
        started_at=node.started_at or event.time_s,
        worker=event.payload.get("worker", ""),
    )


def _count_call(state: RunState, node_id: str, record: CallRecord) -> None:
    node = state.nodes[node_id]
    state.nodes[node_id] = replace(node, usage=node.usage + record.usage)
    state.usage = state.usage + record.usage
    if record.response is not None:
        # Prompts are not needed to go on; leaving them out keeps a long run's state small.
        kept = replace(record, request=None)
        state.answers.setdefault(record.step, {}).setdefault(record.request_key, []).append(kept)


def _finish_step(state: RunState, event: Event) -> None:
    key = StepKey.parse(event.payload["step"])
    outcome = Outcome.from_plain(event.payload["outcome"])
    state.outcomes[key] = outcome
    if not _worth_another_try(outcome):
        state.answers.pop(str(key), None)
    node = state.nodes[key.node_id]
    changes: dict[str, Any] = {
        "node_type": outcome.node_type,
        "warnings": (*node.warnings, *outcome.warnings),
        "same_as": outcome.same_as,
        "started_at": node.started_at or event.time_s,
        "revision": key.revision,
    }
    if outcome.plan is not None:
        children = _add_children(state, node, key.revision, outcome)
        state.nodes[key.node_id] = replace(node, status=NodeStatus.RUNNING, children=children, **changes)
        return
    kept = node.outcome if node.outcome is not None and not outcome.has_value else outcome
    state.nodes[key.node_id] = replace(
        node, status=kept.status, outcome=kept, fault=outcome.fault, ended_at=event.time_s, **changes
    )


def _add_children(state: RunState, parent: Node, revision: int, outcome: Outcome) -> tuple[str, ...]:
    assert outcome.plan is not None
    ids = tuple(child_id(parent.id, i, revision) for i in range(len(outcome.plan.tasks)))
    for node_id, task in zip(ids, outcome.plan.tasks, strict=True):
        if node_id in state.nodes:
            continue
        state.nodes[node_id] = Node(
            id=node_id,
            goal=task.goal,
            task_type=task.task_type,
            parent=parent.id,
            depth=parent.depth + 1,
            depends_on=tuple(ids[i] for i in task.depends_on),
        )
    return ids


def _end(state: RunState, event: Event) -> None:
    payload = event.payload
    state.status = RunStatus(payload["status"])
    state.fault = Fault.from_plain(payload["fault"]) if payload.get("fault") else None
    state.limit_reached = payload.get("limit_reached", "")
    state.ran_s += payload.get("wall_s", 0.0)
    state.ended_at = event.time_s
    if state.status in (RunStatus.INTERRUPTED, RunStatus.CANCELLED):
        _stop_open_nodes(state, cancelled=state.status is RunStatus.CANCELLED)


def _stop_open_nodes(state: RunState, *, cancelled: bool) -> None:
    status = NodeStatus.CANCELLED if cancelled else NodeStatus.PENDING
    for node_id, node in state.nodes.items():
        if node.status is NodeStatus.RUNNING:
            state.nodes[node_id] = replace(node, status=status)
