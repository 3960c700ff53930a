"""Run logs to test against; every test that takes `url` runs on every dialect listed here."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from roma_ray.config.schema import RunlogConfig
from roma_ray.runlog.log import RunLog

OpenLog = Callable[..., Awaitable[RunLog]]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database that is removed after the test."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres").url
    return f"sqlite:///{tmp_path / 'state' / 'runs.db'}"


@pytest_asyncio.fixture
async def open_log(url: str) -> AsyncGenerator[OpenLog]:
    """Opens the database of `url`, as often as one likes; closes what was opened."""
    opened: list[RunLog] = []

    async def open_log(*, lease_ttl_s: float = 15.0) -> RunLog:
        opened.append(await RunLog.open(RunlogConfig(url=url), lease_ttl_s=lease_ttl_s))
        return opened[-1]

    yield open_log
    for log in opened:
        await log.close()


class Holder:
    """Another process that holds, or tries to hold, a run; see tests/runlog/holder.py."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())

    async def says(self) -> str:
        """Its next line; empty when it has ended."""
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 60)).decode().strip()


StartHolder = Callable[..., Awaitable[Holder]]


@pytest_asyncio.fixture
async def start_holder(url: str) -> AsyncGenerator[StartHolder]:
    """Starts holders (how, run id); kills what is left of them."""
    holders: list[Holder] = []

    async def start(how: str, run_id: str, *, ttl_s: float = 60.0, faults: str = "") -> Holder:
        command = (sys.executable, "-m", "tests.runlog.holder", url, how, run_id, str(ttl_s))
        pipe = asyncio.subprocess.PIPE
        environment = os.environ | {"ROMA_RAY_FAULTS": faults}
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=environment)
        holders.append(Holder(process))
        return holders[-1]

    yield start
    for holder in holders:
        if holder.process.returncode is None:
            holder.process.kill()
        await holder.process.wait()
