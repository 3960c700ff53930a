"""Limits of a provider over a whole run, a whole cluster, and programs that share it; what the server saw must fit."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest
import ray

from roma_ray.api import load_events
from roma_ray.config import load_config
from roma_ray.runlog.events import EventType
from tests.end_to_end.conftest import Solving
from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

FLAT = ("limits.max_depth=1", "limits.max_subtasks=100")


async def test_six_children_and_three_refusals_make_one_pause_and_at_most_nine_requests(
    solving: Solving, scripted: Scripted
) -> None:
    # All six are under way before the first is refused.
    rests = ("ELAT=1.5 EFAIL=429:1:2", "ELAT=1.5 fine")
    refused, fine = ([task(f"child {n} {rest}") for n in range(3)] for rest in rests)
    result = await solving(plan_goal("six", *refused, *fine), *FLAT)
    assert result.status == "completed"
    requests = scripted.log("executor")
    assert len(requests) <= 9
    last_refusal = max(entry["t_answered"] for entry in requests if entry["status"] == 429)
    probe, *others = sorted(entry["t_received"] for entry in requests)[6:]
    assert probe >= last_refusal + 2 - 0.1
    assert len(others) == 2


async def test_no_more_requests_are_open_than_allowed_wherever_the_nodes_run(
    solving: Solving, scripted: Scripted
) -> None:
    scripted.configure(latency_s=0.2)
    result = await solving("Do all N=60", *FLAT, "lm.max_concurrency=6")
    assert result.status == "completed"
    assert scripted.stats()["max_open"] == 6


async def test_who_waits_says_what_for(inline: Solving, scripted: Scripted) -> None:
    scripted.configure(latency_s=0.6)
    result = await inline("Do all N=6", *FLAT, "lm.max_concurrency=1")
    host = scripted.base_url.split("/")[2]
    events = await load_events(load_config([]).config, result.run_id)
    told = [event.payload for event in events if event.type is EventType.CALL_WAITING]
    assert {payload["reason"] for payload in told} == {f"a free place at {host} (1 open)"}
    assert len(told) <= 6 * 3


@pytest.mark.ray
async def test_programs_on_one_cluster_share_its_limits(
    scripted: Scripted, solving_on_ray: Solving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await solving_on_ray("hi")
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    scripted.reset(latency_s=0.3)
    flat = (*FLAT, "lm.max_concurrency=4")
    drivers = [Driver(tmp_path / str(n), scripted, f"goal=Do all {n} N=30", *flat, backend="auto") for n in range(2)]
    assert [driver.finish()[0] for driver in drivers] == [0, 0]
    stats = scripted.stats()
    assert stats["by_role"]["executor"] == 60
    assert stats["max_open"] <= 4
    log = scripted.log("executor")
    assert any(
        abs(one["t_received"] - other["t_received"]) < 0.3
        for one in log
        for other in log
        if "all 0" in str(one["messages"]) and "all 1" in str(other["messages"])
    ), "they ran at the same time"


@pytest.mark.ray
async def test_a_run_goes_on_within_its_limits_when_their_keeper_is_killed(
    scripted: Scripted, solving_on_ray: Solving
) -> None:
    await solving_on_ray("hi")
    scripted.reset(latency_s=0.5)
    solving = asyncio.create_task(solving_on_ray("Do all N=60", *FLAT, "lm.max_concurrency=4"))
    await asyncio.to_thread(scripted.wait_for, answered=10)
    keepers = [p for p in psutil.Process().children(recursive=True) if "ray::_Host" in " ".join(p.cmdline())]
    assert keepers
    for keeper in keepers:
        keeper.kill()
    assert (await solving).status == "completed"
    assert scripted.stats()["max_open"] <= 4
    assert any("ray::_Host" in " ".join(p.cmdline()) for p in psutil.Process().children(recursive=True))


@pytest.mark.slow
@pytest.mark.ray
async def test_a_coordinator_that_stands_still_pays_for_nothing_new(scripted: Scripted, tmp_path: Path) -> None:
    driver = Driver(tmp_path, scripted, "goal=Say it. ALAT=16", backend="local")
    await asyncio.to_thread(scripted.wait_for, open_now=1, timeout_s=60)
    os.kill(driver.process.pid, signal.SIGSTOP)
    await asyncio.to_thread(scripted.wait_for, answered=1)
    await asyncio.sleep(1.5)
    assert scripted.stats()["requests"] == 1, "the Executor is not asked"
    os.kill(driver.process.pid, signal.SIGCONT)
    code, document = await asyncio.to_thread(driver.finish)
    assert (code, document["status"]) == (0, "completed")
    assert scripted.stats()["requests"] == 2
