"""`python -m roma_ray.solve`: what goes in, what comes out where, and how it ends."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from roma_ray.api import list_runs, load_events
from roma_ray.config import load_config
from roma_ray.runlog.events import EventType
from tests.cli.conftest import Said, in_a_process
from tests.scripted.client import Scripted

SOLVE = [sys.executable, "-m", "roma_ray.solve"]
Solve = Callable[..., Said]

DOCUMENT_KEYS = [
    "run_id",
    "status",
    "goal",
    "output",
    "sources",
    "warnings",
    "limit_reached",
    "error",
    "approvals",
    "usage",
    "wall_s",
    "tree",
]
USAGE_KEYS = ["lm_calls", "failed_calls", "cached_calls", "prompt_tokens", "completion_tokens", "cost_usd"]
NODE_KEYS = [
    "id",
    "goal",
    "task_type",
    "node_type",
    "status",
    "depends_on",
    "output",
    "error",
    "usage",
    "started_at",
    "ended_at",
    "attempts",
    "same_as",
    "children",
]


def test_the_answer_alone_is_on_stdout_and_the_tree_is_on_stderr(solve: Solve) -> None:
    said = solve('goal=What\'s 1+1, (really) = "?" ESAY<<two, of course>>')
    assert (said.code, said.out) == (0, "two, of course\n")
    assert "root completed" in said.err and "1+1, (really)" in said.err
    assert said.err.splitlines()[-1].startswith("completed, ")


def test_a_goal_may_come_from_a_file(solve: Solve, home: Path) -> None:
    (home / "question.txt").write_text("A question\nof two lines ESAY<<from a file>>\n")
    assert solve("goal_file=question.txt").out == "from a file\n"


def test_a_goal_cannot_repaint_the_terminal(solve: Solve) -> None:
    said = solve("goal=\x1b[2Jred\u202e ESAY<<fine>>")
    assert said.code == 0 and "[2Jred" in said.err
    assert not {"\x1b", "\u202e"} & set(said.err)


@pytest.mark.parametrize("reference", ["#/nowhere", "https://elsewhere.example/schema.json"])
def test_a_schema_that_refers_to_nothing_is_refused_before_a_call(
    solve: Solve, home: Path, scripted: Scripted, reference: str
) -> None:
    (home / "schema.json").write_text(json.dumps({"properties": {"a": {"$ref": reference}}}))
    said = solve("goal=a", "answer=schema.json")
    assert said.code == 2 and reference in said.error_lines[0]
    assert scripted.stats()["requests"] == 0


def test_json_is_one_document_with_the_promised_names(solve: Solve) -> None:
    said = solve("goal=N=2 SRC=a,b", "output=json")
    document = json.loads(said.out)
    assert list(document) == DOCUMENT_KEYS
    assert list(document["usage"]) == USAGE_KEYS
    assert list(document["tree"]) == NODE_KEYS
    assert [child["id"] for child in document["tree"]["children"]] == ["root.0", "root.1"]
    assert (document["status"], document["error"], document["usage"]["lm_calls"]) == ("completed", None, 7)


def test_markdown_has_the_goal_the_answer_and_the_sources(solve: Solve) -> None:
    out = solve("goal=Write it ESAY<<The text.>> SRC=https://a.example,https://b.example", "output=markdown").out
    assert out.startswith("# Write it") and "The text." in out
    assert "## Sources\n\n- https://a.example\n- https://b.example" in out


@pytest.mark.parametrize(
    ("overrides", "exit_code", "error_code"),
    [
        (["limits.max_dept=1"], 2, "R0101"),
        (["limits.max_depth=deep"], 2, "R0101"),
        (["goal_file=absent.txt"], 2, "R0100"),
        (["goal=a", "goal_file=b"], 2, "R0100"),
        (["goal=  "], 2, "R0100"),
        (["resume=01nosuchrun"], 2, "R0107"),
        (["goal=a", "runlog.url=mongodb://x"], 2, "R0101"),
        (["goal=a", "storage.base_path=/proc/nowhere"], 2, "R0106"),
        (["goal=a", "runlog.url=sqlite:////proc/nowhere/runs.db"], 2, "R0106"),
        (["goal=a", "log.file=/proc/nowhere/log"], 2, "R0106"),
        (["goal=a", "storage.base_path=nowhere://bucket"], 2, "R0106"),
        (["goal=AFAIL=500", "dry_run=true", "lm.max_retries=0"], 75, "R0301"),
        (["goal=a", "agents.executor.strategy_config={made_up: 1}"], 2, "R0101"),
        (["goal=EFAIL=401"], 2, "R0103"),
        (["goal=EFAIL=400"], 2, "R0105"),
        (["goal=EFAIL=500", "lm.max_retries=0"], 75, "R0301"),
        (["goal=a", "lm.api_base=http://127.0.0.1:1/v1", "lm.max_retries=0"], 75, "R0300"),
        (["goal=EEMPTY"], 1, "R0202"),
    ],
)
def test_what_goes_wrong_is_one_line_with_its_code_and_cure(
    solve: Solve, overrides: list[str], exit_code: int, error_code: str
) -> None:
    said = solve(*overrides)
    assert said.code == exit_code
    assert [line[:5] for line in said.error_lines] == [error_code]
    assert " - " in said.error_lines[0]
    assert said.out == "" and "Traceback" not in said.err


def test_an_error_before_the_run_is_a_document_too_when_json_is_asked_for(solve: Solve) -> None:
    said = solve("limits.max_dept=1", "output=json")
    document = json.loads(said.out)
    assert list(document) == DOCUMENT_KEYS
    assert document["error"]["code"] == "R0101" and document["error"]["cure"] == "did you mean limits.max_depth?"
    assert len(said.error_lines) == 1


def test_the_traceback_is_there_for_who_asks(solve: Solve) -> None:
    said = solve("limits.max_dept=1", "traceback=true")
    assert "Traceback" in said.err and len(said.error_lines) == 1


def test_a_partial_answer_is_printed_with_exit_code_4_and_what_is_missing(solve: Solve) -> None:
    parts = [{"goal": "good ESAY<<fine>>", "task_type": "THINK"}, {"goal": "bad EEMPTY", "task_type": "THINK"}]
    plan = {"subtasks": parts}
    said = solve(f"goal=two things PLAN[{json.dumps(plan)}]PLAN")
    assert said.code == 4 and said.out
    assert "root.1 failed" in said.err
    assert said.err.splitlines()[-1].startswith("resume: python -m roma_ray.solve resume=")


def test_keys_in_the_env_file_of_the_working_folder_are_used(solve: Solve, home: Path, scripted: Scripted) -> None:
    (home / ".env").write_text("ROMA_RAY_LM__API_KEY=sk-from-the-env-file\n")
    scripted.reset(api_key="sk-from-the-env-file")
    assert solve("goal=ESAY<<let in>>").out == "let in\n"


def test_log_lines_go_to_a_file_when_asked(solve: Solve, home: Path) -> None:
    assert solve("goal=a", "log.file=run.log", "log.level=error").code == 0
    assert (home / "run.log").exists()


def test_a_piped_goal_is_read_and_stdout_stays_pure(home: Path, model: list[str]) -> None:
    said = in_a_process([*SOLVE, *model], text="piped ESAY<<through>>\n")
    assert (said.code, said.out) == (0, "through\n")


@pytest.mark.parametrize(
    ("streams", "code", "out"),
    [
        ("2>&-", 0, "fine\n"),
        ("2>/dev/full", 0, "fine\n"),
        (">&-", 0, ""),
        (">/dev/full", 2, ""),
        ("2>&1 >/dev/null | true", 0, ""),
    ],
)
def test_a_stream_that_takes_nothing_does_not_stop_a_run(
    home: Path, model: list[str], scripted: Scripted, streams: str, code: int, out: str
) -> None:
    command = shlex.join([*SOLVE, *model, "goal=a ESAY<<fine>>"])
    said = in_a_process(["bash", "-c", f"{command} {streams}; exit ${{PIPESTATUS[0]}}"])
    assert (said.code, said.out) == (code, out)
    assert "Traceback" not in said.err
    assert scripted.stats()["answered_by_role"] == {"atomizer": 1, "executor": 1}


def test_without_a_goal_it_says_how_to_give_one(home: Path, model: list[str]) -> None:
    said = in_a_process([*SOLVE, *model])
    assert (said.code, said.out) == (2, "")
    assert len(said.err.splitlines()) == 1 and 'goal="…"' in said.err


def until_committed(*, answers: int) -> None:
    """Wait until the only run's log has so many: what a stopped process has not written down it may ask again."""
    config, deadline = load_config([]).config, time.monotonic() + 60
    while time.monotonic() < deadline:
        (row,) = asyncio.run(list_runs(config))
        events = asyncio.run(load_events(config, row.run_id))
        if sum(event.type is EventType.CALL_ANSWERED for event in events) >= answers:
            return
        time.sleep(0.02)
    raise TimeoutError(f"not {answers} answers in the log within 60 s")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_resumes_without_asking_again(
    solve: Solve, model: list[str], scripted: Scripted, stop: signal.Signals
) -> None:
    parts = [{"goal": "quick", "task_type": "THINK"}, {"goal": "slow EHOLD", "task_type": "THINK"}]
    command = [*SOLVE, *model, "cluster=inline", f"goal=both PLAN[{json.dumps({'subtasks': parts})}]PLAN"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # Atomizer and Planner of the root, Atomizer of both parts and one Executor are answered.
        try:
            scripted.wait_for(answered=5, open_now=1, timeout_s=120)
            until_committed(answers=5)
        except TimeoutError as error:
            process.kill()
            raise AssertionError(process.communicate()[1]) from error
        process.send_signal(stop)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    *_, last = err.splitlines()
    assert last.startswith("resume: python -m roma_ray.solve resume=")
    scripted.wait_for(gone=1, timeout_s=60)
    scripted.release()
    said = solve(last.split()[-1])
    assert said.code == 0 and "OUT-" in said.out
    stats = scripted.stats()
    assert stats["answered"] == 7 and stats["requests"] == 8
