"""The pool of a run is never overdrawn, and what exists can always be put together."""

from __future__ import annotations

import asyncio
import random

import pytest

from roma_ray.config import LimitsConfig
from roma_ray.engine.budget import Amount, Pool
from roma_ray.errors import LimitReached
from roma_ray.types import Usage

WORST, LEAST = Amount(4, 400, 0.0), Amount(2, 100, 0.0)
ONE_CALL = Usage(lm_calls=1, prompt_tokens=60, completion_tokens=10)


def pool(**limits: int) -> Pool:
    return Pool.of(LimitsConfig(**limits), spent=Usage())


async def test_without_limits_nothing_waits_and_nothing_is_granted_less() -> None:
    reservations = [await pool().reserve(WORST, LEAST) for _ in range(1000)]
    assert all(r.grant.calls is None and not r.short_of for r in reservations)


async def test_200_steps_at_once_stay_within_the_limit_and_all_of_it_is_used() -> None:
    shared, spent = pool(max_lm_calls=101), 0
    rng = random.Random(7)

    async def step() -> None:
        nonlocal spent
        try:
            reservation = await shared.reserve(WORST, LEAST)
        except LimitReached:
            return
        assert reservation.grant.calls is not None
        for _ in range(min(reservation.grant.calls, rng.randint(1, 4))):
            await asyncio.sleep(0)
            spent += 1
            reservation.charge(ONE_CALL)
        reservation.give_back()

    await asyncio.gather(*(step() for _ in range(200)))
    assert spent == 101
    assert shared.spent.calls == 101
    assert shared.reserved == Amount()


async def test_what_is_held_for_an_aggregator_is_there_when_it_is_its_turn() -> None:
    shared = pool(max_lm_calls=6)
    shared.hold("root", Amount(1, 0, 0.0))
    child = await shared.reserve(WORST, LEAST)
    for _ in range(4):
        child.charge(ONE_CALL)
    child.give_back()
    last = await shared.reserve(WORST, LEAST)
    assert (last.grant.calls, last.short_of) == (1, "max_lm_calls")
    last.charge(ONE_CALL)
    last.give_back()
    with pytest.raises(LimitReached, match="max_lm_calls"):
        await shared.reserve(WORST, LEAST)
    shared.take_held("root")
    assert (await shared.reserve(WORST, LEAST)).grant.calls == 1


async def test_a_resumed_run_has_spent_what_it_spent_before() -> None:
    shared = Pool.of(LimitsConfig(max_lm_calls=10), spent=Usage(lm_calls=9))
    assert (await shared.reserve(WORST, LEAST)).grant.calls == 1


async def test_giving_back_twice_gives_back_once() -> None:
    shared = pool(max_lm_calls=4)
    reservation = await shared.reserve(WORST, LEAST)
    reservation.give_back()
    reservation.give_back()
    assert shared.open == 0
    assert shared.room.calls == 4
