"""What README and docs say is true: every command in the README runs, every key, default and code exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from roma_ray.config import load_config, shown
from roma_ray.errors import BY_CODE
from tests.scripted.client import Scripted

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
EXAMPLE_RUN = "01m8pxd7"
COMMANDS = {
    "scripts/solve": [sys.executable, "-m", "roma_ray.solve"],
    "python": [sys.executable],
    "roma-ray": [sys.executable, "-c", "from roma_ray.cli.main import main; main()"],
}


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture
def environ(tmp_path: Path, scripted: Scripted) -> dict[str, str]:
    """A fresh home in which the scripted model answers, without Ray."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "ROMA_RAY_CLUSTER": "inline",
        "ROMA_RAY_LM__MODEL": "openai/scripted",
        "ROMA_RAY_LM__API_BASE": scripted.base_url,
    }


def test_every_command_of_the_readme_runs(environ: dict[str, str], tmp_path: Path) -> None:
    run_id = ""
    for line in "".join(blocks("bash")).splitlines():
        # The example's ids stand for a run with three parts, so that `root.2` is one of its nodes.
        text = line.replace(EXAMPLE_RUN, run_id).replace("three harbours", "three harbours N=3")
        program, *arguments = shlex.split(text)
        command = [*COMMANDS[program], *arguments]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == (3 if "approve=plan" in line else 0), f"{line}\n{done.stderr}"
        found = re.search(r"run (\w{26}): Compare", done.stderr)
        run_id = found.group(1) if found else run_id
    assert run_id


def test_the_python_example_of_the_readme_runs(environ: dict[str, str], tmp_path: Path) -> None:
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("OUT-")


def test_every_setting_of_the_readme_exists_with_that_default() -> None:
    loaded = load_config(environ={"HOME": "/nowhere"}, cwd=Path("/"))
    rows = re.findall(r"^\| `([\w.]+)` \| `([^`]+)` \|", README, flags=re.MULTILINE)
    assert len(rows) >= 8
    for key, default in rows:
        if key in ("cluster", "limits.max_depth", "limits.max_cost_usd"):
            # A group, and defaults that depend on the model.
            continue
        value = shown(loaded.config, key)
        said = str(value).lower() if isinstance(value, bool) else str(value)
        assert (key, said) == (key, default)


def test_the_page_of_errors_has_every_code_with_its_exit_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| (R\d{4}) \| (\w+) \| (\d+) \|", page, flags=re.MULTILINE)
    assert rows == [(code, kind.__name__, str(kind.exit_code)) for code, kind in sorted(BY_CODE.items())]


def test_every_link_between_the_pages_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
