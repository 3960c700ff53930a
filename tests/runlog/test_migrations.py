"""Run logs that older versions wrote."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from roma_ray.config.schema import RunlogConfig
from roma_ray.runlog.events import EventType
from roma_ray.runlog.log import RunLog
from roma_ray.runlog.migrations import VERSION
from tests.runlog.conftest import StartHolder

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run log of version 1."""
    return Path(shutil.copy(GOLDEN / "format-1.sqlite", tmp_path / "runs.db"))


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def test_an_old_log_is_brought_up_to_date_and_kept_beside_as_it_was(path: Path, url: str) -> None:
    before = rows(path, "SELECT * FROM events")
    (run_id,) = rows(path, "SELECT run_id FROM runs")[0]
    log = await RunLog.open(RunlogConfig(url=url))
    assert len(await log.read(str(run_id))) == len(before)
    assert (await log.take(str(run_id))).epoch == 3
    await log.close()
    kept = path.with_name("runs.db.before-2")
    assert rows(kept, "SELECT * FROM events") == before
    assert rows(kept, "SELECT version FROM runlog_version") == [(1,)]
    assert rows(path, "SELECT version FROM runlog_version") == [(VERSION,)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["runs.db", "runs.db.before-2"]


async def test_a_holder_of_the_old_version_keeps_nobody_out_and_an_opened_log_is_not_copied_again(
    path: Path, url: str
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE runs SET status = 'running', lease_expires_at = 9e9, owner_host = 'elsewhere'")
        connection.commit()
    log = await RunLog.open(RunlogConfig(url=url))
    (row,) = await log.runs()
    assert row.status == "interrupted"
    await log.close()
    path.with_name("runs.db.before-2").unlink()
    await (await RunLog.open(RunlogConfig(url=url))).close()
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


async def test_an_old_log_has_the_same_tables_as_a_new_one_afterwards(path: Path, url: str) -> None:
    new = path.with_name("new.db")
    for at in (url, f"sqlite:///{new}"):
        await (await RunLog.open(RunlogConfig(url=at))).close()
    for table in ("runs", "events", "inbox"):
        for pragma in ("table_info", "index_list"):
            assert rows(path, f"PRAGMA {pragma}({table})") == rows(new, f"PRAGMA {pragma}({table})")


async def test_of_processes_that_open_an_old_log_at_once_one_changes_it(path: Path, start_holder: StartHolder) -> None:
    holders = await asyncio.gather(*[start_holder("create", f"run{n}") for n in range(3)])
    assert [await holder.says() for holder in holders] == ["held 1"] * 3
    assert rows(path.with_name("runs.db.before-2"), "SELECT version FROM runlog_version") == [(1,)]
    log = await RunLog.open(RunlogConfig(url=f"sqlite:///{path}"))
    assert [event.type for event in await log.read("run2")] == [EventType.RUN_STARTED]
    await log.close()
