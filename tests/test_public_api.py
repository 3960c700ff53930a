"""What `roma_ray` offers, what importing it costs, and that `solve` is the function whatever came first."""

from __future__ import annotations

import subprocess
import sys

import pytest

import roma_ray

HEAVY = ("ray", "dspy", "litellm", "mlflow", "sqlalchemy", "pyarrow", "openai", "hydra", "pydantic")

NAMES = [
    "Aggregator",
    "Atomizer",
    "BaseModule",
    "Executor",
    "NodeType",
    "Planner",
    "PredictionStrategy",
    "Result",
    "SubTask",
    "TaskType",
    "Verifier",
    "aresume",
    "asolve",
    "resume",
    "solve",
]


def python(code: str) -> str:
    """What `code` prints in a Python of its own."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_public_names_are_these_and_each_can_be_had() -> None:
    assert sorted(roma_ray.__all__) == NAMES
    assert all(getattr(roma_ray, name) is not None for name in NAMES)


@pytest.mark.parametrize(
    "code",
    [
        "import roma_ray",
        "import sys; sys.argv = ['roma-ray', '--help']\nfrom roma_ray.cli.main import app\napp(standalone_mode=False)",
        "from roma_ray.solve import main; main(['--help'])",
        "import roma_ray.faults, roma_ray.clock, roma_ray.redact",
    ],
)
def test_help_and_import_load_no_heavy_library(code: str) -> None:
    said = python(f"{code}\nimport sys; print('loaded', [m for m in {HEAVY!r} if m in sys.modules])")
    assert said.splitlines()[-1] == "loaded []"


@pytest.mark.parametrize(
    "code",
    [
        "from roma_ray import solve; import roma_ray.solve",
        "import roma_ray.solve; from roma_ray import solve",
        "import roma_ray, roma_ray.api; import roma_ray.solve as module; from roma_ray import solve",
        "from roma_ray.solve import main; import roma_ray; solve = roma_ray.solve",
    ],
)
def test_solve_is_the_function_whatever_was_imported_before(code: str) -> None:
    check = "import roma_ray.api; print(solve is roma_ray.api.solve, roma_ray.solve is roma_ray.api.solve)"
    assert python(f"{code}\n{check}") == "True True\n"
