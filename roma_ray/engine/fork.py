"""The beginning of a run that another run was: everything but one node and what was made from it.

What is kept was paid for by the first run, so its calls stand in the new log as known answers that cost nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from roma_ray.config import StorageConfig
from roma_ray.engine.reopen import downstream
from roma_ray.engine.state import ROOT, RunState
from roma_ray.engine.stored import value_store
from roma_ray.engine.tree import fold
from roma_ray.errors import UsageError, ValueLost
from roma_ray.runlog.events import Event, EventType, NewEvent
from roma_ray.types import CallRecord, Json, Outcome, PlannedTask, StepKey, Usage, ValueHandle

_KEPT_CALLS = (EventType.CALL_ANSWERED, EventType.CALL_CACHED)
_POSITION = re.compile(r"(?:~(\d+))?\.(\d+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """From where a run is done anew: a node of its present tree, with another goal where `goal` is given."""

    node_id: str
    goal: str = ""


def forked(events: Sequence[Event], started: dict[str, Json], cut: Cut | None) -> list[NewEvent]:
    """The events with which the fork of a run begins. Pure.

    `started` is what its first event says anew (config, version, fingerprint); the rest of that event stays. Without a
    `cut` everything is kept. Raises UsageError when the present tree has no such node.
    """
    state = fold(events)
    dropped = _dropped(state, cut.node_id) if cut else _Dropped()
    outcomes = {key: outcome for key, outcome in state.outcomes.items() if not dropped.covers(key)}
    first = {**events[0].payload, **started}
    first["forked_from"] = {"run_id": state.run_id, "node_id": cut.node_id if cut else ""}
    if cut and cut.goal:
        if cut.node_id == ROOT:
            first["goal"] = cut.goal
        else:
            parent, task = _place_in_plan(state, cut.node_id)
            outcomes[parent] = _with_goal(outcomes[parent], task, cut.goal)
    kept = [NewEvent(type=EventType.RUN_STARTED, payload=first)]
    kept += _kept_steps(events, outcomes, state, dropped)
    kept += (NewEvent(type=EventType.WARNING, payload={"text": text}) for text in state.warnings)
    if cut is None and state.status.is_end:
        # To go on with a run that ended is to try again what failed.
        kept.append(NewEvent(type=EventType.RUN_REOPENED, payload={"changes": []}))
    return kept


async def with_copied_values(events: Sequence[NewEvent], config: StorageConfig, old: str, new: str) -> list[NewEvent]:
    """`events` with every stored value that they name copied from the run `old` to the run `new`.

    A value that is lost keeps its old handle: it is made anew from the answers when it is needed.
    """
    copied: dict[str, Json] = {}
    for handle in _handles([event.payload for event in events]):
        if handle["path"] not in copied:
            copied[handle["path"]] = await asyncio.to_thread(_copy, handle, config, old, new)
    if not copied:
        return list(events)
    return [replace(event, payload=_replaced(event.payload, copied)) for event in events]


@dataclass(frozen=True, slots=True)
class _Dropped:
    """The nodes that start over, with all below them, and the steps that put together what they bring."""

    nodes: frozenset[str] = frozenset()
    steps: frozenset[StepKey] = frozenset()

    def covers(self, key: StepKey) -> bool:
        return key in self.steps or key.node_id in self.nodes


def _dropped(state: RunState, node_id: str) -> _Dropped:
    present = {node.id for node in state.walk()}
    if node_id not in present:
        names = ", ".join(list(present)[:20])
        raise UsageError(f"run {state.run_id} has no node {node_id} in its present tree", cure=f"one of {names}")
    given_anew, put_together_anew = downstream(state, {node_id})
    tops = {node_id, *given_anew}
    below = frozenset(n for n in state.nodes if any(n == top or n.startswith((f"{top}.", f"{top}~")) for top in tops))
    steps: set[StepKey] = set()
    for parent in put_together_anew:
        revision = _revision_of(state.nodes[parent].children)
        later = (key for key in state.outcomes if key.node_id == parent and key.revision > revision)
        steps.update(later, [StepKey(parent, "ascend", revision)])
    return _Dropped(below, frozenset(steps))


def _revision_of(children: Sequence[str]) -> int:
    match = _POSITION.search(children[0])
    assert match is not None
    return int(match.group(1) or 0)


def _place_in_plan(state: RunState, node_id: str) -> tuple[StepKey, int]:
    match = _POSITION.search(node_id)
    assert match is not None
    return StepKey(state.nodes[node_id].parent, "descend", int(match.group(1) or 0)), int(match.group(2))


def _with_goal(outcome: Outcome, number: int, goal: str) -> Outcome:
    assert outcome.plan is not None
    tasks: list[PlannedTask] = list(outcome.plan.tasks)
    tasks[number] = replace(tasks[number], goal=goal)
    return replace(outcome, plan=replace(outcome.plan, tasks=tuple(tasks)))


def _kept_steps(
    events: Iterable[Event], outcomes: dict[StepKey, Outcome], state: RunState, dropped: _Dropped
) -> Iterable[NewEvent]:
    """Calls, outcomes as they count in the end, and what people said, in the order of the log."""
    last_done = {e.payload["step"]: e.seq for e in events if e.type is EventType.STEP_DONE}
    for event in events:
        step = event.payload.get("step")
        if step is None or event.node_id not in state.nodes:
            continue
        key = StepKey.parse(step)
        if event.type in _KEPT_CALLS and event.payload.get("response") is not None and not dropped.covers(key):
            record = replace(CallRecord.from_plain(event.payload), cached=True, usage=Usage(cached_calls=1))
            yield NewEvent(type=EventType.CALL_CACHED, node_id=event.node_id, payload=record.to_plain())
        elif event.type is EventType.STEP_DONE and key in outcomes and last_done[step] == event.seq:
            payload: dict[str, Json] = {"step": step, "outcome": outcomes[key].to_plain()}
            yield NewEvent(type=EventType.STEP_DONE, node_id=event.node_id, payload=payload)
            yield from _kept_approval(state, key)


def _kept_approval(state: RunState, key: StepKey) -> Iterable[NewEvent]:
    approval = state.approvals.get(key)
    if approval is None:
        return
    asked: dict[str, Json] = {"step": str(key), "kind": approval.kind}
    yield NewEvent(type=EventType.APPROVAL_ASKED, node_id=key.node_id, payload=asked)
    if not approval.is_open:
        # What was edited stands in the outcome already.
        verdict = "reject" if approval.verdict == "reject" else "approve"
        said: dict[str, Json] = {"step": str(key), "verdict": verdict, "words": approval.words, "by": approval.by}
        yield NewEvent(type=EventType.APPROVAL_ANSWERED, node_id=key.node_id, payload=said)


def _handles(data: Json) -> Iterable[dict[str, Any]]:
    if isinstance(data, dict):
        handle: Any = data.get("handle")
        if isinstance(handle, dict) and "sha256" in handle:
            yield handle
        data = list(data.values())
    if isinstance(data, list):
        for part in data:
            yield from _handles(part)


def _replaced(data: Json, copied: dict[str, Json]) -> Any:
    if isinstance(data, list):
        return [_replaced(part, copied) for part in data]
    if not isinstance(data, dict):
        return data
    changed: dict[str, Any] = {name: _replaced(part, copied) for name, part in data.items()}
    handle: Any = data.get("handle")
    if isinstance(handle, dict) and handle.get("path") in copied:
        changed["handle"] = copied[handle["path"]]
    return changed


def _copy(handle: dict[str, Json], config: StorageConfig, old: str, new: str) -> Json:
    try:
        value = value_store(config, old).get(ValueHandle.from_plain(handle))
    except ValueLost:
        return handle
    return value_store(config, new).put(value).to_plain()
