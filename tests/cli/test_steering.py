"""Looking at runs and steering them from the command line, while another process drives them and after."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from roma_ray import api
from roma_ray.cli.completion import run_ids
from roma_ray.cli.exits import ended
from roma_ray.cli.main import app
from roma_ray.config import load_config
from roma_ray.errors import UsageError
from tests.cli.conftest import Said, in_a_process
from tests.end_to_end.conftest import no_driver_is_left  # noqa: F401
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

Command = Callable[..., Said]
ROMA_RAY = [sys.executable, "-c", "from roma_ray.cli.main import main; main()"]
PLANNED = plan_goal("the whole", task("one"), task("two"))


@pytest.fixture(autouse=True)
def without_ray(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run goes on is for the process that resumes it to say; without Ray that takes a second, not twenty."""
    monkeypatch.setenv("ROMA_RAY_CLUSTER", "inline")


@pytest.fixture
def roma_ray(home: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """`roma_ray(*arguments)`: the `roma-ray` command, in this process."""

    def run(*arguments: str) -> Said:
        capsys.readouterr()
        try:
            code = ended(lambda: app(list(arguments)))
        except SystemExit as left:
            code = int(left.code or 0)
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def waiting(solve: Command) -> str:
    """The id of a run that waits for approval of its plan."""
    said = solve(f"goal={PLANNED}", "approve=plan", "output=json")
    assert said.code == 3
    return json.loads(said.out)["run_id"]


def test_a_run_that_waits_ends_with_code_3_and_the_commands_that_answer_it(solve: Command) -> None:
    said = solve(f"goal={PLANNED}", "approve=plan")
    assert said.code == 3 and said.out == ""
    *_, last = said.err.splitlines()
    run_id = last.removeprefix("resume: python -m roma_ray.solve resume=")
    assert f"    roma-ray approve {run_id} root\n" in said.err
    assert f"roma-ray approve {run_id} root --reject" in said.err and "R0" not in said.err


def test_what_waits_is_listed_readably_and_answered_once(roma_ray: Command, waiting: str) -> None:
    assert "waits for approval" in roma_ray("tree", waiting).out
    listed = roma_ray("approve", waiting).out
    assert "root waits for approval of its plan" in listed and "- goal: one" in listed and "- goal: two" in listed
    assert [item["id"] for item in json.loads(roma_ray("approve", waiting, "--json").out)] == ["root/descend~0"]
    approved = roma_ray("approve", waiting[:14], "root")
    assert approved.code == 0 and f"go on with: python -m roma_ray.solve resume={waiting}" in approved.out
    again = roma_ray("approve", waiting, "root", "--reject", "too late")
    assert again.code == 2 and "was answered already: approve" in again.error_lines[0]
    done = roma_ray("resume", waiting, "output=json")
    assert done.code == 0 and json.loads(done.out)["status"] == "completed"
    assert "waits for nobody: it is completed" in roma_ray("approve", waiting).out


def test_a_rejection_is_told_to_the_planner_and_the_next_plan_waits(
    roma_ray: Command, waiting: str, scripted: Scripted
) -> None:
    assert roma_ray("approve", waiting, "root", "--reject", "say when").code == 0
    assert roma_ray("resume", waiting).code == 3
    assert "say when" in str(scripted.log("planner")[-1]["messages"])


def test_a_shown_plan_can_be_edited_and_given_back(roma_ray: Command, waiting: str, home: Path) -> None:
    shown = roma_ray("approve", waiting, "root", "--show").out
    (home / "plan.yaml").write_text(shown.replace("one", "another"))
    assert roma_ray("approve", waiting, "root", "--edit", "plan.yaml").code == 0
    tree = json.loads(roma_ray("resume", waiting, "output=json").out)["tree"]
    assert [child["goal"] for child in tree["children"]] == ["another", "two"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "neither YAML nor JSON"),
        ("just words", "holds no list of subtasks"),
        ('[{"gaol": "x"}]', "has no gaol"),
        ("- on: x\n  gaol: x", "has no True, gaol"),
        ('[{"goal": "a", "depends_on": [7]}]', "7"),
        ("[]", "plan"),
    ],
)
def test_an_edit_that_is_no_plan_is_refused_with_what_is_wrong(home: Path, waiting: str, text: str, said: str) -> None:
    refused = in_a_process([*ROMA_RAY, "approve", waiting, "root", "--edit", "-"], text=text)
    assert refused.code == 2 and [line[:5] for line in refused.error_lines] == ["R0100"]
    assert said in refused.error_lines[0]


def test_a_final_answer_is_edited_as_text(solve: Command, roma_ray: Command, home: Path) -> None:
    said = solve("goal=it ESAY<<a draft>>", "approve=final", "output=json")
    run_id = json.loads(said.out)["run_id"]
    assert roma_ray("approve", run_id, "root", "--show").out == "a draft\n"
    in_a_process([*ROMA_RAY, "approve", run_id, "root", "--edit", "-"], text="the final text\n")
    assert roma_ray("resume", run_id).out == "the final text\n"


def test_an_edited_answer_has_to_fit_the_schema_that_the_run_was_given(
    solve: Command, roma_ray: Command, home: Path
) -> None:
    schema = {"type": "object", "required": ["km"], "properties": {"km": {"type": "number"}}}
    (home / "schema.json").write_text(json.dumps(schema))
    said = solve('goal=it ESAY<<{"km": 1}>>', "answer=schema.json", "approve=final", "output=json")
    run_id = json.loads(said.out)["run_id"]
    (home / "answer.json").write_text('{"km": "far"}')
    refused = roma_ray("approve", run_id, "root", "--edit", "answer.json")
    assert refused.code == 2 and "$.km: 'far' is not of type 'number'" in refused.error_lines[0]
    (home / "answer.json").write_text('{"km": 2}')
    assert roma_ray("approve", run_id, "root", "--edit", "answer.json").code == 0
    assert json.loads(roma_ray("resume", run_id).out) == {"km": 2}


def test_a_verdict_that_there_is_not_is_refused(waiting: str) -> None:
    with pytest.raises(UsageError, match="'rejected' is no verdict"):
        asyncio.run(api.approve(load_config([]).config, waiting, "root", verdict="rejected", words="no"))  # type: ignore[arg-type]
    assert asyncio.run(api.load_state(load_config([]).config, waiting)).open_approvals


def test_a_wrong_name_is_answered_with_what_is_open(roma_ray: Command, waiting: str) -> None:
    said = roma_ray("approve", waiting, "root.9")
    assert said.code == 2 and "root/descend~0" in said.error_lines[0]
    assert roma_ray("approve", waiting, "--reject", "which?").code == 2


def test_a_run_that_nobody_drives_is_cancelled_at_once(roma_ray: Command, waiting: str) -> None:
    assert roma_ray("cancel", waiting, "--reason", "no need").out == f"run {waiting} is cancelled\n"
    shown = json.loads(roma_ray("show", waiting, "--json").out)
    assert (shown["status"], shown["error"]["message"]) == ("cancelled", "no need")
    assert roma_ray("cancel", waiting).code == 2


def test_a_run_in_another_process_is_watched_and_cancelled(home: Path, roma_ray: Command, scripted: Scripted) -> None:
    driver = Driver(home / "state", scripted, f"goal={plan_goal('all', task('one'), task('two EHOLD'))}")
    driver.wait_committed(scripted, answered=5, open_now=1)
    run_id = driver.run_id()
    with subprocess.Popen([*ROMA_RAY, "tree", run_id, "--watch"], stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("▸ root  all")
        assert roma_ray("cancel", run_id).out == f"run {run_id} is cancelled\n"
        assert driver.finish()[1]["status"] == "cancelled"
        rest = watching.communicate(timeout=60)[0]
    assert watching.returncode == 0 and f"run {run_id}: cancelled" in rest


def test_watching_tells_what_happens_and_ends_with_the_run(home: Path, scripted: Scripted) -> None:
    driver = Driver(home / "state", scripted, f"goal={plan_goal('all', task('one'), task('two EHOLD'))}")
    driver.wait_committed(scripted, answered=5, open_now=1)
    watching = [*ROMA_RAY, "tree", driver.run_id(), "--watch"]
    with (
        subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as lines,
        subprocess.Popen([*watching, "--json"], stdout=subprocess.PIPE, text=True) as events,
    ):
        assert lines.stdout is not None and events.stdout is not None
        first = lines.stdout.readline()
        scripted.release()
        said, told = lines.communicate(timeout=60)[0], events.communicate(timeout=60)[0]
    assert driver.finish()[0] == 0
    assert "running" in first and "root.1 completed" in said and "completed, 7 calls" in said
    types = [json.loads(line)["type"] for line in told.splitlines()]
    assert (types[0], types[-1]) == ("run.started", "run.ended")


def test_watching_ends_when_the_process_that_drove_the_run_was_killed(home: Path, scripted: Scripted) -> None:
    driver = Driver(home / "state", scripted, "goal=all EHOLD")
    driver.wait_committed(scripted, answered=1, open_now=1)
    run_id = driver.run_id()
    driver.kill()
    said = in_a_process([*ROMA_RAY, "tree", run_id, "--watch"])
    assert said.code == 0 and f"run {run_id}: interrupted" in said.out
    assert said.out.splitlines()[-1] == f"resume: python -m roma_ray.solve resume={run_id}"


def test_a_run_whose_process_was_killed_is_shown_as_interrupted(
    home: Path, roma_ray: Command, scripted: Scripted
) -> None:
    driver = Driver(home / "state", scripted, "goal=all EHOLD")
    driver.wait_committed(scripted, answered=1, open_now=1)
    run_id = driver.run_id()
    assert json.loads(roma_ray("show", run_id, "--json").out)["status"] == "running"
    driver.kill()
    for command in ("show", "tree"):
        said = roma_ray(command, run_id).out
        assert f"run {run_id}: interrupted" in said
        assert said.splitlines()[-1] == f"resume: python -m roma_ray.solve resume={run_id}"
        document = json.loads(roma_ray(command, run_id, "--json").out)
        assert (document["status"], document["tree"]["status"]) == ("interrupted", "pending")


def test_a_part_is_done_anew_and_compared(solve: Command, roma_ray: Command, model: list[str]) -> None:
    first = json.loads(solve(f"goal={PLANNED}", "output=json").out)["run_id"]
    said = roma_ray(
        "rerun", first, "--from", "root.1", "--goal", "zwei", "--set", "output=json", "--set", "verify=root"
    )
    second = json.loads(said.out)
    assert second["status"] == "completed" and [c["goal"] for c in second["tree"]["children"]] == ["one", "zwei"]
    shown = roma_ray("diff", first, second["run_id"]).out
    assert "verify: off → root" in shown and "goal: two → zwei" in shown
    document = json.loads(roma_ray("diff", first, second["run_id"], "--json").out)
    kept, anew = document["nodes"][1:]
    # What is kept costs nothing the second time.
    assert kept["id"] == "root.0" and {change["name"][:6] for change in kept["changes"]} == {"usage."}
    assert anew["id"] == "root.1" and any("zwei" in line for line in anew["output"])
    assert "nothing differs" in roma_ray("diff", first, first).out
    assert roma_ray("rerun", first, "--from", "root.7").code == 2


def test_old_runs_are_removed_only_when_somebody_said_so(solve: Command, roma_ray: Command, home: Path) -> None:
    run_id = json.loads(solve("goal=a", "output=json").out)["run_id"]
    assert "no run ended more than 1d ago" in roma_ray("prune", "--older-than", "1d", "--yes").out
    assert run_id in roma_ray("prune", "--older-than", "0s", "--dry-run").out
    asked = roma_ray("prune", "--older-than", "0s")
    assert asked.code == 2 and "--yes" in asked.error_lines[0]
    assert roma_ray("prune", "--older-than", "a while").code == 2
    removed = json.loads(roma_ray("runs", "prune", "--older-than", "0s", "--yes", "--json").out)
    assert [row["run_id"] for row in removed] == [run_id]
    assert roma_ray("runs").out == "no runs yet\n"
    assert not (home / "state/executions" / run_id).exists()


def test_files_are_looked_for_where_the_run_has_put_them(solve: Command, roma_ray: Command, home: Path) -> None:
    options = (f"storage.base_path={home / 'elsewhere'}", "storage.inline_kb=0", "output=json")
    said = solve("goal=it ESAY<<a draft>>", "approve=final", *options)
    run_id = json.loads(said.out)["run_id"]
    assert list((home / "elsewhere/executions" / run_id).rglob("*.parquet"))
    assert roma_ray("approve", run_id, "root", "--show").out == "a draft\n"
    assert roma_ray("export", run_id, "--traffic", "run.jsonl").code == 0
    assert roma_ray("cancel", run_id).code == 0
    assert roma_ray("prune", "--older-than", "0s", "--yes").code == 0
    assert not (home / "elsewhere/executions" / run_id).exists()


def test_a_run_is_exported_and_replayed(solve: Command, roma_ray: Command, scripted: Scripted) -> None:
    first = json.loads(solve(f"goal={PLANNED}", "output=json").out)
    assert roma_ray("export", first["run_id"][:14], "--traffic", "run.jsonl").code == 0
    scripted.reset()
    again = solve("replay=run.jsonl", "output=json")
    document = json.loads(again.out)
    assert (again.code, document["output"]) == (0, first["output"])
    assert document["usage"]["cached_calls"] == 7 and scripted.stats()["requests"] == 0


def test_where_a_replay_differs_is_shown_below_the_one_line(solve: Command) -> None:
    solve("goal=all N=2", "record=run.jsonl")
    said = solve("replay=run.jsonl", "limits.max_subtasks=5")
    assert said.code == 2 and [line[:5] for line in said.error_lines] == ["R0113"]
    at = said.err.index("R0113")
    assert "    -Give at most 12 subtasks.\n    +Give at most 5 subtasks.\n" in said.err[at:]


def test_doctor_finds_what_is_well_and_what_is_not(
    roma_ray: Command, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    well = roma_ray("doctor", "cluster=inline", "--json")
    checks = {check["name"]: check for check in json.loads(well.out)}
    assert well.code == 0 and {c["status"] for c in checks.values()} == {"ok"}
    assert checks["keys"]["text"] == "set: OPENAI_API_KEY" and "secret" not in well.out
    assert roma_ray("runs").out == "no runs yet\n"
    assert not list((home / "state/executions").iterdir())

    broken = roma_ray("doctor", "storage.base_path=/proc/nowhere", "runlog.url=sqlite:////proc/nowhere/x.db")
    assert broken.code == 1
    assert broken.out.count("✗ failed") == 2 and broken.out.count("R0106") == 2 and "→ give a folder" in broken.out


@pytest.mark.ray
def test_doctor_starts_ray_when_asked(roma_ray: Command) -> None:
    said = roma_ray("doctor", "cluster=local", "--ray")
    assert "✓ ok      ray        starts here: 1 machine(s)" in said.out


def test_who_reads_no_further_is_not_told_of_a_broken_pipe(home: Path, waiting: str) -> None:
    command = shlex.join([*ROMA_RAY, "show", waiting])
    said = in_a_process(["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"])
    assert (said.code, said.err) == (0, "")


def test_ctrl_c_ends_a_watch_quietly(home: Path, waiting: str) -> None:
    with subprocess.Popen(
        [*ROMA_RAY, "runs", "--watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        while waiting not in watching.stdout.readline():
            pass
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=60)
    assert watching.returncode == 130 and err == ""


def test_the_shell_completes_the_ids_of_runs(home: Path, waiting: str) -> None:
    ((found, goal),) = run_ids("")
    assert found == waiting and goal.startswith("the whole")
    assert [found for found, _ in run_ids(waiting[:5])] == [waiting] and not list(run_ids("zz"))
    script = in_a_process([*ROMA_RAY, "--show-completion", "bash"])
    assert script.code == 0 or "shell" in script.err.lower()


def test_help_loads_nothing_that_is_slow(home: Path) -> None:
    asked = "import sys; from roma_ray.cli import main; print(*sys.modules)"
    loaded = set(in_a_process([sys.executable, "-c", asked]).out.split())
    assert not loaded & {"ray", "dspy", "sqlalchemy", "pydantic", "hydra", "rich.console", "pyarrow", "roma_ray.types"}
