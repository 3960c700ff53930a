"""Each fault of the world and of the model has its own fate: status, code, exit code and number of requests.

The expected numbers are literals; `requests` is what the server counted.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from roma_ray.errors import ConfigError
from tests.end_to_end.conftest import Solving
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task
from tests.scripted.fixed import answering

DEADLINE_S = 25.0
"""Far below the test's own time-out: a fault must not become a hang."""


async def check(
    solving: Solving, scripted: Scripted, goal: str, expected: tuple[str, str | None, int, int], *overrides: str
) -> None:
    status, code, exit_code, requests = expected
    started_s = time.monotonic()
    result = await asyncio.wait_for(solving(goal, *overrides), DEADLINE_S)
    found = (result.status.value, result.fault and result.fault.code, result.exit_code, scripted.stats()["requests"])
    assert found == (status, code, exit_code, requests), (result.fault, result.warnings, scripted.stats())
    assert time.monotonic() - started_s < DEADLINE_S
    answered, failed = scripted.stats()["answered"], result.usage.failed_calls
    assert result.usage.lm_calls == answered
    assert result.usage.lm_calls + failed == requests


# One node: 1 Atomizer and 1 Executor request when nothing is wrong; lm.max_retries=2, lm.timeout_s=1.
WORLD = [
    ("EFAIL=500", "failed", "R0301", 75, 4),
    ("EFAIL=500:2", "completed", None, 0, 4),
    ("EFAIL=503:1", "completed", None, 0, 3),
    ("EFAIL=401", "failed", "R0103", 2, 2),
    ("EFAIL=402", "failed", "R0104", 2, 2),
    ("EFAIL=400", "failed", "R0105", 2, 2),
    ("EFAIL=404", "failed", "R0105", 2, 2),
    ("EFAIL=429:1:0.3", "completed", None, 0, 3),
    ("EFAIL=429::0.1", "failed", "R0303", 75, 4),
    ("EFAIL=quota", "failed", "R0304", 2, 2),
    ("EFAIL=broke", "failed", "R0104", 2, 2),
    ("EHANG=60", "failed", "R0302", 75, 4),
    ("EHANG=60:1", "completed", None, 0, 3),
    ("EDROP", "failed", "R0300", 75, 4),
    ("EDROP:1", "completed", None, 0, 3),
    ("AFAIL=500", "failed", "R0301", 75, 3),
    ("AFAIL=401", "failed", "R0103", 2, 1),
    # The prompt is halved three times before it counts as too long.
    ("EFAIL=context", "failed", "R0204", 1, 5),
]


@pytest.mark.parametrize(("goal", "status", "code", "exit_code", "requests"), WORLD, ids=[row[0] for row in WORLD])
async def test_a_fault_of_the_world_is_retried_in_one_place_or_stops_at_once(
    inline: Solving, scripted: Scripted, goal: str, status: str, code: str | None, exit_code: int, requests: int
) -> None:
    expected = status, code, exit_code, requests
    await check(inline, scripted, goal, expected, "lm.max_retries=2", "lm.timeout_s=1")


async def test_an_address_where_nobody_listens_is_said_within_seconds_whatever_the_retries(
    inline: Solving, scripted: Scripted
) -> None:
    result = await asyncio.wait_for(inline("hi", "lm.api_base=http://127.0.0.1:9/v1", "lm.max_retries=8"), DEADLINE_S)
    assert (result.status.value, result.exit_code, result.usage.failed_calls) == ("failed", 75, 3)
    assert result.fault is not None
    assert result.fault.code == "R0300"
    assert "lm.api_base" in result.fault.cure


MODEL = [
    # Executor: told once; then its raw text if there is any, else failed.
    ("EMALFORMED", "completed", None, 0, 3),
    ("EMALFORMED:1", "completed", None, 0, 3),
    ("ETRUNCATED", "partial", "R0201", 4, 3),
    ("ETRUNCATED:1", "completed", None, 0, 3),
    ("EEMPTY", "failed", "R0202", 1, 3),
    ("EEMPTY:1", "completed", None, 0, 3),
    ("EECHO:1", "completed", None, 0, 3),
    ("ETHINK", "completed", None, 0, 2),
    # Atomizer: told once; then EXECUTE.
    ("AMALFORMED", "completed", None, 0, 3),
    ("AEMPTY", "completed", None, 0, 3),
    ("AWRONGTYPES", "completed", None, 0, 3),
    ("AECHO:1", "completed", None, 0, 3),
    ("ATHINK", "completed", None, 0, 2),
    # Planner: told once; then atomic. One Atomizer and one Executor request besides.
    ("N=2 PMALFORMED", "completed", None, 0, 4),
    ("N=2 PEMPTY", "completed", None, 0, 4),
    ("N=2 PWRONGTYPES", "completed", None, 0, 4),
    # Planner mended by the second ask: 1 Atomizer, 2 Planner, 2 x (Atomizer, Executor), 1 Aggregator.
    ("N=2 PMALFORMED:1", "completed", None, 0, 8),
    ("N=2 PTHINK", "completed", None, 0, 7),
    # Aggregator: told once; then the children's results joined.
    ("N=2 GMALFORMED", "partial", "R0200", 4, 8),
    ("N=2 GEMPTY", "partial", "R0202", 4, 8),
    ("N=2 GTRUNCATED:1", "completed", None, 0, 8),
]


@pytest.mark.parametrize(("goal", "status", "code", "exit_code", "requests"), MODEL, ids=[row[0] for row in MODEL])
async def test_a_fault_of_the_model_is_shown_to_it_once_and_then_has_its_fate(
    inline: Solving, scripted: Scripted, goal: str, status: str, code: str | None, exit_code: int, requests: int
) -> None:
    await check(inline, scripted, goal, (status, code, exit_code, requests))


def plan(*subtasks: dict[str, object], **rest: object) -> str:
    return f"PLANRAW<<{json.dumps({'subtasks': list(subtasks), **rest})}>>"


def part(goal: str, *needs: str) -> dict[str, object]:
    return {"goal": goal, "task_type": "THINK", "dependencies": list(needs)}


# 1 Atomizer, 2 Planner (told once, wrong again), then 2 requests a subtask and 1 Aggregator.
PLANS = [
    ("cyclic", plan(part("a", "1"), part("b", "0")), "circle: 0 -> 1 -> 0", 8),
    ("self", plan(part("a", "0"), part("b")), "depends on itself", 8),
    ("unknown", plan(part("a", "7"), part("b")), "depends on 7", 8),
    ("unknown in graph", plan(part("a"), part("b"), dependencies_graph={"9": ["0"]}), "'9'", 8),
    ("duplicate", plan(part("a"), part(" A"), part("b")), "same goal as subtask 0", 8),
    ("huge", plan(*(part(f"part {i}") for i in range(40))), "more than the allowed 2", 8),
    ("empty", plan(), "done at once", 4),
    ("null", "PLANRAW<<{\"subtasks\": null}>>", "done at once", 4),
]  # fmt: skip


@pytest.mark.parametrize(("name", "raw", "warning", "requests"), PLANS, ids=[row[0] for row in PLANS])
async def test_a_faulty_plan_goes_back_once_and_is_then_repaired_with_a_warning(
    inline: Solving, scripted: Scripted, name: str, raw: str, warning: str, requests: int
) -> None:
    result = await asyncio.wait_for(inline(f"{name} {raw}", "limits.max_subtasks=2"), DEADLINE_S)
    assert (result.status.value, result.exit_code) == ("completed", 0)
    assert scripted.stats()["requests"] == requests, result.warnings
    assert any(warning in text for text in result.warnings), result.warnings


async def test_the_planner_that_mends_its_plan_is_asked_twice_and_nothing_is_repaired(
    inline: Solving, scripted: Scripted
) -> None:
    good = json.dumps({"subtasks": [part("a"), part("b")]})
    result = await inline(f"mend {plan(part('a', '0'), part('b'))} PLANRAW2<<{good}>>")
    assert result.status == "completed"
    assert scripted.stats()["by_role"]["planner"] == 2
    assert not any("repaired" in text for text in result.warnings)
    second = scripted.log("planner")[1]
    assert "subtask 0 depends on itself" in json.dumps(second["messages"])


async def test_a_planner_without_end_stops_at_max_depth(inline: Solving, scripted: Scripted) -> None:
    result = await asyncio.wait_for(inline("DEEP", "limits.max_depth=4"), DEADLINE_S)
    assert result.status == "completed"
    assert scripted.stats()["by_role"] == {"atomizer": 15, "planner": 15, "executor": 16, "aggregator": 15}


async def test_a_failed_child_does_not_stop_its_siblings_and_the_parent_is_partial(
    inline: Solving, scripted: Scripted
) -> None:
    goal = plan_goal(
        "the whole", task("breaks EFAIL=500"), task("fine"), task("starved", needs=[0]), task("half", needs=[0, 1])
    )
    result = await inline(goal, "lm.max_retries=0")
    assert (result.status.value, result.exit_code) == ("partial", 4)
    children = {child["goal"]: child["status"] for child in result.tree["children"]}
    assert children == {"breaks EFAIL=500": "failed", "fine": "completed", "starved": "skipped", "half": "completed"}
    assert "starved" not in {entry["goal"] for entry in scripted.log()}, "a skipped node costs no call"
    half = next(e for e in scripted.log("executor") if e["goal"] == "half")
    assert "Missing: breaks EFAIL=500" in json.dumps(half["messages"])
    aggregator = json.dumps(scripted.log("aggregator")[0]["messages"])
    assert "no result: failed" in aggregator
    assert "no result: skipped" in aggregator


async def test_when_all_children_fail_by_the_model_the_goal_is_planned_once_more_with_the_reasons(
    inline: Solving, scripted: Scripted
) -> None:
    result = await inline(plan_goal("the whole", task("one EEMPTY"), task("two EEMPTY")))
    assert (result.status.value, result.exit_code) == ("failed", 1)
    assert result.fault is not None
    assert result.fault.code == "R0205"
    assert scripted.stats()["by_role"]["planner"] == 2
    assert "it is empty" in json.dumps(scripted.log("planner")[1]["messages"])


async def test_an_atomizer_that_contradicts_itself_is_taken_by_its_node_type(
    inline: Solving, scripted: Scripted
) -> None:
    assert (await inline("ASAYS=true:PLAN N=2")).status == "completed"
    assert scripted.stats()["by_role"]["planner"] == 1


async def test_a_false_verdict_asks_for_one_revision_with_its_feedback(inline: Solving, scripted: Scripted) -> None:
    result = await inline("VERDICT=false:1 say it", "verify=root")
    assert result.status == "completed"
    assert scripted.stats()["by_role"] == {"atomizer": 1, "executor": 2, "verifier": 2}
    assert "An earlier attempt was not accepted" in json.dumps(scripted.log("executor")[1]["messages"])


async def test_a_verdict_that_stays_false_keeps_the_candidate_as_partial(inline: Solving, scripted: Scripted) -> None:
    result = await inline("VERDICT=false say it", "verify=root")
    assert (result.status.value, result.exit_code) == ("partial", 4)
    assert result.output
    assert scripted.stats()["by_role"] == {"atomizer": 1, "executor": 2, "verifier": 2}


async def test_a_verifier_that_fails_keeps_the_candidate_with_a_warning(inline: Solving, scripted: Scripted) -> None:
    result = await inline("VMALFORMED say it", "verify=root")
    assert result.status == "completed"
    assert any("not verified" in text for text in result.warnings)


async def test_half_an_emoji_in_an_answer_is_kept_out_of_the_result_and_of_its_recording(
    inline: Solving, tmp_path: Path
) -> None:
    # Well-formed text on the wire: what it holds is half a character only once the JSON in it is read.
    text = r'{"output": "all \ud83d is well", "sources": ["\ude00"]}'
    given = ("limits.max_depth=0", "lm.adapter=json", f"record={tmp_path / 'run.jsonl'}")
    async with answering(text) as address:
        result = await inline("say it", f"lm.api_base={address}", *given)
    assert (result.status, result.output, result.sources) == ("completed", "all \ufffd is well", ("\ufffd",))
    assert (tmp_path / "run.jsonl").exists()


async def test_six_children_and_three_429s_make_one_shared_pause(inline: Solving, scripted: Scripted) -> None:
    goal = plan_goal("the whole", *(task(f"part {i}" + (" EFAIL=429:1:0.6" if i < 3 else "")) for i in range(6)))
    result = await inline(goal, "limits.max_depth=1")
    assert result.status == "completed"
    assert scripted.stats()["by_role"]["executor"] <= 9


@pytest.mark.parametrize(
    "override",
    [
        "agents.executor.strategy=codeact",
        "agents.executor.strategy=knn",
        "agents.aggregator.instructions=no.such.module:TEXT",
        "agents.planner.demos=tests.scripted.client:Scripted",
        "agents.executor.by_type.WRITE.strategy=rlm",
    ],
)
async def test_an_agent_that_cannot_be_built_is_said_before_the_first_call(
    inline: Solving, scripted: Scripted, override: str
) -> None:
    with pytest.raises(ConfigError):
        await inline("N=2 of it", override)
    assert scripted.stats()["requests"] == 0
