"""A run that ended is opened again: what is asked the same is not paid for again, and a failing start takes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from roma_ray.api import rerun
from roma_ray.errors import UsageError
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus
from tests.faults.site import Site
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

FAILING = plan_goal("the whole", task("one"), task("two EDROP"))


@pytest.fixture
def site(tmp_path: Path, scripted: Scripted) -> Site:
    return Site(tmp_path, scripted, f"sqlite:///{tmp_path / 'runs.db'}")


@pytest.fixture
def partial(site: Site) -> str:
    """The id of a run one part of which fails each time."""
    code, document = site.start(f"goal={FAILING}", "lm.max_retries=0").finish()
    assert (code, document["status"]) == (4, "partial")
    return str(document["run_id"])


def test_what_is_asked_the_same_again_is_answered_from_the_log(site: Site, partial: str) -> None:
    first = site.scripted.stats()["answered_by_role"]
    code, document = site.start(f"resume={partial}").finish()
    assert (code, document["status"]) == (4, "partial")
    assert site.scripted.stats()["answered_by_role"] == first, "the Aggregator had answered the same request"
    assert document["usage"]["lm_calls"] == sum(first.values())


def test_a_resume_that_cannot_begin_leaves_the_run_as_it_ended(site: Site, partial: str) -> None:
    code, document = site.start(f"resume={partial}", "limits.max_cost_usd=1").finish()
    assert code == 2, document
    assert site.status(partial) is RunStatus.PARTIAL
    assert site.state(partial).status is RunStatus.PARTIAL
    requests = site.scripted.stats()["requests"]
    assert site.start(f"resume={partial}").finish()[0] == 4
    assert site.scripted.stats()["requests"] == requests + 1, "the part that failed is tried again"


def test_mail_that_cannot_be_read_is_left_aside(site: Site) -> None:
    driver = site.start("goal=Say it. EHOLD")
    site.scripted.wait_for(open_now=1)
    run_id = driver.run_id()

    async def send() -> None:
        log = await RunLog.open(site.config.runlog)
        try:
            await log.send(run_id, "approve", {"step": "nonsense"})
        finally:
            await log.close()

    asyncio.run(send())
    driver.wait_until(lambda: any("left aside" in str(event.payload) for event in driver.events()))
    site.scripted.release()
    code, document = driver.finish()
    assert (code, document["status"]) == (0, "completed")


def test_what_a_person_said_counts_though_nobody_is_asked_any_more(site: Site, tmp_path: Path) -> None:
    assert site.start(f"goal={plan_goal('the whole', task('one'), task('two'))}", "approve=plan").finish()[0] == 3
    (run_id,) = site.run_ids()
    plan = tmp_path / "plan.json"
    plan.write_text('[{"goal": "another"}]')
    assert site.command("approve", run_id, "root", "--edit", str(plan)).returncode == 0
    code, document = site.start(f"resume={run_id}", "approve=off").finish()
    assert (code, document["status"]) == (0, "completed")
    assert [node.goal for node in site.state(run_id).walk()][1:] == ["another"]


def test_another_form_of_the_answer_counts_and_other_files_are_refused(
    site: Site, partial: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in site.environ.items():
        monkeypatch.setenv(name, value)
    schema = tmp_path / "answer.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    again = asyncio.run(rerun(partial, node="root", overrides=[f"answer={schema}"]))
    assert again.state.answer_schema is not None
    with pytest.raises(UsageError, match="files already"):
        asyncio.run(rerun(partial, node="root", overrides=[f"files=[{schema}]"]))
