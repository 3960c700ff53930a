"""What is particular to the run log in an SQLite file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import ConfigError, FolderUnusable
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.log import RunLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def open_at(path: Path) -> RunLog:
    return await RunLog.open(RunlogConfig(url=f"sqlite:///{path}"))


async def test_a_database_that_is_locked_for_five_seconds_is_waited_for(path: Path) -> None:
    log = await open_at(path)
    lease = await log.create("run", goal="g", started={})
    rival = sqlite3.connect(path, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")
    append = log.append(lease, NewEvent(type=EventType.WARNING))
    await asyncio.sleep(5)
    assert not append.done()
    assert len(await log.read("run")) == 1
    rival.execute("COMMIT")
    assert await asyncio.wait_for(append, 10) == 2
    await log.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///x.db?mode=ro", "mysql://h/d", "runs.db"])
async def test_a_url_that_names_no_file_is_refused_with_the_right_spelling(url: str) -> None:
    with pytest.raises(ConfigError, match=r"runlog\.url") as error:
        await RunLog.open(RunlogConfig(url=url))
    assert "sqlite:///PATH" in error.value.cure


async def test_a_path_that_cannot_be_used_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no database, but long enough to be looked at as one " * 40)
    for path, reason in (
        (tmp_path / "file", "file is not a database"),
        (tmp_path / "file/runs.db", "File exists|Not a directory"),
        (tmp_path, "it is a folder"),
    ):
        with pytest.raises(FolderUnusable, match=f"{path} cannot be used: ({reason})") as error:
            await open_at(path)
        assert "runlog.url" in error.value.cure


async def test_a_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=path.parent, fstype="nfs4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
    with pytest.raises(FolderUnusable, match="network file system"):
        await open_at(path)


async def test_a_tilde_is_the_home_folder_and_missing_folders_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    await (await RunLog.open(RunlogConfig(url="sqlite:///~/a/b/runs.db"))).close()
    assert (tmp_path / "a/b/runs.db").is_file()


async def test_a_log_of_a_newer_version_is_left_alone(path: Path) -> None:
    await (await open_at(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE runlog_version SET version = 99")
    with pytest.raises(ConfigError, match="version 99"):
        await open_at(path)


@pytest.mark.parametrize(("durability", "synchronous"), [("power", 2), ("process", 1)])
async def test_durability_decides_whether_each_commit_is_flushed(path: Path, durability: str, synchronous: int) -> None:
    log = await RunLog.open(RunlogConfig.model_validate({"url": f"sqlite:///{path}", "durability": durability}))
    with log._database.engine.connect() as connection:  # pyright: ignore[reportPrivateUsage]
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    await log.close()


async def test_a_log_in_memory_is_shared_by_its_name_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = await RunLog.open(RunlogConfig(url="memory://one"))
    await log.create("run", goal="g", started={})
    await log.close()
    for url, runs in (("memory://one", 1), ("memory://two", 0), ("memory://", 0)):
        log = await RunLog.open(RunlogConfig(url=url))
        assert len(await log.runs()) == runs
        await log.close()
    assert os.listdir() == []
    with pytest.raises(ConfigError, match="memory://one/two"):
        await RunLog.open(RunlogConfig(url="memory://one/two"))
