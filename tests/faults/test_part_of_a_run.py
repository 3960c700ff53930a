"""A part of a run fails, or the whole is cancelled: what was done is kept, and a resume does the rest."""

from __future__ import annotations

from collections import Counter

from roma_ray.types import NodeStatus
from tests.end_to_end.driver import PATIENCE_S
from tests.faults.books import request_of, steps_done_again
from tests.faults.site import Site
from tests.scripted.directives import plan_goal, task


def test_one_of_twenty_that_fails_by_the_world_is_all_that_a_resume_does_again(site: Site) -> None:
    parts = [task(f"part {number}" + (" EFAIL=500:1" if number == 7 else "")) for number in range(20)]
    goal = plan_goal("the whole", *parts)
    driver = site.start(f"goal={goal}", "lm.max_retries=0", "limits.max_subtasks=20")
    code, document = driver.finish()
    assert (code, document["status"]) == (4, "partial")
    run_id = document["run_id"]
    kept = {node.id: node.outcome for node in site.state(run_id).walk() if node.status is NodeStatus.COMPLETED}
    assert len(kept) == 19
    before = Counter(map(request_of, site.scripted.log()))

    code, document = site.start(f"resume={run_id}").finish()
    assert (code, document["status"]) == (0, "completed")
    assert Counter(map(request_of, site.scripted.log())) - before == Counter(
        {("executor", "part 7 EFAIL=500:1"): 1, ("aggregator", goal): 1}
    )
    after = {node.id: node.outcome for node in site.state(run_id).walk()}
    assert {node_id: after[node_id] for node_id in kept} == kept


def test_a_run_that_is_cancelled_in_the_middle_of_a_commit_keeps_what_was_paid_and_can_go_on(site: Site) -> None:
    # The chain ends in a call that is held: what would be answered at the moment of the cancel nobody could keep.
    chain = [task("first link"), task("link 1", needs=[0]), task("link 2", needs=[1]), task("last AHOLD", needs=[2])]
    goal = plan_goal("the whole", *chain, *(task(f"held {number} EHOLD") for number in range(5)))
    # A commit takes long while five calls are open; the word to cancel comes during it.
    slow = {"ROMA_RAY_FAULTS": "runlog.before_commit=sleep:3@12"}
    driver = site.start(f"goal={goal}", **slow)
    site.scripted.wait_for(open_now=5)
    run_id = driver.run_id()
    site.scripted.wait_for(answered=13)
    assert site.command("cancel", run_id).returncode == 0
    code, document = driver.finish()
    assert (code, document["status"], document["error"]["code"]) == (1, "cancelled", "R0500")
    site.scripted.wait_for(gone=5, timeout_s=PATIENCE_S)
    stats = site.scripted.stats()
    assert document["usage"]["lm_calls"] == stats["answered"]
    story = site.events(run_id)
    assert [event.seq for event in story] == list(range(1, len(story) + 1)), "the commit is whole"

    site.scripted.release()
    code, document = site.start(f"resume={run_id}").finish()
    assert (code, document["status"]) == (0, "completed")
    assert document["usage"]["lm_calls"] == site.scripted.stats()["answered"]
    again = {request: n for request, n in Counter(map(request_of, site.scripted.log())).items() if n > 1}
    gone = {("atomizer", "last AHOLD"): 2} if site.scripted.stats()["gone"] > 5 else {}
    assert again == {("executor", f"held {number} EHOLD"): 2 for number in range(5)} | gone
    assert steps_done_again(site.events(run_id)) == []
