"""A wall clock that is set while a run goes on changes nothing but the times that people read."""

from __future__ import annotations

from pathlib import Path

import pytest

from roma_ray.runlog.events import EventType
from tests.faults.site import Site
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(200)

# Read at the start of every Python process that finds it: its wall clock is off by what the file says.
SHIFTED = """
import os, time
from pathlib import Path
real, offset = time.time, Path(os.environ["CLOCK_OFFSET"])
time.time = lambda: real() + float(offset.read_text())
"""
HOUR_S = 3600.0


class Clock:
    """The wall clock of all drivers that get `environ`."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self.set(0.0)
        (folder / "sitecustomize.py").write_text(SHIFTED)
        self.environ = {"PYTHONPATH": str(folder), "CLOCK_OFFSET": str(self._offset)}

    def set(self, offset_s: float) -> None:
        # In one go: it is read all the time.
        part = self._offset.with_suffix(".part")
        part.write_text(str(offset_s))
        part.replace(self._offset)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    folder = tmp_path / "clock"
    folder.mkdir()
    return Clock(folder)


def test_a_clock_that_jumps_neither_ends_a_run_nor_frees_it_for_others(site: Site, clock: Clock) -> None:
    goal = plan_goal("the whole", task("part one"), task("part two EHOLD"), task("part three EHOLD", needs=[1]))
    driver = site.start(f"goal={goal}", "limits.run_timeout_s=100", **clock.environ)
    driver.wait_committed(site.scripted, answered=5, open_now=1)
    run_id = driver.run_id()
    for offset_s in (2 * HOUR_S, -HOUR_S):
        clock.set(offset_s)
        # One process that has the same clock, and one that has another.
        for environ in (clock.environ, {}):
            other = site.start(f"resume={run_id}", **environ)
            assert other.process.wait(60) == 2
            assert "R0108" in other.stderr
    driver.kill()
    site.scripted.wait_for(gone=1)

    clock.set(HOUR_S)
    driver = site.start(f"resume={run_id}", **clock.environ)
    driver.wait_committed(site.scripted, answered=5, open_now=1)
    clock.set(-2 * HOUR_S)
    site.scripted.release()
    code, document = driver.finish()
    assert (code, document["status"]) == (0, "completed")
    state = site.state(run_id)
    assert 0 < state.ran_s < 100
    assert document["wall_s"] == pytest.approx(state.ran_s, abs=0.01)
    times = [event.time_s for event in site.events(run_id)]
    assert max(times) - min(times) > 2 * HOUR_S, "the clock did jump"
    waits = [event.payload.get("wait_s", 0.0) for event in site.events(run_id) if event.type is EventType.CALL_WAITING]
    assert all(wait_s >= 0 for wait_s in waits)


def test_the_time_that_a_killed_process_ran_counts_towards_the_limit_whatever_the_clock_says(
    site: Site, clock: Clock
) -> None:
    limit_s, spent_s = 8, 5
    goal = plan_goal("the whole", task(f"part one ELAT={spent_s}"), task("part two EHOLD", needs=[0]))
    driver = site.start(f"goal={goal}", f"limits.run_timeout_s={limit_s}", **clock.environ)
    driver.wait_committed(site.scripted, answered=4, open_now=1)
    clock.set(-HOUR_S)
    driver.kill()
    site.scripted.wait_for(gone=1)
    driver = site.start(f"resume={driver.run_id()}", **clock.environ)
    code, document = driver.finish()
    assert (code, document["status"], document["limit_reached"]) == (4, "partial", "run_timeout_s")
    state = site.state(driver.run_id())
    assert state.ran_s >= limit_s
    assert state.epoch_ran_s < limit_s - spent_s + 1, "what was left, not the whole of it"
