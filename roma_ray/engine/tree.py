"""The state of a run as a fold over its events: the same for a live run, a resumed one and a finished one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roma_ray.engine.reopen import reopen, worth_another_try
from roma_ray.engine.state import ROOT, Approval, Node, RunState
from roma_ray.errors import Rejected
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import CallRecord, Fault, Json, NodeStatus, Outcome, Plan, RunStatus, StepKey, child_id


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
    state.epoch_ran_s = payload.get("ran_s", state.epoch_ran_s)
    match event.type:
        case EventType.RUN_STARTED:
            _start(state, event)
        case EventType.RUN_REOPENED:
            reopen(state, payload)
        case EventType.LEASE_TAKEN:
            # A process that left in order has said so.
            state.recoveries = state.recoveries + 1 if state.status is RunStatus.RUNNING else 0
            state.status = RunStatus.RUNNING
            state.ran_s, state.epoch_ran_s = state.ran_s + state.epoch_ran_s, 0.0
        case EventType.STEP_STARTED:
            _start_step(state, event)
        case EventType.CALL_ANSWERED | EventType.CALL_CACHED | EventType.CALL_FAILED:
            _count_call(state, event.node_id, CallRecord.from_plain(payload))
        case EventType.STEP_DONE:
            _finish_step(state, event)
        case EventType.APPROVAL_ASKED | EventType.APPROVAL_ANSWERED:
            _note_approval(state, event)
        case EventType.CALL_WAITING | EventType.WORKER_LOST | EventType.WARNING:
            _note(state, event)
        case EventType.RUN_ENDED:
            _end(state, event)


def _start(state: RunState, event: Event) -> None:
    payload = event.payload
    state.run_id, state.goal, state.day = event.run_id, payload["goal"], payload["day"]
    state.version, state.config = payload.get("version", ""), payload.get("config", {})
    state.files, state.answer_schema = tuple(payload.get("files", ())), payload.get("answer_schema")
    state.forked_from, state.fingerprint = payload.get("forked_from"), payload.get("fingerprint", {})
    state.started_at = event.time_s
    state.nodes[ROOT] = Node(id=ROOT, goal=state.goal)


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
    state.nodes[node_id] = replace(node, usage=node.usage + record.usage, waits_for="")
    state.usage = state.usage + record.usage
    if record.response is not None and not record.cached:
        state.recoveries = 0
    _keep_answer(state, record)


def restore_answers(state: RunState, events: Sequence[Event]) -> None:
    """Give the steps that a reopened run does again the answers that they had: what is asked the same is paid for."""
    known = set(state.answers)
    for event in events:
        if event.type not in (EventType.CALL_ANSWERED, EventType.CALL_CACHED) or event.payload["step"] in known:
            continue
        if StepKey.parse(event.payload["step"]) not in state.outcomes:
            _keep_answer(state, CallRecord.from_plain(event.payload))


def _keep_answer(state: RunState, record: CallRecord) -> None:
    if record.response is not None:
        # Prompts are not needed to go on; leaving them out keeps a long run's state small.
        kept = replace(record, request=None)
        state.answers.setdefault(record.step, {}).setdefault(record.request_key, []).append(kept)


def _finish_step(state: RunState, event: Event) -> None:
    key = StepKey.parse(event.payload["step"])
    outcome = Outcome.from_plain(event.payload["outcome"])
    state.outcomes[key] = outcome
    state.recoveries = 0
    if not worth_another_try(outcome):
        state.answers.pop(str(key), None)
    node = state.nodes[key.node_id]
    changes: dict[str, Any] = {
        "node_type": outcome.node_type,
        "warnings": (*node.warnings, *outcome.warnings),
        "same_as": outcome.same_as,
        "waits_for": "",
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


def _note_approval(state: RunState, event: Event) -> None:
    payload = event.payload
    key = StepKey.parse(payload["step"])
    if event.type is EventType.APPROVAL_ASKED:
        state.approvals[key] = Approval(key=key, kind=payload["kind"], asked_at=event.time_s)
        state.nodes[key.node_id] = replace(state.nodes[key.node_id], status=NodeStatus.WAITING)
        return
    state.approvals[key] = replace(
        state.approvals[key],
        verdict=payload["verdict"],
        words=payload.get("words", ""),
        by=payload.get("by", ""),
    )
    before = state.outcomes[key]
    outcome = answered(before, payload)
    state.outcomes[key] = outcome
    node = state.nodes[key.node_id]
    if before.plan is not None and outcome.plan != before.plan:
        for child in node.children:
            del state.nodes[child]
        node = replace(node, children=())
    if outcome.plan is not None:
        children = node.children or _add_children(state, node, key.revision, outcome)
        state.nodes[key.node_id] = replace(node, status=NodeStatus.RUNNING, children=children)
        return
    kept = outcome if outcome.has_value else node.outcome
    status = kept.status if kept is not None and outcome.accepted else NodeStatus.RUNNING
    state.nodes[key.node_id] = replace(node, status=status, outcome=kept)


def answered(outcome: Outcome, payload: Mapping[str, Json]) -> Outcome:
    """What a step's outcome is after a person's answer, the payload of `approval.answered`."""
    words: str = payload.get("words", "")
    match payload["verdict"]:
        case "edit" if outcome.plan is not None:
            return replace(outcome, plan=Plan.from_plain(payload["plan"]))
        case "edit":
            return replace(outcome, status=NodeStatus.COMPLETED, value=payload["value"], handle=None, same_as="")
        case "reject":
            fault = Rejected(f"rejected: {words}").fault
            feedback = f"A person rejected this and said: {words}"
            if outcome.plan is not None:
                outcome = replace(outcome, status=NodeStatus.FAILED, plan=None, fault=fault)
            return replace(outcome, accepted=False, feedback=feedback)
        case _:
            return outcome


def _note(state: RunState, event: Event) -> None:
    payload = event.payload
    if event.type is EventType.WARNING:
        state.warnings = (*state.warnings, payload["text"])
    elif event.type is EventType.WORKER_LOST:
        state.losses[payload["step"]] = state.losses.get(payload["step"], 0) + 1
    else:
        state.nodes[event.node_id] = replace(state.nodes[event.node_id], waits_for=payload["reason"])


def _end(state: RunState, event: Event) -> None:
    payload = event.payload
    state.status = RunStatus(payload["status"])
    state.fault = Fault.from_plain(payload["fault"]) if payload.get("fault") else None
    state.limit_reached = payload.get("limit_reached", "")
    state.ran_s, state.epoch_ran_s = state.ran_s + payload.get("wall_s", 0.0), 0.0
    state.ended_at = event.time_s
    if state.status in (RunStatus.INTERRUPTED, RunStatus.CANCELLED):
        _stop_open_nodes(state, cancelled=state.status is RunStatus.CANCELLED)


def _stop_open_nodes(state: RunState, *, cancelled: bool) -> None:
    status = NodeStatus.CANCELLED if cancelled else NodeStatus.PENDING
    for node_id, node in state.nodes.items():
        if node.status is NodeStatus.RUNNING:
            state.nodes[node_id] = replace(node, status=status)
