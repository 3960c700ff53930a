"""`lm.hedge`: a straggler is beaten by a second request, and both are paid for in the books."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import dspy
import pytest

from roma_ray.lm.hedge import Latencies, first_answer
from roma_ray.lm.scope import Grant
from tests.lm.conftest import Step, ask
from tests.scripted.client import Scripted

BuildLm = Callable[..., dspy.LM]


def test_what_is_slow_is_known_after_twenty_answers_and_never_less_than_a_second():
    latencies = Latencies()
    for _ in range(19):
        latencies.add(4.0)
    assert latencies.slow_s is None
    latencies.add(9.0)
    assert latencies.slow_s == 9.0
    for _ in range(200):
        latencies.add(0.1)
    assert latencies.slow_s == 1.0


async def seen_by_now(lm: dspy.LM) -> None:
    """Come back when the endpoint is known to answer at once."""
    await asyncio.gather(*(ask(lm, f"Quick {i}.") for i in range(20)))


async def test_a_straggler_is_beaten_and_counts_as_a_failed_attempt(scripted_lm: BuildLm, scripted: Scripted):
    lm, step = scripted_lm(hedge=True), Step.new(grant=Grant(calls=5))
    await seen_by_now(lm)
    started_s = time.monotonic()
    assert await ask(lm, "Straggles once. EHANG=60:1", step)
    assert 1.0 <= time.monotonic() - started_s < 10
    (record,) = step.records
    assert (record.usage.lm_calls, record.usage.failed_calls) == (1, 1)
    assert step.scope.allowance.calls == 2, "the loser may be billed, so it keeps its call"
    stats = await asyncio.to_thread(scripted.wait_for, gone=1)
    assert (stats["requests"], stats["answered"], stats["open"]) == (22, 21, 0)


async def test_without_hedge_one_waits(scripted_lm: BuildLm, scripted: Scripted):
    lm = scripted_lm()
    await seen_by_now(lm)
    await ask(lm, "Straggles once. EHANG=1.5:1")
    assert scripted.stats()["requests"] == 21


@pytest.mark.parametrize(
    ("settings", "grant"), [({"max_concurrency": 1}, Grant()), ({}, Grant(calls=1)), ({}, Grant(tokens=700))]
)
async def test_no_second_request_without_a_place_or_past_the_grant(
    scripted_lm: BuildLm, scripted: Scripted, settings: dict[str, int], grant: Grant
):
    lm, step = scripted_lm(hedge=True, **settings), Step.new(grant=grant)
    await seen_by_now(lm)
    assert await ask(lm, "Straggles once. EHANG=1.5:1", step)
    assert scripted.stats()["requests"] == 21
    assert step.records[0].usage.failed_calls == 0


async def test_when_the_first_fails_the_second_counts_and_when_both_fail_the_firsts_error():
    async def request(seconds: float, error: Exception | None) -> str:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return f"after {seconds}"

    async def raced(*requests: tuple[float, Exception | None]) -> str:
        coming = iter(requests)
        started_s = time.monotonic()
        return await first_answer(
            lambda: request(*next(coming)),
            patience_s=lambda: started_s + 0.05 - time.monotonic(),
            may_double=lambda: True,
        )

    assert await raced((0.1, ValueError("first")), (0.2, None)) == "after 0.2"
    assert await raced((0.3, None), (0.1, ValueError("second"))) == "after 0.3"
    with pytest.raises(ValueError, match="first"):
        await raced((0.2, ValueError("first")), (0.01, ValueError("second")))
