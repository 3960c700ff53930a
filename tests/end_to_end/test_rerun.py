"""A run that is done anew from one of its nodes: what is not downstream is kept and costs nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from roma_ray.api import load_state, rerun
from roma_ray.engine.result import Result
from roma_ray.errors import UsageError
from roma_ray.types import RunStatus
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(200)

GOAL = plan_goal(
    "the whole",
    task("alpha"),
    task(plan_goal("beta", task("beta one"), task("beta two", needs=[0]))),
    task("gamma", needs=[1]),
    task("delta SIZE=60000"),
)
IDEAL = {"atomizer": 7, "planner": 2, "executor": 5, "aggregator": 2}


@pytest.fixture
def first(tmp_path: Path, scripted: Scripted) -> Driver:
    """A finished run of GOAL; the server's counters begin anew after it."""
    driver = Driver(tmp_path, scripted, f"goal={GOAL}")
    code, _ = driver.finish()
    assert code == 0
    assert scripted.stats()["answered_by_role"] == IDEAL
    scripted.reset()
    return driver


def done_anew(driver: Driver, monkeypatch: pytest.MonkeyPatch, *, node: str, **rest: Any) -> Result:
    monkeypatch.setenv("ROMA_RAY_HOME", str(driver.home))
    return asyncio.run(rerun(driver.run_id(), node=node, **rest))


def test_only_what_is_downstream_of_the_node_is_asked_again(
    first: Driver, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = first.state()
    result = done_anew(first, monkeypatch, node="root.1.1")
    assert result.status is RunStatus.COMPLETED
    # Itself, what depends on its parent, and what puts them together.
    asked = {(entry["role"], entry["goal"].split(" PLAN")[0]) for entry in scripted.log()}
    assert asked == {
        ("atomizer", "beta two"),
        ("executor", "beta two"),
        ("aggregator", "beta"),
        ("atomizer", "gamma"),
        ("executor", "gamma"),
        ("aggregator", "the whole"),
    }
    assert result.usage.lm_calls == scripted.stats()["answered"] == 6
    assert result.usage.cached_calls == sum(IDEAL.values()) - 6
    assert result.state.forked_from == {"run_id": old.run_id, "node_id": "root.1.1"}
    again = asyncio.run(load_state(first.config, old.run_id))
    assert again == old, "the first run stays as it was"


def test_another_goal_reaches_the_node_and_its_large_values_are_its_own(
    first: Driver, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = done_anew(first, monkeypatch, node="root.0", goal="omega", overrides=["limits.max_nodes=50"])
    assert result.status is RunStatus.COMPLETED
    assert [entry["goal"] for entry in scripted.log() if entry["role"] == "executor"] == ["omega"]
    assert result.tree["children"][0]["goal"] == "omega"
    large = result.state.nodes["root.3"].outcome
    assert large is not None
    assert large.handle is not None
    assert result.run_id in large.handle.path
    assert (first.home / large.handle.path).is_file()


def test_the_root_can_be_given_another_goal_and_a_node_that_is_not_there_is_named(
    first: Driver, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = done_anew(first, monkeypatch, node="root", goal="something else")
    assert (result.goal, result.usage.cached_calls) == ("something else", 0)
    with pytest.raises(UsageError, match=r"has no node root\.9 in its present tree"):
        done_anew(first, monkeypatch, node="root.9")
