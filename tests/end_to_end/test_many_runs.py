"""Many runs in one process: they share nothing but the cluster and the log, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import json

import psutil

from tests.end_to_end.conftest import Solving
from tests.scripted.client import Scripted


async def test_two_runs_at_once_know_nothing_of_each_other(solving: Solving, scripted: Scripted) -> None:
    scripted.reset(latency_s=0.02)
    one, other = await asyncio.gather(solving("ALPHA N=6"), solving("BETA CHAIN=4", "limits.max_lm_calls=60"))
    assert (one.status, other.status) == ("completed", "completed")
    assert one.run_id != other.run_id
    assert (one.usage.lm_calls, other.usage.lm_calls) == (15, 11)
    for entry in scripted.log():
        text = json.dumps(entry["messages"])
        assert ("ALPHA" in text) != ("BETA" in text), "a prompt speaks of one run only"


async def test_the_same_goal_twice_is_two_runs_with_the_same_prompts(inline: Solving, scripted: Scripted) -> None:
    first = await inline("N=3 of it")
    prompts = [entry["messages"] for entry in scripted.log()]
    scripted.reset()
    second = await inline("N=3 of it")
    assert first.output == second.output
    again = [entry["messages"] for entry in scripted.log()]
    assert sorted(map(json.dumps, prompts)) == sorted(map(json.dumps, again)), "no ids or clock times in prompts"


async def test_a_hundred_solves_leave_memory_flat(inline: Solving, scripted: Scripted) -> None:
    scripted.configure(keep_messages=False)
    process = psutil.Process()

    async def solves(count: int) -> float:
        for _ in range(count):
            assert (await inline("N=5 of it")).status == "completed"
        gc.collect()
        return process.memory_info().rss / 2**20

    await solves(20)
    after_warm_up_mib = await solves(5)
    after_a_hundred_mib = await solves(75)
    assert after_a_hundred_mib - after_warm_up_mib < 12, "75 more runs of 13 calls each"
