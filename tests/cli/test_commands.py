"""The `roma-ray` command: what it prints for people and, with --json, for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Said

Command = Callable[..., Said]


@pytest.fixture
def run_id(solve: Command) -> str:
    """A run with two subtasks that has completed."""
    return json.loads(solve("goal=Compare N=2", "output=json").out)["run_id"]


def test_runs_and_show_find_a_run_by_the_beginning_of_its_id(roma_ray: Command, run_id: str) -> None:
    listed = json.loads(roma_ray("runs", "--json").out)
    assert [(row["run_id"], row["status"], row["goal"]) for row in listed] == [(run_id, "completed", "Compare N=2")]
    shown = roma_ray("show", run_id[:12])
    assert shown.code == 0
    assert "├─ ✓ root.0 THINK" in shown.out and "└─ ✓ root.1 THINK" in shown.out
    assert "SYN-" in shown.out


def test_show_node_has_every_prompt_and_answer_of_it(roma_ray: Command, run_id: str) -> None:
    node = json.loads(roma_ray("show", run_id, "root.0", "--json").out)
    assert [call["role"] for call in node["calls"]] == ["atomizer", "executor"]
    said = roma_ray("show", run_id, "root.0").out
    assert "── call 2: executor, openai/scripted" in said
    assert node["goal"] in said and node["output"] in said and "Compare N=2" in said


def test_show_tells_apart_an_unknown_run_and_an_unknown_node(roma_ray: Command, run_id: str) -> None:
    no_run, no_node = roma_ray("show", "nosuchrun"), roma_ray("show", run_id, "root.7")
    assert (no_run.code, [line[:5] for line in no_run.error_lines]) == (2, ["R0107"])
    assert (no_node.code, [line[:5] for line in no_node.error_lines]) == (2, ["R0100"])
    assert "root.0, root.1" in no_node.err


def test_config_shows_value_and_source_and_no_secret(roma_ray: Command, home: Path) -> None:
    (home / ".config/roma_ray").mkdir(parents=True)
    (home / ".config/roma_ray/config.yaml").write_text("lm: {api_key: sk-very-secret-text}\n")
    said = json.loads(roma_ray("config", "limits.max_depth=2", "--json").out)
    assert said["limits.max_depth"] == {"value": 2, "source": "command line"}
    assert said["lm.api_key"]["value"] == "***" and said["lm.api_key"]["source"].endswith("config.yaml")
    text = roma_ray("config", "--all").out
    assert "very-secret" not in text and "agents.planner.lm.api_key" in text


def test_explain_knows_every_code_and_says_which_there_are(roma_ray: Command) -> None:
    said = roma_ray("explain", "r0303")
    assert "RateLimited" in said.out and "exit code: 75" in said.out
    unknown = roma_ray("explain", "R9999")
    assert unknown.code == 2 and "R0101" in unknown.error_lines[0]


def test_model_list_names_the_models_and_path_says_when_one_is_not_here(roma_ray: Command) -> None:
    listed = json.loads(roma_ray("model", "list", "--json").out)
    assert [(model["name"], model["licence"]) for model in listed] == [
        ("default", "Apache-2.0"),
        ("small", "Apache-2.0"),
    ]
    absent = roma_ray("model", "path", "small")
    assert (absent.code, absent.out) == (1, "") and "roma-ray model get small" in absent.err


def test_a_wrong_option_ends_with_the_code_for_wrong_usage(roma_ray: Command) -> None:
    assert roma_ray("runs", "--nope").code == 2
