"""A run log that was recorded once folds to the same state for ever, whatever version reads it.

`tests/golden/format-N.sqlite` is the database as that version wrote it, `format-N.json` what it said then: format 1 one
finished run, format 2 sixteen in every state that a run can be in. They are never made anew: a version that cannot read
one needs a migration.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from roma_ray.api import list_runs, load_events, load_state
from roma_ray.config import Config, load_config
from roma_ray.engine.result import tree_document
from roma_ray.engine.tree import fold
from roma_ray.types import NodeStatus, StepKey

GOLDEN = Path(__file__).parents[1] / "golden"


OF_FORMAT_2: dict[str, dict[str, Any]] = json.loads((GOLDEN / "format-2.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", list(OF_FORMAT_2))
async def test_every_kind_of_run_folds_to_the_state_that_it_had(name: str, tmp_path: Path) -> None:
    expected = OF_FORMAT_2[name]
    state = fold(await load_events(config_of("format-2", tmp_path), expected["run_id"]))
    said = {
        "run_id": state.run_id,
        "status": state.status.value,
        "goal": state.goal,
        "usage": state.usage.as_dict(),
        "limit_reached": state.limit_reached,
        "ran_s": state.ran_s,
        "fault": state.fault.to_plain() if state.fault else None,
        "recoveries": state.recoveries,
        "forked_from": state.forked_from,
        "approvals": [[str(a.key), a.kind, a.verdict, a.words, a.by] for a in state.approvals.values()],
        "warnings": list(state.warnings),
        "open_answers": sorted(state.answers),
        "outcomes": {str(key): outcome.to_plain() for key, outcome in state.outcomes.items()},
        "tree": tree_document(state),
    }
    assert said == expected


async def test_a_run_whose_process_died_is_loaded_as_interrupted(tmp_path: Path) -> None:
    expected = OF_FORMAT_2["killed"]
    config = config_of("format-2", tmp_path)
    state = await load_state(config, expected["run_id"])
    assert (expected["status"], state.status.value) == ("running", "interrupted")
    assert not any(node.status is NodeStatus.RUNNING for node in state.nodes.values())
    (row,) = [row for row in await list_runs(config) if row.run_id == state.run_id]
    assert row.status is state.status


@pytest.mark.parametrize("name", ["format-1"])
async def test_a_recorded_run_folds_to_the_state_that_it_had(name: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    state = await load_state(config_of(name, tmp_path), expected["run_id"])
    assert state.status.value == expected["status"] == "completed"
    assert state.goal == expected["goal"]
    assert state.usage.as_dict() == expected["usage"]
    assert tree_document(state) == expected["tree"]
    assert state.outcomes[StepKey("root", "ascend")].value == expected["output"]
    assert state.answers == {}, "nothing is left to be asked again"


def config_of(name: str, home: Path) -> Config:
    """The config that finds a copy of a recorded database: reading it may migrate it."""
    copy = shutil.copy(GOLDEN / f"{name}.sqlite", home / "runs.db")
    return load_config([f"runlog.url=sqlite:///{copy}"], environ={"ROMA_RAY_HOME": str(home)}).config
