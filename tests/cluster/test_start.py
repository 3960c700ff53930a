"""Which Ray a run gets, and what a program with one prints."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from roma_ray.cluster import create_backend
from roma_ray.cluster.environment import address_of
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import ConfigError
from tests.cluster import work

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("config", "environment", "address"),
    [
        (ClusterConfig(), None, "local"),
        (ClusterConfig(), "10.0.0.1:6379", "10.0.0.1:6379"),
        (ClusterConfig(address="10.0.0.2:6379"), "10.0.0.1:6379", "10.0.0.2:6379"),
        (ClusterConfig(mode="local"), "10.0.0.1:6379", "local"),
    ],
)
def test_only_a_named_cluster_is_joined(
    monkeypatch: pytest.MonkeyPatch, config: ClusterConfig, environment: str | None, address: str
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if environment:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    assert address_of(config) == address


async def test_a_cluster_that_cannot_be_joined_is_a_config_error_at_once() -> None:
    addresses = ["127.0.0.1:1", "ray://127.0.0.1:10001", "noport"]
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.joining", *addresses), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    lines = (await asyncio.wait_for(program.communicate(), 60))[0].decode().splitlines()
    assert len(lines) == len(addresses)
    assert all(line.startswith("R0101") and address in line for line, address in zip(lines, addresses, strict=True))


@pytest.mark.parametrize("config", [{"isolation": "process"}, {"process_types": ["CODE_INTERPRET"]}])
def test_inline_refuses_isolation(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="inline"):
        create_backend(ClusterConfig.model_validate({"mode": "inline", **config}))


def test_inline_imports_no_ray() -> None:
    code = (
        "import sys; from roma_ray.cluster import create_backend; from roma_ray.config.schema import ClusterConfig;"
        "create_backend(ClusterConfig(mode='inline')); sys.exit('ray' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.ray
@pytest.mark.timeout(400)  # A busy machine may need three starts of Ray.
async def test_stdout_is_the_programs_own_and_ctrl_c_cleans_up(tmp_path: Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.program", "local", str(tmp_path), "on"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert program.stdout is not None
    address = await program.stdout.readline()
    assert await program.stdout.readline() == b"lost\n"
    while len(work.marks(tmp_path, "setup")) < 2:
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    os.killpg(program.pid, signal.SIGINT)
    rest, _ = await asyncio.wait_for(program.communicate(), 60)
    assert (rest, program.returncode) == (b"", -signal.SIGINT)
    assert address.strip().decode().endswith(tuple("0123456789"))
    assert len(work.marks(tmp_path, "finally")) == 1
    assert len(work.marks(tmp_path, "teardown")) == 1
