"""The database of many runs goes away and comes back: they all end well, and somebody is told."""

from __future__ import annotations

import asyncio
import logging
import random
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from roma_ray.api import asolve
from roma_ray.config import load_config
from tests.faults.site import Site
from tests.postgres import PostgresServer
from tests.scripted.client import Scripted
from tests.scripted.directives import plan_goal, task

pytestmark = pytest.mark.timeout(400)

RUNS = 100
AT_ONCE = 10
HANG_S = 60.0
"""Twice what a database is waited for: nothing may take longer, whatever the machine."""


@contextmanager
def stopped_now_and_then(server: PostgresServer, *, seed: int) -> Generator[list[float]]:
    """Stop the server every 2 to 5 s, for up to 2 s; gives the list of the times that it was away."""
    draw, away, enough = random.Random(seed), list[float](), threading.Event()

    def monkey() -> None:
        while not enough.wait(draw.uniform(2, 5)):
            away.append(draw.uniform(0, 2))
            server.stop(draw.choice(["fast", "crash"]))
            time.sleep(away[-1])
            server.start()

    thread = threading.Thread(target=monkey)
    thread.start()
    try:
        yield away
    finally:
        enough.set()
        thread.join()


@pytest.mark.slow
async def test_a_hundred_runs_end_well_while_postgresql_is_stopped_and_started(
    tmp_path: Path, scripted: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    server = PostgresServer()
    environ = {"ROMA_RAY_HOME": str(tmp_path), "ROMA_RAY_RUNLOG__URL": server.url}
    given = ["cluster=inline", "lm.model=openai/scripted", f"lm.api_base={scripted.base_url}"]
    config = load_config(given, environ=environ).config
    scripted.reset(latency_s=0.3)
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> tuple[str, str]:
        goal = plan_goal(f"run {number}", task(f"left of {number}"), task(f"right of {number}"))
        async with places, asyncio.timeout(HANG_S):
            result = await asolve(goal, config=config)
        return result.status.value, str(result.output)

    try:
        with caplog.at_level(logging.WARNING, "roma_ray"), stopped_now_and_then(server, seed=1) as away:
            found = await asyncio.gather(*map(one, range(RUNS)))
        expected = [await one(number) for number in range(0, RUNS, 10)]
    finally:
        server.close()
    assert {status for status, _ in found} == {"completed"}
    assert found[::10] == expected, "the answers are those of a database that stays"
    assert len({output for _, output in found}) == RUNS
    assert len(away) >= 3
    assert "the run log cannot be reached, trying again in" in caplog.text


def test_a_run_waits_while_another_process_holds_the_lock_of_its_sqlite_file(sqlite_site: Site, tmp_path: Path) -> None:
    hold = (
        "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(10)"
    )
    goal = plan_goal("the whole", task("part one"), task("part two EHOLD"), task("part three", needs=[1]))
    driver = sqlite_site.start(f"goal={goal}")
    driver.wait_committed(sqlite_site.scripted, answered=5, open_now=1)
    command = [sys.executable, "-c", hold, str(tmp_path / "runs.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        sqlite_site.scripted.release()
        code, document = driver.finish()
        assert holder.poll() == 0, "what the other process wrote comes first"
    assert (code, document["status"]) == (0, "completed")
    assert "the run log cannot be reached, trying again in" in driver.stderr
    assert sqlite_site.scripted.stats()["requests"] == document["usage"]["lm_calls"]
