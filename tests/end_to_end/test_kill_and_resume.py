"""A run that is killed goes on where it stopped: the same answer, and nothing that was answered is asked again."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.driver import Driver, held_by
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(300)

# Two parts that are done at once, one whose Executor hangs until the server lets go, one that waits for it.
GOAL = plan_goal(
    "the whole", task("part one"), task("part two"), task("part three EHOLD"), task("part four", needs=[2])
)
IDEAL = {"atomizer": 5, "planner": 1, "executor": 4, "aggregator": 1}
BACKENDS = ["inline", pytest.param("local", marks=pytest.mark.ray)]


def unfaulted(home: Path, scripted: Scripted) -> dict[str, Any]:
    """The document of the same goal without a fault."""
    scripted.release()
    code, document = Driver(home / "unfaulted", scripted, f"goal={GOAL}").finish()
    assert code == 0
    return document


def asked(scripted: Scripted) -> Counter[tuple[str, str]]:
    return Counter((entry["role"], entry["goal"]) for entry in scripted.log())


def answered(scripted: Scripted) -> Counter[tuple[str, str]]:
    """What the server answered to somebody who was still there."""
    return Counter((e["role"], e["goal"]) for e in scripted.log() if e["status"] == 200 and not e["gone"])


def assert_paid_once(scripted: Scripted, document: dict[str, Any], *, open_at_kill: int) -> None:
    assert set(answered(scripted).values()) == {1}, "an answer that was given is not asked for again"
    repeats = sum(count - 1 for count in asked(scripted).values())
    assert repeats <= open_at_kill
    stats = scripted.stats()
    assert stats["answered_by_role"] == IDEAL
    usage = document["usage"]
    assert usage["lm_calls"] == stats["answered"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (stats["prompt_tokens"], stats["completion_tokens"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_driver_loses_nothing(tmp_path: Path, scripted: Scripted, backend: str) -> None:
    expected = unfaulted(tmp_path, scripted)
    scripted.reset()
    driver = Driver(tmp_path, scripted, f"goal={GOAL}", backend=backend)
    driver.wait_committed(scripted, answered=7, open_now=1)
    driver.kill()
    # Ray's workers outlive their driver a bit.
    scripted.wait_for(gone=1, timeout_s=60)
    scripted.release()
    code, document = Driver(tmp_path, scripted, f"resume={driver.run_id()}", backend=backend).finish()
    assert (code, document["status"], document["output"]) == (0, "completed", expected["output"])
    assert_paid_once(scripted, document, open_at_kill=1)


@pytest.mark.ray
def test_a_killed_worker_loses_nothing(tmp_path: Path, scripted: Scripted) -> None:
    expected = unfaulted(tmp_path, scripted)
    scripted.reset()
    driver = Driver(tmp_path, scripted, f"goal={GOAL}", backend="local")
    driver.wait_committed(scripted, answered=7, open_now=1)
    for worker in driver.workers():
        worker.send_signal(signal.SIGKILL)
    # Ray's workers outlive their driver a bit.
    scripted.wait_for(gone=1, timeout_s=60)
    scripted.release()
    code, document = driver.finish()
    assert (code, document["output"]) == (0, expected["output"])
    assert_paid_once(scripted, document, open_at_kill=1)


def test_a_run_may_be_killed_again_and_again(tmp_path: Path, scripted: Scripted) -> None:
    expected = unfaulted(tmp_path, scripted)
    scripted.reset()
    driver = Driver(tmp_path, scripted, f"goal={GOAL}")
    for kills in (1, 2, 3):
        driver.wait_committed(scripted, answered=7, open_now=1)
        driver.kill()
        scripted.wait_for(gone=kills, timeout_s=60)
        driver = Driver(tmp_path, scripted, f"resume={driver.run_id()}")
    driver.wait_committed(scripted, answered=7, open_now=1)
    scripted.release()
    code, document = driver.finish()
    assert (code, document["output"]) == (0, expected["output"])
    assert_paid_once(scripted, document, open_at_kill=3)


@pytest.mark.parametrize(
    ("stop", "backend"),
    [
        (signal.SIGINT, "inline"),
        # Ray's own handler would end the process at once.
        pytest.param(signal.SIGTERM, "local", marks=[pytest.mark.ray, pytest.mark.slow]),
    ],
)
def test_a_stop_signal_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, scripted: Scripted, stop: signal.Signals, backend: str
) -> None:
    driver = Driver(tmp_path, scripted, f"goal={GOAL}", backend=backend)
    driver.wait_committed(scripted, answered=7, open_now=1)
    driver.process.send_signal(stop)
    code, document = driver.finish()
    run_id = driver.run_id()
    assert (code, document["status"]) == (130, "interrupted")
    assert driver.stderr.rstrip().splitlines()[-1].endswith(f"resume={run_id}")
    scripted.wait_for(gone=1, timeout_s=60)
    scripted.release()
    code, document = Driver(tmp_path, scripted, f"resume={run_id}").finish()
    assert (code, document["status"]) == (0, "completed")
    assert_paid_once(scripted, document, open_at_kill=1)


def test_of_two_resumes_at_once_one_wins_and_the_other_says_who_holds_the_run(
    tmp_path: Path, scripted: Scripted
) -> None:
    driver = Driver(tmp_path, scripted, f"goal={GOAL}")
    driver.wait_committed(scripted, answered=7, open_now=1)
    driver.kill()
    first = Driver(tmp_path, scripted, f"resume={driver.run_id()}")
    first.wait_committed(scripted, answered=7, open_now=1)
    second = Driver(tmp_path, scripted, f"resume={driver.run_id()}")
    assert second.process.wait(60) == 2
    assert first.process.poll() is None, "the first one lives while the second is refused"
    assert second.stderr.startswith("R0108 ")
    assert held_by(second.stderr) == first.process.pid
    scripted.release()
    assert first.finish()[0] == 0


def test_resuming_a_completed_run_gives_its_result_without_a_call(tmp_path: Path, scripted: Scripted) -> None:
    scripted.release()
    driver = Driver(tmp_path, scripted, f"goal={GOAL}")
    _, first = driver.finish()
    before = scripted.stats()["requests"]
    code, again = Driver(tmp_path, scripted, f"resume={driver.run_id()}").finish()
    assert code == 0
    assert again == first
    assert scripted.stats()["requests"] == before


def test_stored_values_that_are_lost_at_every_level_are_made_anew_without_a_call(
    tmp_path: Path, scripted: Scripted
) -> None:
    deep = plan_goal("the deep part", task("leaf"), task("next leaf", needs=[0]))
    twice = plan_goal("the twin part", task("leaf"))
    goal = plan_goal("the whole", task(deep), task(twice), task("the last EHOLD", needs=[0, 1]))
    driver = Driver(tmp_path, scripted, f"goal={goal}", "storage.inline_kb=0")
    driver.wait_committed(scripted, answered=11, open_now=1)
    driver.kill()

    def lose_all() -> None:
        stored = list(tmp_path.glob("executions/*/results/*.parquet"))
        assert stored
        for path in stored:
            path.unlink()

    lose_all()
    scripted.release()
    code, document = Driver(tmp_path, scripted, f"resume={driver.run_id()}").finish()
    assert (code, document["status"]) == (0, "completed")
    assert set(answered(scripted).values()) == {1}
    lose_all()
    before = scripted.stats()["requests"]
    code, again = Driver(tmp_path, scripted, f"resume={driver.run_id()}").finish()
    assert (code, again["output"]) == (0, document["output"])
    assert scripted.stats()["requests"] == before


def test_a_failed_run_is_resumed_by_doing_only_what_failed(tmp_path: Path, scripted: Scripted) -> None:
    goal = plan_goal("the whole", task("fine"), task("breaks EFAIL=500:1"), task("after", needs=[1]))
    driver = Driver(tmp_path, scripted, f"goal={goal}", "lm.max_retries=0")
    code, document = driver.finish()
    assert (code, document["status"]) == (4, "partial")
    before = asked(scripted)
    code, document = Driver(tmp_path, scripted, f"resume={driver.run_id()}").finish()
    assert (code, document["status"]) == (0, "completed")
    again = asked(scripted) - before
    assert again == Counter(
        {
            ("executor", "breaks EFAIL=500:1"): 1,
            ("atomizer", "after"): 1,
            ("executor", "after"): 1,
            ("aggregator", goal): 1,
        }
    )


def test_a_resume_may_raise_a_limit_but_not_change_the_work(tmp_path: Path, scripted: Scripted) -> None:
    driver = Driver(tmp_path, scripted, "goal=N=5 parts", "limits.max_lm_calls=5")
    code, document = driver.finish()
    assert (code, document["limit_reached"]) == (4, "max_lm_calls")
    changed = Driver(tmp_path, scripted, f"resume={driver.run_id()}", "limits.max_depth=3", "verify=root")
    assert changed.process.wait(60) == 2
    assert changed.stderr.startswith("R0109 verify")
    code, document = Driver(tmp_path, scripted, f"resume={driver.run_id()}", "limits.max_lm_calls=50").finish()
    assert (code, document["status"], document["limit_reached"]) == (0, "completed", None)
