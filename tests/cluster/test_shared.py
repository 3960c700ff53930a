"""Objects that a whole cluster shares: one for all who name it, whoever made it, and again one when it is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from roma_ray.cluster import Backend
from roma_ray.cluster.shared import Shared, SharedLost, cpu_count
from tests.cluster.conftest import until

ROOT = Path(__file__).parents[2]
COUNTER = "tests.cluster.counter:Counter"
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.ray]


def shared(name: str, *arguments: Any, idle_s: float = 60.0) -> Shared:
    return Shared(name, COUNTER, *arguments, idle_s=idle_s)


async def test_all_who_name_it_have_the_same_one(ray_backend: Backend) -> None:
    one, other = shared("same", 10), shared("same", 10)
    assert sorted(await asyncio.gather(one.call("add", 1), other.call("add", 1))) == [11, 12]
    assert await shared("another").call("add", 1) == 1


async def test_what_it_raises_comes_out_as_itself(ray_backend: Backend) -> None:
    with pytest.raises(KeyError, match="a bug"):
        await shared("raises").call("fail")


async def test_when_its_process_dies_the_next_call_has_a_new_one(ray_backend: Backend) -> None:
    counter = shared("dies")
    await counter.call("add", 5)
    os.kill(await counter.call("pid"), signal.SIGKILL)
    with pytest.raises(SharedLost):
        while True:
            await counter.call("add", 0)
    async with asyncio.timeout(30):
        assert await _again(counter) == 1


async def _again(counter: Shared) -> int:
    while True:
        try:
            return await counter.call("add", 1)
        except SharedLost:
            await asyncio.sleep(0.05)


async def test_it_ends_when_nobody_has_used_it_for_a_while(ray_backend: Backend) -> None:
    counter = shared("idle", idle_s=0.5)
    pid = await counter.call("pid")
    await until(lambda: not psutil.pid_exists(pid))
    assert await _again(counter) == 1


async def test_it_outlives_the_program_that_made_it(ray_backend: Backend) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.sharing", "outlives"),
        cwd=ROOT,
        env=os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address},
        stdout=asyncio.subprocess.PIPE,
    )
    assert (await program.communicate())[0].decode() == "7\n"
    await asyncio.sleep(1)
    assert await shared("outlives").call("add", 1) == 8


async def test_a_process_that_is_not_connected_starts_no_ray_of_its_own() -> None:
    program = (
        "import asyncio; from roma_ray.cluster.shared import Shared; "
        "asyncio.run(Shared('x', 'tests.cluster.counter:Counter', idle_s=60.0).call('add', 1))"
    )
    ended = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    assert b"SharedLost: x: this process is not connected to Ray" in (await ended.communicate())[1]


async def test_the_cpus_of_the_cluster_are_known(ray_backend: Backend) -> None:
    assert await asyncio.to_thread(cpu_count) >= 1
