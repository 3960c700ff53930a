"""What happens to a run when its database has no room left."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import StoreFull
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus
from tests.postgres import PostgresServer
from tests.small_disk import SmallDisk, small_disk


@pytest.fixture(params=["sqlite", "postgres"])
def disk_and_url(request: pytest.FixtureRequest) -> Generator[tuple[SmallDisk, str]]:
    """A disk of a few MiB, and the URL of an empty database on it."""
    if request.param == "sqlite":
        with small_disk(2) as disk:
            yield disk, f"sqlite:///{disk.path / 'runs.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with small_disk(12) as disk:
        server.give(disk.path)
        server.run(f"CREATE TABLESPACE small LOCATION '{disk.path}'", "CREATE DATABASE small TABLESPACE small")
        yield disk, server.url_of("small")
        server.run("DROP DATABASE small WITH (FORCE)", "DROP TABLESPACE small")


def large(number: int) -> NewEvent:
    return NewEvent(type=EventType.WARNING, payload={"number": number, "text": os.urandom(30_000).hex()})


async def test_a_full_disk_is_said_at_once_and_once_there_is_room_the_run_goes_on(
    disk_and_url: tuple[SmallDisk, str], caplog: pytest.LogCaptureFixture
) -> None:
    disk, url = disk_and_url
    log = await RunLog.open(RunlogConfig(url=url))
    lease = await log.create("run", goal="g", started={})
    committed: list[int] = []
    with pytest.raises(StoreFull, match="the run log is full: ") as error:
        for number in range(1000):
            await log.append(lease, large(number))
            committed.append(number)
    assert "make room" in error.value.cure
    assert "trying again" not in caplog.text
    assert lease.failed.exception() is error.value and not lease.lost.is_set()
    with pytest.raises(StoreFull):
        await log.append(lease, large(-1))

    disk.grow(64)

    await log.release(lease, RunStatus.INTERRUPTED)
    lease = await log.take("run")
    await log.append(lease, large(-2))
    story = await log.read("run")
    assert [event.payload["number"] for event in story if event.type is EventType.WARNING] == [*committed, -2]
    assert [event.seq for event in story] == list(range(1, len(story) + 1))
    await log.close()
