"""The newcomer's first command: no key, the embedded model, a real answer; and once more with the network gone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
KEYS = ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
# What `unshare --net` leaves is a loopback device that is down; Ray and the model's server need it up.
LOOPBACK_UP = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    fcntl.ioctl(s, 0x8914, struct.pack("16sh", b"lo", 1))
os.execv(sys.argv[1], sys.argv[1:])
"""


def first_goal() -> str:
    """The goal of the README's first command."""
    found = re.search(r'scripts/solve goal="([^"]+)"', (ROOT / "README.md").read_text(encoding="utf-8"))
    assert found
    return found.group(1)


def solve(home: Path, *before: str) -> subprocess.CompletedProcess[str]:
    environ = {name: text for name, text in os.environ.items() if name not in KEYS} | {"ROMA_RAY_HOME": str(home)}
    command = [*before, sys.executable, "-m", "roma_ray.solve", f"goal={first_goal()}"]
    return subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True, timeout=800)


def test_the_first_command_answers_without_a_key_and_then_without_a_network(tmp_path: Path) -> None:
    first = solve(tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Oda Lind" in first.stdout
    assert "embedded model" in first.stderr, "it is said aloud who answers"
    assert "Apache-2.0" in first.stderr
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--net", "true"], check=False).returncode:
        pytest.skip("this machine does not let the test take the network away (unshare --net)")
    second = solve(tmp_path, "unshare", "--net", sys.executable, "-c", LOOPBACK_UP)
    assert second.returncode == 0, second.stderr
    assert "Oda Lind" in second.stdout
    assert "fetching" not in second.stderr
