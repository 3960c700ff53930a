"""A process that stood still beyond its lease finds its run in other hands, and changes nothing any more."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from roma_ray.types import RunStatus
from tests.end_to_end.driver import PATIENCE_S, Driver
from tests.faults.books import request_of
from tests.faults.site import Site
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(300)

# The Atomizer of one part and the Executor of another are not answered before the server lets go.
GOAL = plan_goal("the whole", task("part one"), task("part two EHOLD"), task("part three AHOLD"))


def taken_over(site: Site, run_id: str, held_by: int) -> Driver:
    """The driver that gets the run, as soon as its lease has lapsed."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        driver = site.start(f"resume={run_id}")
        while driver.process.poll() is None:
            if site.state(run_id).epoch == 2:
                return driver
            time.sleep(0.1)
        assert driver.process.returncode == 2
        assert f"R0108 run {run_id} is held by pid {held_by}" in driver.stderr
        time.sleep(1)
    raise AssertionError("the run could not be taken over")


@pytest.mark.parametrize("backend", ["inline", pytest.param("local", marks=[pytest.mark.ray, pytest.mark.slow])])
def test_a_driver_that_wakes_up_late_is_refused_and_the_result_is_that_of_the_one_that_took_over(
    site: Site, backend: str
) -> None:
    first = site.start(f"goal={GOAL}", backend=backend)
    first.wait_committed(site.scripted, answered=5, open_now=2)
    run_id = first.run_id()
    first.process.send_signal(signal.SIGSTOP)

    second = taken_over(site, run_id, first.process.pid)
    site.scripted.wait_for(open_now=4)
    site.scripted.release()
    code, document = second.finish()
    assert (code, document["status"]) == (0, "completed")
    story = site.events(run_id)

    first.process.send_signal(signal.SIGCONT)
    code, late = first.finish()
    assert (code, late["error"]["code"]) == (75, "R0308"), first.stderr
    assert site.events(run_id) == story, "nothing that the first did counts"
    assert {event.epoch for event in story} == {1, 2}
    assert site.state(run_id).status is RunStatus.COMPLETED
    # Open at the takeover were one call of each held part; everything else was asked once, so the first's processes
    # began nothing new when they had their answers.
    asked = Counter(request_of(entry) for entry in site.scripted.log())
    assert {request: count for request, count in asked.items() if count > 1} == {
        ("executor", "part two EHOLD"): 2,
        ("atomizer", "part three AHOLD"): 2,
    }
    assert document["usage"]["lm_calls"] == len(asked)
