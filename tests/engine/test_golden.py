"""A run log that was recorded once folds to the same state for ever, whatever version reads it.

`tests/golden/format-N.sqlite` is the database as that version wrote it, `format-N.json` the result it had. They are
never made anew: a version that cannot read one needs a migration.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from roma_ray.api import load_state
from roma_ray.config import load_config
from roma_ray.engine.result import tree_document
from roma_ray.types import StepKey

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["format-1"])
async def test_a_recorded_run_folds_to_the_state_that_it_had(name: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    copy = shutil.copy(GOLDEN / f"{name}.sqlite", tmp_path / "runs.db")
    config = load_config([f"runlog.url=sqlite:///{copy}"], environ={"ROMA_RAY_HOME": str(tmp_path)}).config
    state = await load_state(config, expected["run_id"])
    assert state.status.value == expected["status"] == "completed"
    assert state.goal == expected["goal"]
    assert state.usage.as_dict() == expected["usage"]
    assert tree_document(state) == expected["tree"]
    assert state.outcomes[StepKey("root", "ascend")].value == expected["output"]
    assert state.answers == {}, "nothing is left to be asked again"
