"""Solves against the scripted server, in a home of their own, on both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path

import pytest

from roma_ray import solve
from roma_ray.engine.result import Result
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted

Solving = Callable[..., Awaitable[Result]]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all solves of the session, so that one cluster serves them all."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def no_driver_is_left() -> Generator[None]:
    """A test that fails must not leave a driver that talks to the next test's server."""
    yield
    for driver in Driver.started:
        if driver.process.poll() is None:
            driver.kill()
    Driver.started.clear()


@pytest.fixture(params=["inline", pytest.param("local", marks=pytest.mark.ray)])
def solving(request: pytest.FixtureRequest, scripted: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> Solving:
    """`await solving(goal, *overrides)` gives the result of a solve against `scripted`, on each backend."""
    return _solving(request.param, scripted, home, monkeypatch)


@pytest.fixture
def inline(scripted: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> Solving:
    """The same, inline only: for what does not depend on where a node runs."""
    return _solving("inline", scripted, home, monkeypatch)


@pytest.fixture
def solving_on_ray(scripted: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> Solving:
    """The same, on Ray only."""
    return _solving("local", scripted, home, monkeypatch)


def _solving(backend: str, scripted: Scripted, home: Path, monkeypatch: pytest.MonkeyPatch) -> Solving:
    monkeypatch.setenv("ROMA_RAY_HOME", str(home))
    reached = (f"cluster={backend}", "lm.model=openai/scripted", f"lm.api_base={scripted.base_url}")

    async def solved(goal: str, *overrides: str) -> Result:
        # The sync façade keeps its cluster between solves; starting Ray for each test would take most of the time.
        return await asyncio.to_thread(solve, goal, overrides=[*reached, *overrides])

    return solved
