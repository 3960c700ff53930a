"""The command line as a user has it: a home and a working folder of one's own, the scripted model at the other end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from roma_ray import solve as _the_function  # noqa: F401  (the package must not hand out the module instead)
from tests.scripted.client import Scripted


@dataclass(frozen=True, slots=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line[:1] == "R" and line[1:5].isdigit()]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: nothing of the developer's own settings is seen."""
    for name in list(os.environ):
        if name.startswith("ROMA_RAY_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROMA_RAY_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def model(scripted: Scripted) -> list[str]:
    """The overrides that let the scripted server answer, without Ray."""
    return ["lm.model=openai/scripted", f"lm.api_base={scripted.base_url}", "cluster=inline"]


@pytest.fixture
def solve(home: Path, model: list[str], capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """`solve(*overrides)`: what `python -m roma_ray.solve` does, in this process."""
    from roma_ray.cli.solving import solve_command

    def run(*overrides: str) -> Said:
        capsys.readouterr()
        code = solve_command([*model, *overrides])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture
def roma_ray(home: Path) -> Callable[..., Said]:
    """`roma_ray(*arguments)`: the `roma-ray` command in a process of its own."""

    def run(*arguments: str) -> Said:
        return in_a_process([sys.executable, "-c", "from roma_ray.cli.main import main; main()", *arguments])

    return run


def in_a_process(command: Sequence[str], text: str = "") -> Said:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    return Said(done.returncode, done.stdout, done.stderr)
