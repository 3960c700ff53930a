"""Limiters that share a ledger, each as one process would have it; times are real and short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from roma_ray.errors import QuotaTooSmall
from roma_ray.lm.ledger import Answer, Ask, Keeper
from roma_ray.lm.limiter import Desk, Limiter, OwnDesk
from roma_ray.lm.rules import Limits

Build = Callable[..., Limiter]


class Unplugged:
    """A desk whose ledger can be taken away."""

    def __init__(self, *, expected: int) -> None:
        self.expected = expected
        self.keeper: Keeper | None = None

    async def ask(self, ask: Ask) -> Answer:
        if self.keeper is None:
            raise ConnectionError("nobody there")
        return self.keeper.ask(ask)


class Calls:
    """Calls at one limiter: how many are open, and how many were."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.open = self.most = self.done = 0
        self.told: list[str] = []

    async def one(self, *, turn: int = 0, tokens: int = 1, seconds: float = 0.02) -> None:
        async with self.limiter.permit(tokens, turn=turn, tell=lambda why, s: self.told.append(why)) as permit:
            permit.sent_s, permit.used_tokens = asyncio.get_running_loop().time(), tokens
            self.open += 1
            self.most = max(self.most, self.open)
            await asyncio.sleep(seconds)
            self.open -= 1
            self.done += 1


@pytest.fixture
async def build() -> AsyncGenerator[Build]:
    """`build(desk, max_concurrency=…)`: a limiter that is closed after the test."""
    built: list[Limiter] = []

    def one(desk: Desk, **limits: int) -> Limiter:
        built.append(Limiter("somewhere", desk, Limits(**{"max_concurrency": 64} | limits)))
        return built[-1]

    yield one
    for limiter in built:
        await limiter.aclose()


async def test_calls_go_in_the_order_of_their_turns(build: Build):
    calls = Calls(build(OwnDesk(), max_concurrency=1))
    order: list[int] = []

    async def one(turn: int) -> None:
        await calls.one(turn=turn)
        order.append(turn)

    await asyncio.gather(*(one(turn) for turn in (0, 5, 3, 9, 1)))
    assert order == [0, 1, 3, 5, 9]


async def test_two_processes_together_keep_to_one_limit_and_use_it(build: Build):
    desk = OwnDesk(Keeper(), expected=2)
    both = [Calls(build(desk, max_concurrency=6)) for _ in range(2)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, sum(calls.open for calls in both))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(calls.one(turn=turn) for calls in both for turn in range(40)))
    watching.cancel()
    assert most == 6
    assert [calls.done for calls in both] == [40, 40]


async def test_a_request_larger_than_a_minute_is_refused_at_once(build: Build):
    calls = Calls(build(OwnDesk(), tokens_per_minute=100))
    with pytest.raises(QuotaTooSmall, match="100"):
        await calls.one(tokens=101)
    await calls.one(tokens=100)


async def test_a_wait_for_a_place_is_told_after_a_second(build: Build):
    calls = Calls(build(OwnDesk(), max_concurrency=1))
    await asyncio.gather(calls.one(seconds=1.3), calls.one(turn=1))
    assert calls.told == ["a free place at somewhere (1 open)"]


async def test_a_wait_for_the_minute_is_told_with_its_length(build: Build):
    calls = Calls(build(OwnDesk(), requests_per_minute=1))
    await calls.one()
    waiting = asyncio.create_task(calls.one())
    while not calls.told:
        await asyncio.sleep(0.05)
    assert calls.told[0].startswith("rate limit of somewhere: ")
    assert 50 < int(calls.told[0].split()[-2]) <= 61
    waiting.cancel()


async def test_a_refusal_in_one_process_pauses_the_other_and_one_probe_ends_it(build: Build):
    keeper = Keeper()
    refused, other = (Calls(build(OwnDesk(keeper, expected=2))) for _ in range(2))
    await asyncio.gather(refused.one(), other.one())
    async with refused.limiter.permit(1, turn=0, tell=lambda why, s: None) as permit:
        permit.sent_s = asyncio.get_running_loop().time()
        refused.limiter.refused(permit, 2.0)
    started = asyncio.get_running_loop().time()
    await asyncio.sleep(1.5)
    before = other.done
    waiting = [asyncio.create_task(calls.one(turn=i, seconds=0.2)) for calls in (refused, other) for i in range(3)]
    await asyncio.sleep(0.2)
    assert (refused.open, other.open, other.done) == (0, 0, before)
    while not refused.open + other.open:
        await asyncio.sleep(0.01)
    assert asyncio.get_running_loop().time() - started >= 2.0
    await asyncio.sleep(0.1)
    assert refused.open + other.open == 1, "one goes first"
    await asyncio.wait_for(asyncio.gather(*waiting), 5)


async def test_without_its_ledger_a_process_keeps_to_its_part_and_comes_back_to_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("roma_ray.lm.limiter._ALONE_S", 0.0)
    desk = Unplugged(expected=4)
    calls = Calls(build(desk, max_concurrency=8))
    await asyncio.gather(*(calls.one() for _ in range(10)))
    assert calls.most == 2
    assert "somewhere cannot be reached" in calls.limiter.warning
    desk.keeper = Keeper()
    desk.expected = 1
    while calls.limiter.warning:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.1)
    calls.most = 0
    await asyncio.gather(*(calls.one() for _ in range(30)))
    assert calls.most == 8
    assert not calls.limiter.warning


async def test_a_ledger_that_is_gone_is_missed_for_no_call(build: Build):
    desk = Unplugged(expected=1)
    desk.keeper = Keeper()
    calls = Calls(build(desk, max_concurrency=4, requests_per_minute=1_000))
    await calls.one()
    desk.keeper = None
    for _ in range(30):
        await asyncio.wait_for(calls.one(seconds=0.05), 1)
    desk.keeper = Keeper()  # made anew, with nothing in it
    for _ in range(60):
        await asyncio.wait_for(calls.one(seconds=0.05), 1)


async def test_a_call_that_is_cancelled_while_it_waits_keeps_nothing(build: Build):
    calls = Calls(build(OwnDesk(), max_concurrency=1))
    holding = asyncio.create_task(calls.one(seconds=0.3))
    await asyncio.sleep(0.05)
    waiting = [asyncio.create_task(calls.one(turn=turn)) for turn in range(3)]
    await asyncio.sleep(0.05)
    waiting[0].cancel()
    holding.cancel()
    await asyncio.wait_for(asyncio.gather(*waiting[1:]), 2)
    assert calls.done == 2
