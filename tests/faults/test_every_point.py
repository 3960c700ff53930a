"""A run whose process is killed at every point that has a name gives the same answer, and nothing is paid twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from roma_ray.faults import POINTS
from roma_ray.types import NodeStatus, RunStatus
from tests.faults.books import Books
from tests.faults.site import KILLED, Site
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(300)

# Twelve nodes, one value of which is too large for the run log.
GOAL = plan_goal(
    "the whole",
    task("part one SIZE=60000"),
    task("part two"),
    task("part three"),
    task("part four", needs=[0]),
    task(plan_goal("the branch", task("leaf one"), task("leaf two", needs=[0]), task("leaf three"), task("leaf four"))),
    task("part six", needs=[4]),
    task("part seven"),
)
NODES = 12
IDEAL = {"atomizer": 12, "planner": 2, "executor": 10, "aggregator": 2}

# The hit at which a process dies, where it is not the first; few, because each process has less left to do.
NTH = {
    "step.before_submit": 3,
    "step.before_commit": 2,
    "step.after_commit": 2,
    "runlog.begin": 3,
    "runlog.before_commit": 3,
    "runlog.after_commit": 4,
    "cluster.task_received": 2,
    "cluster.outcome_yielded": 2,
    "lm.before_send": 3,
    "lm.answered": 3,
    "lm.before_record": 2,
}
# What a run passes once it has ended is tried with one run for each: a run that has ended is not taken again.
ENDING = ["run.after_end", "runlog.before_release", "runlog.after_release"]
FORKING = ["runlog.before_import", "runlog.after_import", "fork.imported"]
ASKING = ["approval.asked", "approval.answered", "runlog.before_acknowledge", "runlog.after_acknowledge"]
OUTSIDE = [f"runlog.{when}_{call}" for call in ("send", "delete") for when in ("before", "after")]
SOLVING = [point.name for point in POINTS if point.name not in {*ENDING, *FORKING, *ASKING, *OUTSIDE}]
SMALL = plan_goal("the small whole", task("first"), task("second"))


def armed(names: list[str], folder: Path) -> dict[str, str]:
    """The environment in which one process dies at each of these points."""
    folder.mkdir()
    faults = ",".join(f"{name}=exit@{NTH.get(name, 1)}" for name in names)
    return {"ROMA_RAY_FAULTS": faults, "ROMA_RAY_FAULTS_ONCE": str(folder)}


def acted(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_driver_that_dies_at_every_point_of_a_solve_pays_once_and_answers_the_same(
    site: Site, tmp_path: Path
) -> None:
    expected = site.unfaulted(GOAL)
    environ, books = armed(SOLVING, tmp_path / "once"), Books()
    deaths, document = site.until_it_ends(
        f"goal={GOAL}", f"limits.max_recoveries={2 * len(SOLVING)}", on_death=lambda: site.note_death(books), **environ
    )
    assert acted(tmp_path / "once") == set(SOLVING)
    # Two threads may each pass a point of their own before the process is gone.
    assert 0.8 * len(SOLVING) <= deaths <= len(SOLVING)
    assert (document["status"], document["output"]) == ("completed", expected)
    (run_id,) = site.run_ids()
    books.check(site.scripted.log(), site.events(run_id))
    state = site.state(run_id)
    assert state.status is RunStatus.COMPLETED
    assert [node.status for node in state.walk()] == [NodeStatus.COMPLETED] * NODES
    assert document["usage"]["lm_calls"] == sum(IDEAL.values())


@pytest.mark.parametrize("point", ENDING)
def test_a_driver_that_dies_at_the_end_of_its_run_leaves_a_completed_one(site: Site, point: str) -> None:
    assert site.start(f"goal={SMALL}", ROMA_RAY_FAULTS=f"{point}=exit").process.wait(60) == KILLED
    (run_id,) = site.run_ids()
    assert site.state(run_id).status is RunStatus.COMPLETED
    before = site.scripted.stats()["requests"]
    code, document = site.start(f"resume={run_id}").finish()
    assert (code, document["status"], site.scripted.stats()["requests"]) == (0, "completed", before)


def test_a_rerun_that_dies_at_every_point_of_its_beginning_is_begun_once(site: Site, tmp_path: Path) -> None:
    assert site.start(f"goal={SMALL}").finish()[0] == 0
    (first,) = site.run_ids()
    asked = site.scripted.stats()["requests"]
    environ = armed(FORKING, tmp_path / "once")
    rerun = ("rerun", first, "--from", "root.1")
    # Before the import there is nothing; after it there is a run that a resume goes on with.
    assert site.command(*rerun, **environ).returncode == KILLED
    assert site.run_ids() == [first]
    for begun in (2, 3):
        assert site.command(*rerun, **environ).returncode == KILLED
        assert len(site.run_ids()) == begun
    assert acted(tmp_path / "once") == set(FORKING)
    for run_id in site.run_ids()[:2]:
        code, document = site.start(f"resume={run_id}").finish()
        assert (code, document["status"]) == (0, "completed")
    # The Atomizer and the Executor of one part and the Aggregator, for each of the two.
    assert site.scripted.stats()["requests"] == asked + 6


def test_an_approval_survives_a_death_at_every_point_on_its_way(site: Site, tmp_path: Path) -> None:
    environ = armed(ASKING, tmp_path / "once")
    # Calls that take a while: the run is not to end before the answer is off the inbox.
    goal = plan_goal("the small whole", task("first ELAT=1"), task("second ELAT=1"))
    assert site.start(f"goal={goal}", "approve=plan", **environ).process.wait(60) == KILLED
    (run_id,) = site.run_ids()
    code, document = site.start(f"resume={run_id}", **environ).finish()
    assert (code, document["status"]) == (3, "waiting")
    assert site.command("approve", run_id, "root").returncode == 0
    deaths, document = site.until_it_ends(**environ)
    assert acted(tmp_path / "once") == set(ASKING)
    assert 2 <= deaths <= 3
    assert document["status"] == "completed"
    assert [a.verdict for a in site.state(run_id).approvals.values()] == ["approve"]
    assert site.scripted.stats()["answered_by_role"]["planner"] == 1


def test_a_message_or_a_removal_that_dies_half_way_has_happened_or_not(site: Site) -> None:
    assert site.start(f"goal={SMALL}", "approve=plan").finish()[0] == 3
    (run_id,) = site.run_ids()
    for point, waits in (("runlog.before_send", 0), ("runlog.after_send", 1)):
        code = site.command("approve", run_id, "root", ROMA_RAY_FAULTS=f"{point}=exit").returncode
        assert (code, len(site.pending(run_id))) == (KILLED, waits)
    assert site.start(f"resume={run_id}").finish()[0] == 0
    for point, left in (("runlog.before_delete", 1), ("runlog.after_delete", 0)):
        prune = ("prune", "--older-than", "0s", "--yes")
        assert site.command(*prune, ROMA_RAY_FAULTS=f"{point}=exit").returncode == KILLED
        assert len(site.run_ids()) == left
