"""On Ray whatever dies, the engine does the lost steps again, each once, and goes on with what is stored."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.chaos.cluster import ENVIRON, two_nodes
from roma_ray.faults import POINTS
from roma_ray.runlog.events import EventType
from tests.faults.books import request_of, steps_done_again
from tests.faults.site import Site
from tests.faults.test_every_point import GOAL, IDEAL, acted, armed
from tests.scripted.directives import plan_goal, task

pytestmark = [pytest.mark.ray, pytest.mark.timeout(500)]

IN_WORKERS = [point.name for point in POINTS if point.name.startswith(("cluster.", "lm.", "storage."))]


@pytest.mark.slow
def test_a_worker_that_dies_at_every_point_of_a_node_task_is_replaced_and_nothing_is_paid_twice(
    sqlite_site: Site, tmp_path: Path
) -> None:
    site = sqlite_site
    expected = site.unfaulted(GOAL)
    # One node passes six of them, and may die alone as often.
    patient = ("cluster.max_attempts=10",)
    driver = site.start(f"goal={GOAL}", *patient, backend="local", **armed(IN_WORKERS, tmp_path / "once"))
    code, document = driver.finish()
    assert acted(tmp_path / "once") == set(IN_WORKERS)
    assert (code, document["status"], document["output"]) == (0, "completed", expected)
    story = site.events(document["run_id"])
    assert steps_done_again(story) == []
    assert sum(event.type is EventType.WORKER_LOST for event in story) >= len(IN_WORKERS)
    assert document["usage"]["lm_calls"] == sum(IDEAL.values())


@pytest.mark.slow
def test_a_worker_a_raylet_and_the_driver_die_one_after_another_and_each_step_is_done_once(sqlite_site: Site) -> None:
    site, held = sqlite_site, [f"held {number} EHOLD" for number in range(4)]
    parts = [task("part one SIZE=60000"), *map(task, held), task("the last part", needs=[0, 1])]
    goal = plan_goal("the whole", *parts)
    expected = site.unfaulted(goal)

    def lost() -> int:
        return sum(event.type is EventType.WORKER_LOST for event in driver.events())

    def all_open_after(losses: int) -> bool:
        return lost() >= losses and site.scripted.stats()["open"] == len(held)

    with two_nodes() as nodes:
        on_cluster = (f"cluster.address={nodes.address}",)
        driver = site.start(f"goal={goal}", *on_cluster, backend="auto", **ENVIRON)
        driver.wait_completed("root.0")
        driver.wait_committed(site.scripted, answered=8, open_now=len(held))
        # All of them, so that the value of part one is in no memory any more.
        for worker in nodes.workers():
            worker.kill()
        driver.wait_until(lambda: all_open_after(len(held)) and bool(nodes.workers_of_second()))
        nodes.kill_raylet()
        # Those that were on that node are lost, the others go on.
        driver.wait_until(lambda: all_open_after(len(held) + 1))
        losses = lost()
        driver.kill()
        nodes.wait_for_no_workers()
        nodes.bring_back()
        site.scripted.release()
        run_id = driver.run_id()
        code, document = site.start(f"resume={run_id}", *on_cluster, backend="auto", **ENVIRON).finish()
    assert (code, document["run_id"], document["output"]) == (0, run_id, expected)
    assert len(held) < losses <= 2 * len(held)
    story = site.events(run_id)
    assert steps_done_again(story) == []
    asked = Counter(map(request_of, site.scripted.log()))
    repeats = sum(asked.pop(("executor", goal)) - 1 for goal in held)
    # Open when the workers died, when the raylet did, and when the driver did.
    assert repeats == losses + len(held)
    assert set(asked.values()) == {1}
    assert document["usage"]["lm_calls"] == len(asked) + len(held)
