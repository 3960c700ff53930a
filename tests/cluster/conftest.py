from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from roma_ray.cluster import Backend, Session, create_backend
from roma_ray.config.schema import ClusterConfig
from tests.cluster import work


@pytest_asyncio.fixture(
    scope="session", loop_scope="session", params=["inline", pytest.param("local", marks=pytest.mark.ray)]
)
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    """Each backend once for all tests: a Ray takes seconds to start."""
    async for backend in opened(ClusterConfig(mode=request.param, max_workers=2)):
        yield backend


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_backend() -> AsyncIterator[Backend]:
    """On the same Ray as `backend`, with workers of its own."""
    async for backend in opened(ClusterConfig(mode="local", max_workers=2)):
        yield backend


async def opened(config: ClusterConfig) -> AsyncIterator[Backend]:
    backend = create_backend(config)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


@pytest_asyncio.fixture(loop_scope="session")
async def session(backend: Backend, tmp_path: Path) -> AsyncIterator[Session]:
    session = session_in(tmp_path)
    await backend.open_session(session)
    yield session
    await backend.close_session(session.id)


def session_in(folder: Path) -> Session:
    return Session(id=folder.name, setup=work.setup, argument=folder, teardown=work.teardown)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)
