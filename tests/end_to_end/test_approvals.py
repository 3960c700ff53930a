"""A person approves, edits or rejects plans and answers; the wait outlives the process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from roma_ray.api import approve, open_approvals
from roma_ray.errors import UsageError
from roma_ray.types import NodeStatus
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(200)

BACKENDS = ["inline", pytest.param("local", marks=[pytest.mark.ray, pytest.mark.slow])]
WAITING = 3


def goals(scripted: Scripted, role: str) -> list[str]:
    return [entry["goal"].split()[0] for entry in scripted.log() if entry["role"] == role]


def last_prompt(driver: Driver, role: str) -> str:
    return str([call["request"] for call in driver.committed() if call["role"] == role][-1])


def say(driver: Driver, approval_id: str, verdict: str, **answer: object) -> bool:
    return asyncio.run(approve(driver.config, driver.run_id(), approval_id, verdict=verdict, **answer)).taken  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_waits_for_approval_of_its_plan_and_goes_on_after_it(
    tmp_path: Path, scripted: Scripted, backend: str
) -> None:
    goal = plan_goal("the whole", task("one"), task("two"))
    code, document = Driver(tmp_path, scripted, f"goal={goal}", "approve=plan", backend=backend).finish()
    assert (code, document["status"]) == (WAITING, "waiting")
    (asked,) = document["approvals"]
    assert asked["id"] == "root/descend~0"
    assert [part["goal"] for part in asked["plan"]] == ["one", "two"]
    assert scripted.stats()["answered_by_role"] == {"atomizer": 1, "planner": 1}

    waiting = Driver.started[-1]
    assert not say(waiting, "root", "approve"), "nobody holds the run, so the answer lies there"
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}", backend=backend).finish()
    assert (code, document["status"]) == (0, "completed")
    assert scripted.stats()["answered_by_role"] == {"atomizer": 3, "planner": 1, "executor": 2, "aggregator": 1}


def test_three_plans_wait_while_other_branches_go_on_and_answers_bind_by_id(tmp_path: Path, scripted: Scripted) -> None:
    parts = [task("alpha N=1"), task("beta N=1"), task("gamma N=1"), task("delta")]
    arguments = (f"goal={plan_goal('the whole', *parts)}", "approve=plan")
    driver = Driver(tmp_path, scripted, *arguments)
    code, document = driver.finish()
    assert code == WAITING
    say(driver, "root/descend~0", "approve")

    driver = Driver(tmp_path, scripted, f"resume={document['run_id']}")
    code, document = driver.finish()
    assert code == WAITING
    ids = [approval["id"] for approval in document["approvals"]]
    assert sorted(ids) == ["root.0/descend~0", "root.1/descend~0", "root.2/descend~0"]
    assert "delta" in goals(scripted, "executor"), "the branch that waits for nobody went on"

    # Answered in another order than asked, one of them twice; the second answer does not count.
    say(driver, "root.2", "approve", words="first word")
    say(driver, "root.0", "approve")
    say(driver, "root.2", "reject", words="too late")
    driver = Driver(tmp_path, scripted, f"resume={document['run_id']}")
    code, document = driver.finish()
    assert code == WAITING
    assert [approval["id"] for approval in document["approvals"]] == ["root.1/descend~0"]
    assert driver.state().nodes["root.2"].status is NodeStatus.COMPLETED
    with pytest.raises(UsageError, match=r"nothing waits for approval under 'root\.2'"):
        say(driver, "root.2", "approve")

    say(driver, "root.1", "approve")
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}").finish()
    assert (code, document["status"]) == (0, "completed")
    assert sum(scripted.stats()["answered_by_role"].values()) == document["usage"]["lm_calls"]


def test_words_of_a_rejection_go_back_to_the_planner_however_often(tmp_path: Path, scripted: Scripted) -> None:
    goal = plan_goal("the whole", task("one"), task("two"))
    driver = Driver(tmp_path, scripted, f"goal={goal}", "approve=plan", "limits.max_revisions=0")
    code, document = driver.finish()
    for number, words in enumerate(("leave out the first part", "no, the second")):
        assert code == WAITING
        assert [approval["id"] for approval in document["approvals"]] == [f"root/descend~{number}"]
        with pytest.raises(UsageError, match="a rejection says nothing"):
            say(driver, "root", "reject")
        say(driver, "root", "reject", words=words)
        driver = Driver(tmp_path, scripted, f"resume={document['run_id']}")
        code, document = driver.finish()
        assert words in last_prompt(driver, "planner")
    say(driver, "root", "approve")
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}").finish()
    assert (code, document["status"]) == (0, "completed")
    assert scripted.stats()["answered_by_role"] == {"atomizer": 3, "planner": 3, "executor": 2, "aggregator": 1}


def test_a_plan_can_be_edited_and_a_faulty_edit_is_refused_before_it_is_sent(
    tmp_path: Path, scripted: Scripted
) -> None:
    goal = plan_goal("the whole", task("one"), task("two"))
    driver = Driver(tmp_path, scripted, f"goal={goal}", "approve=plan")
    _, document = driver.finish()
    circular = [{"goal": "a", "depends_on": [1]}, {"goal": "b", "depends_on": [0]}]
    for plan, reason in ((circular, "circle|cycle"), ([], "no subtask"), ([{"goals": "a"}], "has no goals")):
        with pytest.raises(UsageError, match=reason):
            say(driver, "root", "edit", plan=plan)
    mine = [{"goal": "first", "task_type": "RETRIEVE"}, {"goal": "second", "depends_on": [0]}, {"goal": "third"}]
    say(driver, "root", "edit", plan=mine)
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}").finish()
    assert code == 0
    children = document["tree"]["children"]
    assert [child["goal"] for child in children] == ["first", "second", "third"]
    assert children[1]["depends_on"] == ["root.0"]
    assert sorted(goals(scripted, "executor")) == ["first", "second", "third"]


def test_the_final_answer_can_be_approved_edited_or_sent_back(tmp_path: Path, scripted: Scripted) -> None:
    driver = Driver(tmp_path, scripted, "goal=say something", "approve=final")
    code, document = driver.finish()
    assert code == WAITING
    assert document["approvals"][0]["kind"] == "final"
    say(driver, "root", "reject", words="shorter please")
    driver = Driver(tmp_path, scripted, f"resume={document['run_id']}")
    code, document = driver.finish()
    assert code == WAITING
    assert "shorter please" in last_prompt(driver, "executor")
    say(driver, "root", "edit", value="my own words")
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}").finish()
    assert (code, document["output"]) == (0, "my own words")
    assert asyncio.run(open_approvals(driver.config, driver.run_id())) == []


def test_a_running_process_takes_an_answer_at_once_and_approve_off_waits_no_more(
    tmp_path: Path, scripted: Scripted
) -> None:
    goal = plan_goal("the whole", task("one N=1"), task("two EHOLD"))
    driver = Driver(tmp_path, scripted, f"goal={goal}", "approve=plan")
    _, document = driver.finish()
    say(driver, "root", "approve")
    driver = Driver(tmp_path, scripted, f"resume={document['run_id']}")
    driver.wait_until(lambda: any(a.key.node_id == "root.0" for a in driver.state().open_approvals))
    assert say(driver, "root.0", "approve"), "the process is alive, because the other part is still at work"
    driver.wait_until(lambda: driver.state().nodes["root.0"].status is NodeStatus.COMPLETED)
    driver.kill()
    scripted.release()
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}", "approve=off").finish()
    assert (code, document["status"]) == (0, "completed")


def test_a_final_answer_that_the_verifier_refused_to_the_last_is_put_to_the_person_too(
    tmp_path: Path, scripted: Scripted
) -> None:
    arguments = ("goal=VERDICT=false say something", "verify=root", "approve=final", "limits.max_revisions=1")
    driver = Driver(tmp_path, scripted, *arguments)
    code, document = driver.finish()
    assert (code, document["approvals"][0]["id"]) == (WAITING, "root/descend~1"), "the first may still be made better"
    say(driver, "root", "reject", words="louder please")
    driver = Driver(tmp_path, scripted, f"resume={document['run_id']}")
    code, document = driver.finish()
    assert (code, document["approvals"][0]["id"]) == (WAITING, "root/descend~2")
    assert "louder please" in last_prompt(driver, "executor")
    say(driver, "root", "edit", value="my own words")
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}").finish()
    assert (code, document["output"]) == (0, "my own words")
    assert driver.state().nodes["root"].status is NodeStatus.COMPLETED
