"""Every command on the pages about steering and replaying runs, in the order in which it stands there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_readme import COMMANDS, ROOT, blocks, environ  # noqa: F401

_WAITS = "  # exit code 3"


@pytest.mark.parametrize(("page", "runs"), [("steering.md", 4), ("replay.md", 2)])
@pytest.mark.timeout(400)
def test_every_command_of_the_page_runs(page: str, runs: int, environ: dict[str, str], tmp_path: Path) -> None:  # noqa: F811
    environ["PATH"] = f"{_programs(tmp_path / 'bin')}:{os.environ['PATH']}"
    made: list[str] = []
    ids: dict[str, str] = {}
    for line in "".join(blocks("bash", (ROOT / "docs" / page).read_text())).splitlines():
        # The n-th id on the page stands for the n-th run of its commands; the directives make the runs have parts.
        for example in re.findall(r"\b01m8\w{4}\b", line):
            if example not in ids:
                ids[example] = made[len(ids)]
        text = re.sub(r"\b01m8\w{4}\b", lambda match: ids[match[0]], line)
        text = text.replace("three harbours", "three harbours N=3").replace("four lighthouses", "four lighthouses N=4")
        done = subprocess.run(
            ["bash", "-c", text], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == (3 if line.endswith(_WAITS) else 0), f"{line}\n{done.stdout}{done.stderr}"
        made += [run for run in re.findall(r"\brun (\w{26}): ", done.stderr) if run not in made]
    assert len(made) == runs


def _programs(folder: Path) -> Path:
    """A folder with the commands as the pages call them."""
    folder.mkdir()
    for name in ("python", "roma-ray"):
        program = " ".join(f"'{part}'" for part in COMMANDS[name])
        (folder / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (folder / name).chmod(0o755)
    return folder
