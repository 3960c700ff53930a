"""The database does what it is asked for, and only its answer is lost: nothing happens twice."""

from __future__ import annotations

from pathlib import Path

from roma_ray.faults import POINTS
from tests.faults.books import steps_done_again
from tests.faults.site import Site
from tests.scripted.directives import plan_goal, task

GOAL = plan_goal("the whole", task("part one"), task("part two", needs=[0]), task("part three"))
POINTS_OF_LOG = [point.name for point in POINTS if point.name.startswith("runlog.")]


def test_a_lost_answer_at_every_point_of_the_run_log_changes_nothing(site: Site, tmp_path: Path) -> None:
    expected = site.unfaulted(GOAL)
    once = tmp_path / "once"
    once.mkdir()
    nth = {"runlog.begin": 3, "runlog.before_commit": 4, "runlog.after_commit": 5}
    faults = ",".join(f"{name}=raise@{nth.get(name, 1)}" for name in POINTS_OF_LOG)
    environ = {"ROMA_RAY_FAULTS": faults, "ROMA_RAY_FAULTS_ONCE": str(once)}

    # Made, left waiting, written to, taken over, brought to its end, begun anew as a fork, removed.
    assert site.start(f"goal={GOAL}", "approve=plan", **environ).finish()[0] == 3
    (run_id,) = site.run_ids()
    assert site.command("approve", run_id, "root", **environ).returncode == 0
    code, document = site.start(f"resume={run_id}", **environ).finish()
    assert (code, document["output"]) == (0, expected)
    assert site.command("rerun", run_id, "--from", "root.2", **environ).returncode == 0
    first, forked = site.events(run_id), site.events(site.run_ids()[0])
    assert site.command("prune", "--older-than", "0s", "--yes", **environ).returncode == 0

    assert {path.name for path in once.iterdir()} == set(POINTS_OF_LOG)
    for story in (first, forked):
        assert [event.seq for event in story] == list(range(1, len(story) + 1))
        assert steps_done_again(story) == []
    assert site.run_ids() == []
    # Four Atomizers, a Planner, three Executors, an Aggregator; and for the fork the part and the Aggregator again.
    assert site.scripted.stats()["answered_by_role"] == {"atomizer": 5, "planner": 1, "executor": 4, "aggregator": 2}
