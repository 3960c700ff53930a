"""A run is not gone on with by another definition than it began with, unless one says what is to become of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.driver import Driver
from tests.faults.site import Site
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(200)

GOAL = plan_goal("the whole", task("one"), task("two EHOLD"))


@pytest.fixture
def stopped(tmp_path: Path, scripted: Scripted) -> tuple[Driver, Path]:
    """A killed run whose part two is not done, and the template that its Executor's instructions come from."""
    template = tmp_path / "style.jinja"
    template.write_text("Answer briefly.")
    instructions = f"agents.executor.instructions={template}"
    driver = Driver(tmp_path, scripted, f"goal={GOAL}", instructions)
    driver.wait_committed(scripted, answered=5, open_now=1)
    driver.kill()
    scripted.release()
    scripted.wait_for(open_now=0)
    return driver, template


def requests_of(scripted: Scripted) -> int:
    return scripted.stats()["requests"]


def test_a_change_is_named_and_nothing_is_asked(stopped: tuple[Driver, Path], scripted: Scripted) -> None:
    driver, template = stopped
    before = requests_of(scripted)
    code, document = Driver(driver.home, scripted, f"resume={driver.run_id()}", "lm.temperature=0.5").finish()
    assert (code, document["error"]["code"]) == (2, "R0109")
    assert "lm.temperature was None and is 0.5" in document["error"]["message"]

    template.write_text("Answer at length.")
    code, document = Driver(driver.home, scripted, f"resume={driver.run_id()}").finish()
    assert code == 2
    assert f"agents.executor.instructions ({template}) has changed" in document["error"]["message"]
    assert "on_change=fork" in document["error"]["cure"]
    assert requests_of(scripted) == before


def test_accept_goes_on_with_the_change_and_later_resumes_know_it(
    stopped: tuple[Driver, Path], scripted: Scripted
) -> None:
    driver, template = stopped
    template.write_text("Answer at length.")
    code, document = Driver(
        driver.home, scripted, f"resume={driver.run_id()}", "lm.temperature=0.5", "on_change=accept"
    ).finish()
    assert (code, document["run_id"]) == (0, driver.run_id())
    last = [call["request"] for call in driver.committed() if call["role"] == "executor"][-1]
    assert "Answer at length." in str(last)
    assert last["config"]["temperature"] == 0.5
    code, _ = Driver(driver.home, scripted, f"resume={driver.run_id()}").finish()
    assert code == 0


def test_fork_keeps_what_is_done_in_a_new_run_and_leaves_the_old_one(
    stopped: tuple[Driver, Path], scripted: Scripted
) -> None:
    driver, template = stopped
    old = driver.state()
    template.write_text("Answer at length.")
    answered = scripted.stats()["answered_by_role"]
    code, document = Driver(driver.home, scripted, f"resume={old.run_id}", "on_change=fork").finish()
    assert (code, document["status"]) == (0, "completed")
    assert document["run_id"] != old.run_id
    # The Atomizer of part two was answered before; its Executor is asked by the new instructions.
    assert document["usage"]["cached_calls"] >= sum(answered.values()) - 1
    assert {role: n - answered.get(role, 0) for role, n in scripted.stats()["answered_by_role"].items()} == {
        "atomizer": 0,
        "planner": 0,
        "executor": 1,
        "aggregator": 1,
    }


def test_the_fork_of_a_run_that_ended_tries_again_what_failed(tmp_path: Path, scripted: Scripted) -> None:
    goal = plan_goal("the whole", task("one"), task("two EFAIL=500:1"))
    driver = Driver(tmp_path, scripted, f"goal={goal}", "lm.max_retries=0")
    code, document = driver.finish()
    assert (code, document["status"]) == (4, "partial")
    before = scripted.stats()["answered_by_role"]
    changed = ("lm.temperature=0.5", "on_change=fork")
    code, document = Driver(tmp_path, scripted, f"resume={driver.run_id()}", *changed).finish()
    assert (code, document["status"]) == (0, "completed")
    asked = {role: n - before.get(role, 0) for role, n in scripted.stats()["answered_by_role"].items()}
    # The one that failed and what is put together from it; by the new setting nothing known answers.
    assert (asked["executor"], asked["aggregator"], asked["planner"]) == (1, 1, 0)
    # What was chosen for the fork is no setting of the new run.
    code, document = Driver(tmp_path, scripted, f"resume={document['run_id']}", "lm.temperature=0.7").finish()
    assert (code, document["error"]["code"]) == (2, "R0109")


def test_an_answer_that_nobody_has_read_goes_with_the_fork(tmp_path: Path, scripted: Scripted) -> None:
    site = Site(tmp_path, scripted, f"sqlite:///{tmp_path / 'runs.db'}")
    assert site.start(f"goal={plan_goal('the whole', task('one'), task('two'))}", "approve=plan").finish()[0] == 3
    (run_id,) = site.run_ids()
    assert site.command("approve", run_id, "root").returncode == 0
    code, document = site.start(f"resume={run_id}", "lm.temperature=0.5", "on_change=fork").finish()
    assert (code, document["status"]) == (0, "completed")
    assert document["run_id"] != run_id
