"""What holds for every plan, every order of failures, and every moment at which a run may have stopped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from roma_ray import clock, solve
from roma_ray.api import aresume, load_events
from roma_ray.config import load_config
from roma_ray.engine.state import RunState
from roma_ray.runlog.events import Event, EventType, NewEvent
from roma_ray.runlog.log import RunLog
from roma_ray.types import NodeStatus, RunStatus
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(300)

GOAL = plan_goal(
    "the whole",
    task("alpha SIZE=50000"),
    task(plan_goal("beta", task("beta one"), task("beta two", needs=[0]))),
    task("gamma", needs=[0, 1]),
    task("delta"),
)


async def test_every_prefix_of_a_log_resumed_to_its_end_is_the_whole_run(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROMA_RAY_HOME", str(tmp_path))
    reached = ("cluster=inline", "lm.model=openai/scripted", f"lm.api_base={scripted.base_url}", "verify=root")
    whole = await asyncio.to_thread(solve, GOAL, overrides=[*reached, "runlog.durability=process"])
    assert whole.status is RunStatus.COMPLETED
    config = load_config([]).config
    events = await load_events(config, whole.run_id)
    log = await RunLog.open(config.runlog)
    for length in range(1, len(events) + 1):
        scripted.reset()
        run_id = await begun_with(log, events[:length])
        resumed = await aresume(run_id)
        said = f"resumed after {length} of {len(events)} events, {events[length - 1].type}"
        assert meaning(resumed.state) == meaning(whole.state), said
        assert resumed.output == whole.output, said
        paid = sum(event.type is EventType.CALL_ANSWERED for event in events[:length])
        assert scripted.stats()["answered"] == whole.usage.lm_calls - paid, said
        assert resumed.usage.lm_calls == whole.usage.lm_calls, said
    await log.close()


async def begun_with(log: RunLog, events: list[Event]) -> str:
    """A run whose log begins, and for now ends, with these events; nobody holds it."""
    run_id = clock.new_run_id()
    kept = [NewEvent(type=e.type, node_id=e.node_id, payload=e.payload) for e in events]
    lease = await log.import_run(run_id, goal="the whole", events=kept)
    await log.release(lease, RunStatus.INTERRUPTED)
    return run_id


def meaning(state: RunState) -> dict[str, Any]:
    """What a run's state says, without times, counters of attempts and where stored values lie."""
    nodes = {n.id: (n.goal, n.status, n.node_type, n.children, n.depends_on, n.revision) for n in state.nodes.values()}
    outcomes = {
        str(key): (o.status, o.plan, o.value, o.handle.sha256 if o.handle else None, o.accepted)
        for key, o in state.outcomes.items()
    }
    return {"status": state.status, "goal": state.goal, "nodes": nodes, "outcomes": outcomes}


@st.composite
def plans(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Plans of up to six subtasks, some of which fail by the world; edges point both ways, never around."""
    count = draw(st.integers(1, 6))
    order = draw(st.permutations(range(count)))
    tasks: list[dict[str, Any]] = []
    for i in range(count):
        before = [j for j in range(count) if order[j] < order[i]]
        needs = draw(st.sets(st.sampled_from(before), max_size=3)) if before else set[int]()
        fails = draw(st.integers(0, 3)) == 0
        tasks.append(task(f"part {i}{' EFAIL=500' if fails else ''}", needs=sorted(needs)))
    return tasks


@given(tasks=plans(), jitter=st.integers(0, 1000))
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_fails_a_subtask_starts_after_all_it_needs_and_only_if_some_of_it_came_out(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tasks: list[dict[str, Any]], jitter: int
) -> None:
    monkeypatch.setenv("ROMA_RAY_HOME", str(tmp_path))
    scripted.reset(latency_s=0.001, jitter_s=0.01, seed=jitter)
    reached = ("cluster=inline", "lm.model=openai/scripted", f"lm.api_base={scripted.base_url}", "lm.max_retries=0")
    result = solve(plan_goal("the whole", *tasks), overrides=[*reached, "limits.max_depth=1", "limits.max_revisions=0"])

    fate: dict[int, NodeStatus] = {}
    while len(fate) < len(tasks):
        for i, part in enumerate(tasks):
            needs = [int(n) for n in part["dependencies"]]
            if i not in fate and all(n in fate for n in needs):
                fate[i] = fate_of(part["goal"], [fate[n] for n in needs])
    nodes = result.state.nodes
    assert {i: nodes[f"root.{i}"].status for i in fate} == fate

    asked = {entry["goal"]: entry for entry in scripted.log("executor")}
    assert set(asked) == {part["goal"] for i, part in enumerate(tasks) if fate[i] is not NodeStatus.SKIPPED}
    for part in (part for part in tasks if part["goal"] in asked):
        for needed in (tasks[int(n)]["goal"] for n in part["dependencies"]):
            if needed in asked:
                assert asked[needed]["t_answered"] <= asked[part["goal"]]["t_received"]


def fate_of(goal: str, needed: list[NodeStatus]) -> NodeStatus:
    if needed and NodeStatus.COMPLETED not in needed:
        return NodeStatus.SKIPPED
    return NodeStatus.FAILED if "EFAIL" in goal else NodeStatus.COMPLETED
