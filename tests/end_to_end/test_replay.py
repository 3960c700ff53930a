"""A recorded run is solved once more from its file: the same answer and tree, and no request leaves the process."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roma_ray import api
from roma_ray.engine.result import Result
from roma_ray.errors import FolderUnusable, UsageError
from roma_ray.types import RunStatus
from tests.end_to_end.conftest import Solving
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

Replay = Callable[..., Result]
_OF_THE_MOMENT = ("started_at", "ended_at", "attempts", "usage")


@pytest.fixture
def replayed(scripted: Scripted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """`replayed(file, *overrides)` in another home, without a key; it fails if the server is asked anything."""

    def run(file: Path, *overrides: str, **given: Any) -> Result:
        monkeypatch.setenv("ROMA_RAY_HOME", str(tmp_path / "elsewhere"))
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        scripted.reset()
        result = api.replay(file, overrides=["cluster=inline", *overrides], **given)
        assert scripted.stats()["requests"] == 0
        return result

    return run


def tree(result: Result) -> dict[str, Any]:
    """The tree without what belongs to one doing of it."""

    def bare(node: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in node.items() if name not in _OF_THE_MOMENT}
        return {**kept, "children": [bare(child) for child in node["children"]]}

    return bare(result.tree)


async def test_a_replay_has_the_same_answer_and_tree_and_asks_nobody(
    solving: Solving, replayed: Replay, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    parts = [task("one SRC=a"), task("two TREE=2:1", needs=[0]), task("three"), task("three"), task("bad EEMPTY")]
    goal = plan_goal("the whole", *parts)
    recorded = await solving(goal, f"record={file}", "verify=root")
    again = await asyncio.to_thread(replayed, file)
    assert recorded.run_id != again.run_id
    assert (again.status, again.output, again.sources) == (recorded.status, recorded.output, recorded.sources)
    assert tree(again) == tree(recorded)
    assert again.warnings == recorded.warnings
    assert (again.usage.lm_calls, again.usage.cached_calls) == (0, recorded.usage.lm_calls)
    assert (again.usage.tokens, again.usage.cost_usd) == (0, 0.0)


async def test_it_needs_no_key_for_a_provider_that_wants_one(
    inline: Solving, scripted: Scripted, replayed: Replay, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    recorded = await inline("all N=2", f"record={file}")
    # At its provider's own address a model is never reached without a key.
    at_home = file.read_text().replace(f'"api_base":"{scripted.base_url}"', '"api_base":null')
    assert at_home != file.read_text()
    file.write_text(at_home)
    assert (await asyncio.to_thread(replayed, file)).output == recorded.output


async def test_the_first_request_that_differs_stops_it_and_shows_where(
    inline: Solving, replayed: Replay, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    await inline("all N=2", f"record={file}")
    result = await asyncio.to_thread(replayed, file, "limits.max_subtasks=5")
    assert (result.status, result.exit_code) == (RunStatus.FAILED, 2)
    assert result.fault is not None and result.fault.code == "R0113"
    first, *place = result.fault.message.splitlines()
    assert "root/descend~0 (planner)" in first
    assert "-Give at most 12 subtasks." in place and "+Give at most 5 subtasks." in place and len(place) <= 10


async def test_another_goal_differs_in_the_first_request(inline: Solving, replayed: Replay, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    await inline("the sea by day", f"record={file}")
    result = await asyncio.to_thread(replayed, file, goal="the sea by night")
    assert result.fault is not None
    assert "-the sea by day" in result.fault.message and "+the sea by night" in result.fault.message


async def test_without_texts_it_replays_and_says_that_it_cannot_show_a_difference(
    inline: Solving, replayed: Replay, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    recorded = await inline("all N=2 secret-words", f"record={file}", "runlog.prompts=hash")
    assert all("request" not in json.loads(line) for line in file.read_text().splitlines()[1:])
    assert (await asyncio.to_thread(replayed, file)).output == recorded.output
    result = await asyncio.to_thread(replayed, file, "limits.max_subtasks=5")
    assert result.fault is not None and "texts were not recorded" in result.fault.message


async def test_what_was_not_asked_is_counted_in_a_warning(inline: Solving, replayed: Replay, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    await inline("all N=2", f"record={file}", "verify=root")
    result = await asyncio.to_thread(replayed, file, "verify=off")
    assert result.status is RunStatus.COMPLETED
    assert result.warnings == ("the replay did not make 1 of the recorded calls",)


async def test_a_call_that_had_failed_fails_again_and_retries_are_not_repeated(
    inline: Solving, replayed: Replay, tmp_path: Path
) -> None:
    file = tmp_path / "run.jsonl"
    goal = plan_goal("the whole", task("good"), task("slow EFAIL=500:1"), task("gone EFAIL=500"))
    recorded = await inline(goal, f"record={file}", "lm.max_retries=1")
    again = await asyncio.to_thread(replayed, file)
    assert recorded.status is again.status is RunStatus.PARTIAL
    assert tree(again) == tree(recorded)
    assert (recorded.usage.failed_calls, again.usage.failed_calls) == (3, 0)


async def test_samples_keep_their_order(inline: Solving, replayed: Replay, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    sampled = ("agents.executor.strategy=MultiChainComparison", "agents.executor.strategy_config={m: 3}")
    recorded = await inline("just do it", f"record={file}", *sampled)
    again = await asyncio.to_thread(replayed, file)
    assert again.output == recorded.output and again.usage.cached_calls == recorded.usage.lm_calls


async def test_files_and_cut_values_travel_with_the_recording(
    inline: Solving, replayed: Replay, tmp_path: Path
) -> None:
    file, brought = tmp_path / "run.jsonl", tmp_path / "big.txt"
    brought.write_text("A line of the file.\n" * 10_000)
    goal = plan_goal("the whole", task("long SIZE=150000"), task("next", needs=[0]))
    recorded = await inline(goal, f"record={file}", f"files=[{brought}]", "lm.context_tokens=4000")
    brought.unlink()
    again = await asyncio.to_thread(replayed, file)
    assert again.fault is None and again.output == recorded.output


async def test_a_file_too_large_to_travel_is_refused_before_the_first_call(
    inline: Solving, scripted: Scripted, tmp_path: Path
) -> None:
    large = tmp_path / "large.txt"
    large.write_bytes(b"x" * (9 * 2**20))
    with pytest.raises(UsageError, match="8 MiB"):
        await inline("all", f"record={tmp_path / 'run.jsonl'}", f"files=[{large}]", "storage.inline_kb=100000")
    with pytest.raises(FolderUnusable, match="nowhere"):
        await inline("all", "record=/proc/nowhere/run.jsonl")
    assert scripted.stats()["requests"] == 0


def test_a_person_said_something_and_the_replay_knows_it(tmp_path: Path, scripted: Scripted, replayed: Replay) -> None:
    goal = plan_goal("the whole", task("one"), task("two"))
    driver = Driver(tmp_path / "home", scripted, f"goal={goal}", "approve=plan")
    run_id = driver.finish()[1]["run_id"]
    plan = [{"goal": "one"}, {"goal": "another", "depends_on": [0]}]
    asyncio.run(api.approve(driver.config, run_id, "root", verdict="edit", plan=plan, by="me"))
    _, document = Driver(tmp_path / "home", scripted, f"resume={run_id}").finish()
    file = tmp_path / "run.jsonl"
    asyncio.run(api.export_traffic(driver.config, run_id[:12], file))
    again = replayed(file)
    assert again.status is RunStatus.COMPLETED and again.output == document["output"]
    assert [child["goal"] for child in again.tree["children"]] == ["one", "another"]


def test_words_of_people_are_replayed_though_the_run_was_resumed_without_approvals(
    tmp_path: Path, scripted: Scripted, replayed: Replay
) -> None:
    driver = Driver(tmp_path / "home", scripted, f"goal={plan_goal('the whole', task('one'))}", "approve=plan")
    run_id = driver.finish()[1]["run_id"]
    asyncio.run(api.approve(driver.config, run_id, "root", verdict="edit", plan=[{"goal": "another N=1"}], by="me"))
    Driver(tmp_path / "home", scripted, f"resume={run_id}").finish()  # takes the edit, and waits for the next plan
    _, document = Driver(tmp_path / "home", scripted, f"resume={run_id}", "approve=off").finish()
    file = tmp_path / "run.jsonl"
    asyncio.run(api.export_traffic(driver.config, run_id, file))
    again = replayed(file)
    assert again.status is RunStatus.COMPLETED and again.output == document["output"]
    assert [child["goal"] for child in again.tree["children"]] == ["another N=1"]


def test_a_run_that_was_stopped_is_recorded_so_far_and_whole_after_its_resume(
    tmp_path: Path, scripted: Scripted, replayed: Replay
) -> None:
    file = tmp_path / "run.jsonl"
    goal = plan_goal("the whole", task("one"), task("two EHOLD"))
    driver = Driver(tmp_path / "home", scripted, f"goal={goal}", f"record={file}")
    driver.wait_committed(scripted, answered=5, open_now=1)
    driver.process.send_signal(signal.SIGINT)
    code, document = driver.finish()
    assert code == 130

    stopped = replayed(file)
    assert stopped.fault is not None and "root.1/descend~0 (executor)" in stopped.fault.message

    scripted.release()
    code, document = Driver(tmp_path / "home", scripted, f"resume={document['run_id']}").finish()
    assert code == 0
    again = replayed(file)
    assert (again.status, again.output, again.warnings) == (RunStatus.COMPLETED, document["output"], ())


async def test_a_replay_can_be_recorded_and_replayed_in_its_turn(
    inline: Solving, replayed: Replay, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    recorded = await inline("all N=2", f"record={first}")
    await asyncio.to_thread(replayed, first, f"record={second}")
    assert (await asyncio.to_thread(replayed, second)).output == recorded.output


async def test_the_recording_holds_no_key(inline: Solving, scripted: Scripted, tmp_path: Path) -> None:
    file, key = tmp_path / "run.jsonl", "sk-a-very-secret-key"
    scripted.reset(api_key=key)
    await inline("all N=2", f"record={file}", f"lm.api_key={key}")
    assert len(file.read_text().splitlines()) == 8 and key not in file.read_text()
