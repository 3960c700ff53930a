"""Calls that wait: for a pause, for their share of a minute, for the coordinator. What for is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import dspy
import pytest

from roma_ray.config import LmConfig
from roma_ray.errors import QuotaTooSmall
from roma_ray.lm.hub import LmHub
from roma_ray.lm.retry import unwrap
from roma_ray.redact import Secret
from roma_ray.types import CallRecord, CallWaiting
from tests.lm.conftest import Step, ask
from tests.scripted.client import Scripted

BuildLm = Callable[..., dspy.LM]


def waits(step: Step) -> list[CallWaiting]:
    return [record for record in step.records if isinstance(record, CallWaiting)]


async def test_a_pause_is_told_with_its_length_and_then_the_answer_comes(scripted_lm: BuildLm, scripted: Scripted):
    step = Step.new()
    await ask(scripted_lm(), "Refused once. EFAIL=429:1:2", step)
    (wait,) = waits(step)
    host = scripted.base_url.split("/")[2]
    assert (wait.step, wait.role, wait.reason) == ("root/descend~0", "executor", f"rate limit of {host}: 1 s")
    assert 0 < wait.wait_s <= 1
    assert isinstance(step.records[-1], CallRecord)
    assert step.records[-1].usage.failed_calls == 1


async def test_nobody_is_told_where_there_is_no_step(scripted_lm: BuildLm):
    assert await ask(scripted_lm(), "Refused once. EFAIL=429:1:1.5")


async def test_six_calls_and_three_refusals_make_one_pause_and_nine_requests(scripted_lm: BuildLm, scripted: Scripted):
    lm = scripted_lm(max_retries=3)
    goals = [f"Call {i}." + (" EFAIL=429:1:1.5" if i < 3 else " ELAT=0.3") for i in range(6)]
    await asyncio.gather(*(ask(lm, goal) for goal in goals))
    log = scripted.log()
    assert len(log) == 9
    refused_at = max(entry["t_answered"] for entry in log if entry["status"] == 429)
    probe, *others = sorted(entry["t_received"] for entry in log)[6:]
    assert probe >= refused_at + 1.5 - 0.05
    probe_answered = next(entry["t_answered"] for entry in log if entry["t_received"] == probe)
    assert min(others) >= probe_answered - 0.01, "one goes first"


async def test_a_request_larger_than_the_quota_is_an_error_before_anything_is_sent(
    scripted_lm: BuildLm, scripted: Scripted
):
    with pytest.raises(Exception) as caught:
        await ask(scripted_lm(tokens_per_minute=400, max_tokens=500), "Say it.")
    error = unwrap(caught.value)
    assert isinstance(error, QuotaTooSmall)
    assert "lm.tokens_per_minute" in error.line
    assert scripted.stats()["requests"] == 0


async def test_tokens_that_an_answer_did_not_need_are_free_again(scripted: Scripted):
    # A key of its own, since the minutes of a provider are counted by key. Each call may need 700 tokens and needs 200.
    hub = LmHub({f"openai@{scripted.base_url}": Secret("sk-counts-alone")})
    config = LmConfig(model="openai/scripted", api_base=scripted.base_url, tokens_per_minute=2_500, max_tokens=500)
    lm = hub.lm("executor", config, default_max_tokens=500)
    async with asyncio.timeout(20):
        for i in range(6):
            await ask(lm, f"Say {i}.")
    assert scripted.stats()["answered"] == 6
    await hub.aclose()


async def test_no_call_is_started_while_the_coordinator_is_not_heard(scripted_lm: BuildLm, scripted: Scripted):
    lm, step = scripted_lm(), Step.new()
    step.scope.hearing.renew(0.0)
    waiting = asyncio.create_task(ask(lm, "Say it.", step))
    await asyncio.sleep(1.3)
    assert scripted.stats()["requests"] == 0
    assert [wait.reason for wait in waits(step)] == ["the coordinator"]
    step.scope.hearing.renew(5.0)
    assert await asyncio.wait_for(waiting, 5)
    assert scripted.stats()["requests"] == 1


async def test_a_call_that_got_its_place_too_late_waits_without_it(scripted_lm: BuildLm, scripted: Scripted):
    lm, unheard = scripted_lm(max_concurrency=1), Step.new()
    unheard.scope.hearing.renew(0.3)
    holding = asyncio.create_task(ask(lm, "Holds the place. ELAT=0.6"))
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(ask(lm, "Comes too late.", unheard))
    await holding
    started_s = time.monotonic()
    await ask(lm, "Of another run.")
    assert time.monotonic() - started_s < 5
    assert scripted.stats()["requests"] == 2
    waiting.cancel()
