"""A run whose process dies again and again without getting further is given up, until somebody resumes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from roma_ray.types import RunStatus
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(200)

POISON = {"ROMA_RAY_FAULTS": "lm.answered=exit@1"}


def test_a_step_that_kills_its_process_ends_in_a_dead_letter_that_names_it_and_a_resume_opens_it(
    tmp_path: Path, scripted: Scripted
) -> None:
    limit = "limits.max_recoveries=2"
    driver = Driver(tmp_path, scripted, "goal=poison", limit, **POISON)
    driver.process.wait(60)
    run_id = driver.run_id()
    for _ in range(2):
        driver = Driver(tmp_path, scripted, f"resume={run_id}", **POISON)
        assert driver.process.wait(60) == 137
    asked_so_far = scripted.stats()["requests"]

    code, document = Driver(tmp_path, scripted, f"resume={run_id}", **POISON).finish()
    assert (code, document["status"], document["error"]["code"]) == (1, "dead_letter", "R0503")
    assert "died 3 times in a row" in document["error"]["message"]
    assert "at work were: root" in document["error"]["message"]
    assert scripted.stats()["requests"] == asked_so_far, "nothing is spent on a dead letter"

    code, document = Driver(tmp_path, scripted, f"resume={run_id}").finish()
    assert (code, document["status"]) == (0, "completed")


def test_a_run_that_gets_further_each_time_is_no_dead_letter(tmp_path: Path, scripted: Scripted) -> None:
    goal = plan_goal("the whole", *(task(f"part {i}", needs=[i - 1] if i else []) for i in range(4)))
    faults = {"ROMA_RAY_FAULTS": "step.after_commit=exit@1"}
    driver = Driver(tmp_path, scripted, f"goal={goal}", "limits.max_recoveries=1", **faults)
    driver.process.wait(60)
    run_id = driver.run_id()
    codes = []
    while not codes or codes[-1] == 137:
        driver = Driver(tmp_path, scripted, f"resume={run_id}", **faults)
        codes.append(driver.process.wait(60))
    # Six steps, the last of which dies after it was committed.
    assert codes == [137] * 5 + [0]
    assert driver.state().status is RunStatus.COMPLETED
    assert scripted.stats()["answered_by_role"] == {"atomizer": 5, "planner": 1, "executor": 4, "aggregator": 1}
