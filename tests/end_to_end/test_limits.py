"""Each limit holds, as the server counts it, beside a control run that exceeds it; what exists is put together."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from roma_ray.engine.result import Result
from tests.end_to_end.conftest import Solving
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

PRICE = ("lm.price.prompt=100", "lm.price.completion=100")
"""A hundredth of a cent a token, so that a few calls cost dimes."""

SLOW = plan_goal("the whole", task("slow EHANG=60"), task("quick"))


def tokens(scripted: Scripted) -> float:
    stats = scripted.stats()
    return stats["prompt_tokens"] + stats["completion_tokens"]


def usd(scripted: Scripted) -> float:
    return tokens(scripted) / 10_000


def answered(scripted: Scripted) -> float:
    return scripted.stats()["answered"]


LIMITS = [
    ("max_lm_calls", 9, "N=8 of it", answered),
    ("max_tokens", 3_500, "N=8 of it", tokens),
    ("max_cost_usd", 0.35, "N=8 of it", usd),
]


@pytest.mark.parametrize(("name", "limit", "goal", "spent"), LIMITS, ids=[row[0] for row in LIMITS])
async def test_a_spending_limit_holds_and_ends_in_a_partial_answer(
    inline: Solving, scripted: Scripted, name: str, limit: float, goal: str, spent: Callable[[Scripted], float]
) -> None:
    bounded = ("lm.max_tokens=300", *PRICE, "limits.max_depth=1")
    control = await inline(goal, *bounded)
    assert control.status == "completed"
    assert spent(scripted) > limit, "the control run exceeds the limit"
    scripted.reset()
    result = await inline(goal, *bounded, f"limits.{name}={limit}")
    assert (result.status.value, result.exit_code, result.limit_reached) == ("partial", 4, name)
    assert result.output, "a partial answer, not nothing"
    assert 0 < spent(scripted) <= limit
    assert any(name in text for text in result.warnings)


async def test_200_children_at_once_do_not_overdraw_the_purse(inline: Solving, scripted: Scripted) -> None:
    scripted.reset(latency_s=0.01, jitter_s=0.02, seed=3)
    wide = ("limits.max_subtasks=300", "limits.max_nodes=500", "lm.max_concurrency=300")
    result = await inline("N=200 of it", *wide, "limits.max_lm_calls=150")
    assert result.limit_reached == "max_lm_calls"
    assert scripted.stats()["answered"] == result.usage.lm_calls <= 150
    assert scripted.stats()["by_role"]["aggregator"] == 1, "its call was kept for it"


@pytest.mark.parametrize(("limit", "executors"), [(4, 3), (1, 1)])
async def test_max_nodes_cuts_the_plan_or_does_without_one(
    inline: Solving, scripted: Scripted, limit: int, executors: int
) -> None:
    assert (await inline("N=8 of it", "limits.max_depth=1")).status == "completed"
    assert scripted.stats()["by_role"]["executor"] == 8
    scripted.reset()
    result = await inline("N=8 of it", "limits.max_depth=1", f"limits.max_nodes={limit}")
    assert (result.status.value, result.limit_reached) == ("partial", "max_nodes")
    assert scripted.stats()["by_role"]["executor"] == executors
    assert len(list(result.state.walk())) <= limit


@pytest.mark.parametrize("name", ["node_timeout_s", "run_timeout_s"])
async def test_a_time_limit_ends_what_is_slow_and_keeps_what_is_done(
    inline: Solving, scripted: Scripted, name: str
) -> None:
    result = await inline(SLOW, "limits.max_depth=1", "lm.timeout_s=120", f"limits.{name}=2")
    assert (result.status.value, result.exit_code, result.limit_reached) == ("partial", 4, name)
    assert {child["goal"]: child["status"] for child in result.tree["children"]} == {
        "slow EHANG=60": "failed",
        "quick": "completed",
    }
    assert "SYN" in str(result.output), "the Aggregator has a grace of its own"


async def test_the_shape_of_the_tree_is_no_limit_reached(inline: Solving, scripted: Scripted) -> None:
    result = await inline("N=30 of it", "limits.max_depth=1", "limits.max_subtasks=3")
    assert (result.status.value, result.limit_reached) == ("completed", "")
    assert scripted.stats()["by_role"]["executor"] == 3


async def test_max_revisions_bounds_what_a_stubborn_verifier_may_ask_for(inline: Solving, scripted: Scripted) -> None:
    for revisions in (0, 2):
        scripted.reset()
        await inline("VERDICT=false say it", "verify=root", f"limits.max_revisions={revisions}")
        assert scripted.stats()["by_role"]["executor"] == revisions + 1


async def test_a_money_limit_without_a_known_price_is_refused_before_the_first_call(
    inline: Solving, scripted: Scripted
) -> None:
    from roma_ray.errors import PriceUnknown

    with pytest.raises(PriceUnknown, match="openai/scripted"):
        await inline("anything", "limits.max_cost_usd=1")
    assert scripted.stats()["requests"] == 0


async def test_a_dry_run_plans_estimates_and_stops(inline: Solving, scripted: Scripted) -> None:
    result = await inline("N=3 of it", "dry_run=true", *PRICE)
    assert result.status == "completed"
    assert scripted.stats()["by_role"] == {"atomizer": 1, "planner": 1}
    report: dict[str, Any] = result.output
    assert (report["decision"], len(report["plan"]), report["calls"]) == ("PLAN", 3, 7)
    scripted.reset()
    real = await inline("N=3 of it", *PRICE)
    assert real.usage.lm_calls == report["calls"] + 2, "Atomizer and Planner were paid in the dry run"
    assert real.usage.cost_usd is not None
    assert real.usage.cost_usd < report["max_cost_usd"]


async def test_too_much_for_one_aggregator_is_folded_in_groups(inline: Solving, scripted: Scripted) -> None:
    goal = plan_goal("the whole", *(task(f"part {i} SIZE=9000") for i in range(12)))
    result: Result = await inline(goal, "limits.max_depth=1", "agents.aggregator.lm.context_tokens=3000")
    assert result.status == "completed"
    assert scripted.stats()["by_role"]["aggregator"] == 3, "two groups of six, then the two together"


async def test_files_reach_every_level_of_the_tree(inline: Solving, scripted: Scripted, tmp_path: Any) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("the keeper is called Ödön", encoding="utf-8")
    await inline("TREE=2:2", f"files=[{file}]")
    for entry in scripted.log("executor"):
        assert "the keeper is called Ödön" in json.dumps(entry["messages"], ensure_ascii=False)


async def test_an_answer_that_must_fit_a_schema_is_json_or_is_asked_for_again(
    inline: Solving, scripted: Scripted, tmp_path: Any
) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object", "required": ["year"], "properties": {"year": {"type": "integer"}}}))
    result = await inline('ESAY<<{"year": 1931}>> when', f"answer={schema}")
    assert result.output == {"year": 1931}
    scripted.reset()
    result = await inline("ESAY<<no json>> when", f"answer={schema}")
    assert (result.status.value, scripted.stats()["by_role"]["executor"]) == ("partial", 2)
