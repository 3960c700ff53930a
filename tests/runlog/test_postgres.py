"""What is particular to the run log in PostgreSQL."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from functools import partial
from typing import Literal

import psycopg
import pytest

from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import ConfigError, ExtraMissing, StoreUnavailable
from roma_ray.runlog import database
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus
from tests.postgres import PostgresServer


async def open_at(url: str, *, durability: Literal["power", "process"] = "power") -> RunLog:
    return await RunLog.open(RunlogConfig(url=url, durability=durability))


def note(text: str) -> NewEvent:
    return NewEvent(type=EventType.WARNING, payload={"text": text})


async def texts(log: RunLog, run_id: str) -> list[str]:
    return [event.payload["text"] for event in await log.read(run_id) if event.type is EventType.WARNING]


@pytest.fixture
def troubled(postgres: PostgresServer) -> Generator[PostgresServer]:
    """A server that the test may stop; it runs again afterwards as the next test expects it."""
    yield postgres
    postgres.restart()


@pytest.fixture
def guest(postgres: PostgresServer) -> Generator[str]:
    """The URL of the database for a user who may not make tables in it."""
    name = postgres.url.rpartition("/")[2]
    postgres.run("CREATE USER guest PASSWORD 'guest password'")
    yield postgres.url_of(name, user="guest", password="guest password")
    postgres.run("DROP USER guest")


async def test_what_the_server_refuses_is_said_at_once_without_the_password(
    postgres: PostgresServer, guest: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = postgres.url.rpartition("/")[2]
    for url, words in (
        (postgres.url_of(name, password="wrong secret"), "password authentication failed"),
        (postgres.url_of("nowhere"), 'database "nowhere" does not exist'),
        (postgres.url_of(name, user="nobody"), "password authentication failed"),
        (f"{postgres.url}?colour=blue", 'invalid connection option "colour"'),
        (f"{postgres.url}?sslmode=verify-full", "SSL"),
        (guest, "permission denied for schema public"),
    ):
        with pytest.raises(ConfigError, match="cannot be used: ") as error:
            await open_at(url)
        assert words in error.value.message and "runlog.url" in error.value.cure
        assert "secret" not in error.value.line and "guest password" not in error.value.line
    assert "trying again" not in caplog.text


async def test_a_user_without_the_right_to_make_tables_uses_those_that_are_there(
    postgres: PostgresServer, guest: str
) -> None:
    await (await open_at(postgres.url)).close()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO guest")
        connection.execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO guest")
    log = await open_at(guest)
    lease = await log.create("run", goal="g", started={})
    await log.send("run", "cancel", {})
    assert await log.append(lease, note("a")) == 2
    await log.close()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP OWNED BY guest")


async def test_the_short_spelling_and_a_missing_driver_are_understood(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = postgres.url.replace("postgresql://", "postgres://")
    await (await open_at(short)).close()
    monkeypatch.delitem(sys.modules, "roma_ray.runlog.postgres")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraMissing) as error:
        await open_at(short)
    assert error.value.cure == "pip install 'roma_ray[postgres]'"


@pytest.mark.parametrize(
    ("durability", "of_server", "wanted"),
    [("power", "on", "on"), ("power", "off", "on"), ("power", "local", "local"), ("process", "on", "off")],
)
async def test_durability_decides_whether_each_commit_is_flushed(
    postgres: PostgresServer, durability: Literal["power", "process"], of_server: str, wanted: str
) -> None:
    name = postgres.url.rpartition("/")[2]
    postgres.run(f"ALTER DATABASE {name} SET synchronous_commit = {of_server}")
    log = await open_at(postgres.url, durability=durability)
    with log._database.engine.connect() as connection:  # pyright: ignore[reportPrivateUsage]
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == wanted
    await log.close()


async def test_runs_of_other_coordinators_are_not_waited_for(postgres: PostgresServer) -> None:
    log, other = await open_at(postgres.url), await open_at(postgres.url)
    await log.create("theirs", goal="g", started={})
    lease = await log.create("mine", goal="g", started={})
    # What a coordinator does that stands still in the middle of a transaction.
    with psycopg.connect(postgres.url) as connection:
        connection.execute("SELECT * FROM runs WHERE run_id = 'theirs' FOR UPDATE")
        connection.execute("INSERT INTO events VALUES ('theirs', 2, 1, 0, 'warning', '', '\\x00')")
        async with asyncio.timeout(5):
            assert await log.append(lease, note("a")) == 2
            await other.create("another", goal="g", started={})
            await other.send("mine", "note", {})
            await (await open_at(postgres.url)).close()
            assert len(await other.read("theirs")) == 1 and len(await other.runs()) == 3
            await log.release(lease, RunStatus.WAITING)
            await other.take("mine")
        connection.rollback()
    await log.close()
    await other.close()


async def test_a_server_that_goes_away_every_few_seconds_loses_and_doubles_nothing(
    troubled: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    log = await open_at(troubled.url)
    loop, longest_s, done = asyncio.get_running_loop(), [0.0], asyncio.Event()
    crash = partial(troubled.stop, "crash")

    async def work(number: int) -> tuple[str, int]:
        run_id, count = f"run{number}", 0
        lease = await log.create(run_id, goal="g", started={})
        while not done.is_set():
            began = loop.time()
            assert await log.append(lease, note(str(count))) == count + 2
            longest_s[0] = max(longest_s[0], loop.time() - began)
            count += 1
            await asyncio.sleep(0.005)
        await log.release(lease, RunStatus.COMPLETED)
        return run_id, count

    async def trouble() -> None:
        for stop, away_s in ((crash, 0.0), (troubled.stop, 1.5), (crash, 0.5), (troubled.stop, 0.0)):
            await asyncio.sleep(2)
            await asyncio.to_thread(stop)
            await asyncio.sleep(away_s)
            await asyncio.to_thread(troubled.start)
        await asyncio.sleep(1)
        done.set()

    troubling = asyncio.create_task(trouble())
    written = await asyncio.gather(*[work(number) for number in range(20)])
    await troubling

    for run_id, count in written:
        assert await texts(log, run_id) == [str(n) for n in range(count)]
        assert [event.seq for event in await log.read(run_id)] == list(range(1, count + 2))
    assert {row.status for row in await log.runs()} == {RunStatus.COMPLETED}
    assert longest_s[0] < database.PATIENCE_S
    assert "the run log cannot be reached, trying again in 0.02 s: " in caplog.text
    await log.close()


async def test_a_server_that_stands_still_is_given_up_in_time_and_used_again_once_it_goes_on(
    troubled: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "PATIENCE_S", 4.0)
    log = await open_at(troubled.url)
    lease, other = await log.create("run", goal="g", started={}), await log.create("other", goal="g", started={})
    assert await log.append(lease, note("before")) == 2
    listening = asyncio.ensure_future(anext(log.messages(other)))
    troubled.freeze()
    await asyncio.sleep(1)
    try:
        with pytest.raises(StoreUnavailable, match="could not be reached for 4 s: the server does not answer"):
            await asyncio.wait_for(log.append(lease, note("lost")), 20)
        assert isinstance(lease.failed.exception(), StoreUnavailable)
        with pytest.raises(StoreUnavailable):
            await asyncio.wait_for(log.read("run"), 20)
    finally:
        troubled.thaw()
    with pytest.raises(StoreUnavailable):
        await log.append(lease, note("a gap"))
    assert await log.append(other, note("goes on")) == 2
    await log.send("other", "hello", {})
    assert (await asyncio.wait_for(listening, 10)).kind == "hello"
    await log.release(lease, RunStatus.INTERRUPTED)
    await log.take("run")
    # The server may have made the commit that nobody waited for any more, but nothing after it.
    assert await texts(log, "run") in (["before"], ["before", "lost"])
    await log.close()


async def test_a_server_that_crashed_and_lost_what_it_had_committed_is_found_out(troubled: PostgresServer) -> None:
    troubled.stop()
    troubled.start(wal_writer_delay="10s")
    log = await open_at(troubled.url, durability="process")
    lease = await log.create("run", goal="g", started={})
    kept = await log.create("kept", goal="g", started={})
    assert await log.append(lease, note("kept")) == 2
    troubled.run("CHECKPOINT")
    for number in range(3, 6):
        assert await log.append(lease, note("gone")) == number
    troubled.stop("crash")
    troubled.start()

    with pytest.raises(StoreUnavailable, match="lost events of run run") as error:
        await log.append(lease, note("after the gap"))
    assert "durability=power" in error.value.cure and lease.failed.exception() is error.value
    assert await log.append(kept, note("nothing of mine was lost")) == 2
    await log.release(lease, RunStatus.INTERRUPTED)
    lease = await log.take("run")
    assert await log.append(lease, note("goes on")) == 4
    assert await texts(log, "run") == ["kept", "goes on"]
    await log.close()
