"""How a program leaves that used the sync façade, whose cluster stays up until the process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripted.client import Scripted

_PROGRAM = """
import sys
from roma_ray import solve
print(solve("say it", overrides=sys.argv[1:]).status)
"""


@pytest.mark.parametrize("cluster", ["inline", pytest.param("local", marks=pytest.mark.ray)])
def test_a_program_ends_cleanly_after_its_last_solve(scripted: Scripted, tmp_path: Path, cluster: str) -> None:
    overrides = [f"cluster={cluster}", "lm.model=openai/scripted", f"lm.api_base={scripted.base_url}"]
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *overrides],
        env={**os.environ, "ROMA_RAY_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (ended.returncode, ended.stdout) == (0, "completed\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    assert "Started a local Ray instance" not in ended.stderr
