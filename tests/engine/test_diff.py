"""In which respects two runs differ."""

from __future__ import annotations

from roma_ray.engine.diff import Change, diff
from roma_ray.engine.state import RunState
from roma_ray.engine.tree import fold
from roma_ray.types import PlannedTask, RunStatus, StepKey
from tests.engine.test_tree import Log, ok


def run(*goals: str, output: str = "v", status: RunStatus = RunStatus.COMPLETED, **config: object) -> RunState:
    log = Log()
    log.events[0].payload["config"] = config
    log.planned("root", *(PlannedTask(goal=goal) for goal in goals))
    for number, goal in enumerate(goals):
        key = StepKey(f"root.{number}", "descend")
        log.call(key).done(key, ok(f"result of {goal}"))
    return fold(log.done(StepKey("root", "ascend"), ok(output)).ended(status).events)


def test_two_runs_that_came_out_alike_have_no_differences() -> None:
    found = diff(run("a", "b"), run("a", "b"))
    assert not (found.run or found.settings or found.only_before or found.only_after or found.nodes)


def test_settings_status_and_spending_are_compared_by_name() -> None:
    before = run("a", limits={"max_depth": 2}, verify="off", output="text")
    found = diff(before, run("a", "b", status=RunStatus.PARTIAL, limits={"max_depth": 3}, verify="off"))
    assert Change(name="status", before="completed", after="partial") in found.run
    assert Change(name="usage.lm_calls", before=1, after=2) in found.run
    assert found.settings == (Change(name="limits.max_depth", before=2, after=3),)


def test_nodes_that_only_one_has_are_listed_and_the_others_compared() -> None:
    found = diff(run("a", "b"), run("a", "c", "d"))
    assert (found.only_before, found.only_after) == ((), ("root.2",))
    (node,) = found.nodes
    assert node.id == "root.1"
    assert node.changes == (Change(name="goal", before="b", after="c"),)
    assert node.output == ("@@ -1 +1 @@", "-result of b", "+result of c")


def test_a_long_output_shows_its_first_differences_and_counts_the_rest() -> None:
    before, after = ("\n".join(f"{word} {i}" for i in range(500)) for word in ("old", "new"))
    (root,) = diff(run("a", output=before), run("a", output=after)).nodes
    assert len(root.output) == 41 and root.output[-1] == "… and 961 more lines"


def test_it_is_plain_data_for_machines() -> None:
    document = diff(run("a"), run("b")).to_plain()
    assert list(document) == ["before", "after", "run", "settings", "only_before", "only_after", "nodes"]


def test_settings_are_shown_without_secrets_and_still_differ() -> None:
    before, after = (run("a", lm={"api_base": f"https://user:{word}@gw/v1"}) for word in ("hunter22", "another-one"))
    (change,) = diff(before, after).settings
    assert change == Change(name="lm.api_base", before="https://***@gw/v1", after="https://***@gw/v1")
