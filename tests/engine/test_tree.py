"""The state of a run is a fold over its events, whatever of them is there."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from roma_ray.engine.state import RunState
from roma_ray.engine.tree import apply, fold
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import (
    CallRecord,
    Fault,
    NodeStatus,
    NodeType,
    Outcome,
    Plan,
    PlannedTask,
    RunStatus,
    StepKey,
    Usage,
)


class Log:
    """Builds the events of a run, in order."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.add(EventType.RUN_STARTED, goal="g", day="2026-01-01", version="1", config={})

    def add(self, kind: EventType, node_id: str = "", **payload: Any) -> Log:
        seq = len(self.events) + 1
        self.events.append(
            Event(run_id="r", seq=seq, epoch=1, time_s=float(seq), type=kind, node_id=node_id, payload=payload)
        )
        return self

    def call(self, key: StepKey, request_key: str = "k", ordinal: int = 0) -> Log:
        usage = Usage(lm_calls=1, prompt_tokens=3, completion_tokens=2)
        record = CallRecord(
            step=str(key), role="executor", model="m", request_key=request_key, ordinal=ordinal, usage=usage,
            request={"big": "prompt"}, response={"text": "x"},
        )  # fmt: skip
        return self.add(EventType.CALL_ANSWERED, key.node_id, **record.to_plain())

    def done(self, key: StepKey, outcome: Outcome) -> Log:
        return self.add(EventType.STEP_DONE, key.node_id, step=str(key), outcome=outcome.to_plain())

    def planned(self, node_id: str, *tasks: PlannedTask) -> Log:
        plan = Outcome(status=NodeStatus.RUNNING, node_type=NodeType.PLAN, plan=Plan(tasks=tasks))
        return self.done(StepKey(node_id, "descend"), plan)

    def ended(self, status: RunStatus) -> Log:
        return self.add(EventType.RUN_ENDED, status=status.value, wall_s=1.0)


def ok(value: str) -> Outcome:
    return Outcome(status=NodeStatus.COMPLETED, value=value)


def failed(code: str = "R0301") -> Outcome:
    return Outcome(status=NodeStatus.FAILED, fault=Fault(code=code, message="no"))


def partly_failed_run() -> Log:
    """a and b independent, c needs a, d needs b; b failed for a reason of the world."""
    tasks = [PlannedTask(goal="a"), PlannedTask(goal="b")]
    tasks += [PlannedTask(goal="c", depends_on=(0,)), PlannedTask(goal="d", depends_on=(1,))]
    log = Log().planned("root", *tasks)
    log.call(StepKey("root.0", "descend")).done(StepKey("root.0", "descend"), ok("A"))
    log.call(StepKey("root.1", "descend")).done(StepKey("root.1", "descend"), failed())
    log.done(StepKey("root.2", "descend"), ok("C"))
    log.done(StepKey("root.3", "descend"), Outcome(status=NodeStatus.SKIPPED, fault=Fault(code="R0205", message="-")))
    partial = Outcome(status=NodeStatus.PARTIAL, node_type=NodeType.PLAN, value="A and C")
    return log.done(StepKey("root", "ascend"), partial).ended(RunStatus.PARTIAL)


def test_a_finished_run_folds_to_its_tree_and_usage() -> None:
    state = fold(partly_failed_run().events)
    assert state.status is RunStatus.PARTIAL
    assert {n.id: n.status.value for n in state.walk()} == {
        "root": "partial", "root.0": "completed", "root.1": "failed", "root.2": "completed", "root.3": "skipped",
    }  # fmt: skip
    assert state.nodes["root.3"].depends_on == ("root.1",)
    assert state.usage == Usage(lm_calls=2, prompt_tokens=6, completion_tokens=4)


def test_answers_are_kept_only_for_steps_that_may_be_done_again_and_without_their_prompts() -> None:
    state = fold(partly_failed_run().events)
    assert list(state.answers) == ["root.1/descend~0"]
    assert state.answers["root.1/descend~0"]["k"][0].request is None


def test_reopening_forgets_what_failed_and_all_that_was_made_from_it() -> None:
    state = fold(partly_failed_run().add(EventType.RUN_REOPENED).events)
    assert state.status is RunStatus.RUNNING
    kept = {str(key) for key in state.outcomes}
    assert kept == {"root/descend~0", "root.0/descend~0", "root.2/descend~0"}
    assert list(state.answers) == ["root.1/descend~0"], "what was paid for is still known"


def test_reopening_plans_a_dependent_anew_when_its_input_changes() -> None:
    tasks = (PlannedTask(goal="a"), PlannedTask(goal="b"), PlannedTask(goal="c", depends_on=(0, 1)))
    log = Log().planned("root", *tasks)
    log.done(StepKey("root.0", "descend"), failed()).done(StepKey("root.1", "descend"), ok("B"))
    log.planned("root.2", PlannedTask(goal="c0")).done(StepKey("root.2.0", "descend"), ok("C0"))
    log.done(StepKey("root.2", "ascend"), ok("C")).ended(RunStatus.PARTIAL).add(EventType.RUN_REOPENED)
    assert {str(key) for key in fold(log.events).outcomes} == {"root/descend~0", "root.1/descend~0"}


@given(st.integers(0, 9))
def test_folding_in_two_parts_gives_the_same_state(split: int) -> None:
    events = partly_failed_run().add(EventType.RUN_REOPENED).events
    whole = fold(events)
    state = fold(events[:split])
    for event in events[split:]:
        apply(state, event)
    assert state == whole


def test_every_prefix_of_a_log_folds() -> None:
    events = partly_failed_run().events
    for length in range(len(events) + 1):
        state = fold(events[:length])
        assert isinstance(state, RunState)
        assert state.seq == length


def test_interrupted_nodes_are_pending_again_and_cancelled_ones_cancelled() -> None:
    log = Log().add(EventType.STEP_STARTED, "root", step="root/descend~0", worker="1@x")
    assert fold([*log.events]).nodes["root"].status is NodeStatus.RUNNING
    assert fold(log.ended(RunStatus.INTERRUPTED).events).nodes["root"].status is NodeStatus.PENDING
    log = Log().add(EventType.STEP_STARTED, "root", step="root/descend~0")
    assert fold(log.ended(RunStatus.CANCELLED).events).nodes["root"].status is NodeStatus.CANCELLED
