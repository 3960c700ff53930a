"""Whole solves against the scripted server: what is asked, in which order, with what in hand, and what it costs.

Expected numbers are literals, counted by the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from roma_ray.engine.result import Result
from tests.end_to_end.conftest import Solving
from tests.scripted.answers import values_for
from tests.scripted.client import Scripted
from tests.scripted.directives import out_token, plan_goal, syn_token, task
from tests.scripted.prompts import read_ask


@pytest.mark.parametrize(
    ("goal", "overrides", "atomizer", "planner", "executor", "aggregator", "verifier"),
    [
        pytest.param("just do it", (), 1, 0, 1, 0, 0, id="one node"),
        pytest.param("do N=3", (), 4, 1, 3, 1, 0, id="depth 1"),
        pytest.param("do CHAIN=4", (), 5, 1, 4, 1, 0, id="depth 1, one after another"),
        pytest.param("do TREE=2:2", (), 7, 3, 4, 3, 0, id="depth 2"),
        pytest.param("do TREE=2:3", (), 7, 7, 8, 7, 0, id="depth 3: the deepest are not asked whether to plan"),
        pytest.param("do TREE=2:4", ("limits.max_depth=4",), 15, 15, 16, 15, 0, id="depth 4"),
        pytest.param("do TREE=2:4", ("limits.max_depth=2",), 3, 3, 4, 3, 0, id="forced at depth 2"),
        pytest.param("do DEEP", (), 7, 7, 8, 7, 0, id="a planner without end"),
        pytest.param("do N=3", ("limits.max_depth=0",), 0, 0, 1, 0, 0, id="forced at the root"),
        pytest.param("do N=3", ("verify=root",), 4, 1, 3, 1, 1, id="verified at the root"),
        pytest.param("do N=3", ("verify=all",), 4, 1, 3, 1, 4, id="verified everywhere"),
    ],
)
async def test_a_tree_takes_exactly_the_ideal_number_of_calls(
    solving: Solving,
    scripted: Scripted,
    goal: str,
    overrides: tuple[str, ...],
    atomizer: int,
    planner: int,
    executor: int,
    aggregator: int,
    verifier: int,
) -> None:
    result = await solving(goal, *overrides)
    counts = scripted.stats()["by_role"]
    assert result.status == "completed", result.fault
    roles = ("atomizer", "planner", "executor", "aggregator", "verifier")
    assert [counts.get(role, 0) for role in roles] == [atomizer, planner, executor, aggregator, verifier]
    assert result.usage.lm_calls == atomizer + planner + executor + aggregator + verifier


async def test_a_dependent_starts_while_a_slower_sibling_still_runs(solving: Solving, scripted: Scripted) -> None:
    goal = plan_goal("three parts", task("quick"), task("slow EHOLD"), task("next", needs=[0]))
    running = _in_background(solving(goal))
    await _until(lambda: any(entry["t_answered"] for entry in _asked(scripted, "executor", "next")))
    assert _asked(scripted, "executor", "slow EHOLD")[0]["t_answered"] is None
    scripted.release()
    assert (await running).status == "completed"
    (quick,), (following,) = _asked(scripted, "executor", "quick"), _asked(scripted, "atomizer", "next")
    assert following["t_received"] >= quick["t_answered"]


async def test_a_diamond_gives_each_part_what_it_depends_on_and_nothing_else(
    solving: Solving, scripted: Scripted
) -> None:
    parts = [task("top"), task("left", needs=[0]), task("right", needs=[0]), task("bottom", needs=[1, 2])]
    result = await solving(plan_goal("diamond", *parts))
    assert _built_from(scripted, "top") == "nothing"
    assert _built_from(scripted, "left") == _built_from(scripted, "right") == out_token("top")
    assert _built_from(scripted, "bottom") == f"{out_token('left')}, {out_token('right')}"
    for name in ("top", "left", "right", "bottom"):
        assert out_token(name) in result.output


async def test_the_result_of_a_planned_subtask_reaches_what_depends_on_it(solving: Solving, scripted: Scripted) -> None:
    gather = plan_goal("gather", task("one"), task("two"))
    await solving(plan_goal("report", task(gather), task("use", needs=[0])))
    assert _built_from(scripted, "use") == syn_token(gather)


async def test_the_children_of_a_planned_dependent_get_its_inputs(solving: Solving, scripted: Scripted) -> None:
    compare = plan_goal("compare", task("near"), task("far", needs=[0]))
    await solving(plan_goal("report", task("look"), task(compare, needs=[0])))
    (planned,) = _asked(scripted, "planner", compare)
    assert f"{out_token('look')}(" in planned["messages"][-1]["content"]
    assert _built_from(scripted, "near") == out_token("look")
    assert _built_from(scripted, "far") == f"{out_token('look')}, {out_token('near')}"


async def test_usage_is_what_the_server_reported_with_bad_answers_and_retries_in_it(
    solving: Solving, scripted: Scripted
) -> None:
    parts = [task("a EMALFORMED:1"), task("b EFAIL=500:1"), task("c EFAIL=429:2:0.1"), task("d AWRONGTYPES:1")]
    result = await solving(plan_goal("costly", *parts))
    stats, usage = scripted.stats(), result.usage
    assert result.status == "completed"
    # Ideal 11 (5 atomizers, 1 planner, 4 executors, 1 aggregator), two bad answers, three attempts without one.
    assert (stats["requests"], stats["answered"], stats["failed"]) == (16, 13, 3)
    assert (usage.lm_calls, usage.failed_calls, usage.cached_calls) == (13, 3, 0)
    assert usage.prompt_tokens == stats["prompt_tokens"]
    assert usage.completion_tokens == stats["completion_tokens"]


async def test_the_usage_of_all_nodes_adds_up_to_that_of_the_run(solving: Solving) -> None:
    result = await solving("do TREE=2:2")
    nodes = [result.tree]
    for node in nodes:
        nodes.extend(node["children"])
    assert len(nodes) == 7
    assert sum(node["usage"]["lm_calls"] for node in nodes) == result.usage.lm_calls == 17
    assert sum(node["usage"]["prompt_tokens"] for node in nodes) == result.usage.prompt_tokens


async def test_sources_travel_to_the_result_once_and_in_order(solving: Solving) -> None:
    result = await solving(plan_goal("cite", task("x SRC=b.org,a.org"), task("y SRC=a.org,c.org", needs=[0])))
    assert list(result.sources) == ["b.org", "a.org", "c.org"]


async def test_the_same_work_gives_the_same_prompts(solving: Solving, scripted: Scripted) -> None:
    prompts: list[list[str]] = []
    for _ in range(2):
        scripted.reset()
        await solving("do CHAIN=3")
        prompts.append(sorted(str(entry["messages"]) for entry in scripted.log()))
    assert prompts[0] == prompts[1]


async def test_independent_subtasks_are_open_at_the_same_time(solving: Solving, scripted: Scripted) -> None:
    names = [f"part {i} EHOLD" for i in range(20)]
    running = _in_background(solving(plan_goal("all at once", *map(task, names)), "limits.max_subtasks=20"))
    await _until(lambda: scripted.stats()["open"] == 20)
    scripted.release()
    assert (await running).status == "completed"


def _asked(scripted: Scripted, role: str, goal: str) -> list[dict[str, Any]]:
    return [entry for entry in scripted.log(role) if entry["goal"] == goal]


def _built_from(scripted: Scripted, goal: str) -> str:
    """Which answers the Executor of `goal` had in its prompt, by the prompt itself."""
    (entry,) = _asked(scripted, "executor", goal)
    answer = values_for(read_ask({"messages": entry["messages"]}), 1, True)["output"]
    return answer.partition("; from ")[2].rstrip(")")


def _in_background(solving: Awaitable[Result]) -> asyncio.Task[Result]:
    return asyncio.ensure_future(solving)  # type: ignore[return-value]


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)
