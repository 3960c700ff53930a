"""Ledgers and what their members hold, together, on a clock that the tests move: no process, no waiting."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roma_ray.lm.leases import Leases
from roma_ray.lm.ledger import LAPSE_S, Answer, Ledger, Refusal
from roma_ray.lm.rules import WINDOW_S, Limits

START_S = 1_000.0


@dataclass
class Process:
    """One process with calls that wait and calls that are open, asking `ledger` when it is told to."""

    ledger: Ledger
    limits: Limits
    expected: int = 1
    waiting: list[int] = field(default_factory=list)
    open: list[tuple[float, int]] = field(default_factory=list)
    sent: list[tuple[float, int]] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: Answer(ledger=""))

    def __post_init__(self) -> None:
        self.leases = Leases(self.limits)
        self.link = self.leases.link()

    def ask(self, now_s: float, **news: Any) -> Answer:
        ask = self.leases.ask(self.link, self.waiting[:64], count=len(self.waiting), now_s=now_s)
        ask = replace(ask, expected=self.expected, **news)
        self.answer = self.ledger.ask(ask, now_s=now_s)
        self.leases.take(self.link, ask, self.answer)
        return self.answer

    def send(self, now_s: float) -> None:
        """Whatever waits and may go."""
        while self.waiting and self.leases.fits(self.waiting[0]):
            tokens = self.waiting.pop(0)
            self.leases.start(tokens)
            self.open.append((now_s, tokens))

    def end_all(self, now_s: float, *, part: float = 1.0) -> None:
        """Every open request is answered, with this part of the tokens that were estimated."""
        for sent_s, tokens in self.open:
            used = int(tokens * part)
            self.leases.end(tokens, requests=1, used_tokens=used, now_s=now_s)
            self.sent.append((sent_s, used))
        self.open.clear()


def test_two_processes_share_the_places_from_the_first_second_on():
    ledger, limits = Ledger(), Limits(max_concurrency=64)
    one, other = Process(ledger, limits, expected=2), Process(ledger, limits, expected=2)
    for process in (one, other):
        process.ask(START_S)
        process.waiting += [1] * 100
        process.send(START_S)
    assert len(one.open) == len(other.open) == 32


def test_places_that_one_does_not_need_reach_the_other_within_two_asks():
    ledger, limits = Ledger(), Limits(max_concurrency=64)
    busy, idle = Process(ledger, limits, expected=2), Process(ledger, limits, expected=2)
    busy.ask(START_S)
    idle.ask(START_S)
    busy.waiting += [1] * 100
    for second in range(1, 3):
        busy.ask(START_S + second)
        idle.ask(START_S + second)
    busy.ask(START_S + 2.1)
    busy.send(START_S + 2.1)
    assert len(busy.open) == 63, "one stays with the idle one, for its next call"


def test_the_leases_of_a_dead_process_go_to_the_others():
    ledger, limits = Ledger(), Limits(max_concurrency=10, requests_per_minute=30)
    dead, alive = Process(ledger, limits, waiting=[1] * 10), Process(ledger, limits, waiting=[1] * 10)
    dead.ask(START_S)
    dead.send(START_S)
    assert len(dead.open) == 10
    alive.ask(START_S + 1)
    alive.send(START_S + 1)
    assert not alive.open
    alive.ask(START_S + LAPSE_S + 0.1)
    alive.send(START_S + LAPSE_S + 0.1)
    assert len(alive.open) == 10


def test_a_refusal_at_one_process_pauses_all_and_only_one_probe_goes():
    ledger, limits = Ledger(), Limits(max_concurrency=8)
    one, other = (Process(ledger, limits, expected=2, waiting=[1]) for _ in range(2))
    one.ask(START_S)
    other.ask(START_S)
    one.ask(START_S + 0.1, refusals=(Refusal(age_s=0.1, wait_s=3),))
    assert one.answer.is_paused and not one.answer.probe
    assert other.ask(START_S + 1).pause_s > 2
    probes = [process.ask(START_S + 3.2).probe for process in (one, other)]
    assert probes == [True, False]
    assert not one.ask(START_S + 3.3, passed=True).is_paused
    assert not other.ask(START_S + 3.4).is_paused


def test_a_new_ledger_is_told_what_was_spent_at_the_one_before():
    limits = Limits(max_concurrency=64, requests_per_minute=10)
    process = Process(Ledger(), limits, waiting=[1] * 30)
    process.ask(START_S)
    process.send(START_S)
    process.end_all(START_S)
    assert len(process.sent) == 10
    process.ledger = Ledger()
    assert not process.ask(START_S + 1).knows_you
    process.ask(START_S + 1)
    process.send(START_S + 1)
    assert not process.open


def test_a_new_ledger_gives_nothing_before_all_who_knew_the_one_before_have_told_what_they_hold():
    limits = Limits(max_concurrency=4)
    busy, other = Process(Ledger(), limits), Process(Ledger(), limits)
    busy.waiting += [1] * 10
    busy.ask(START_S)
    busy.send(START_S)
    assert len(busy.open) == 4
    new = Ledger()
    busy.ledger = other.ledger = new
    other.waiting += [1] * 10
    for process, times in ((other, 3), (busy, 1), (other, 2)):
        for _ in range(times):
            process.ask(START_S + 1, members_before=2)
        process.send(START_S + 1)
    assert (len(busy.open), len(other.open)) == (4, 0)
    busy.end_all(START_S + 2)
    for process in (busy, other, busy, other):
        process.ask(START_S + 2)
    other.send(START_S + 2)
    assert len(other.open) == 2


def test_a_new_ledger_waits_no_longer_than_leases_live_for_those_who_do_not_come_back():
    process = Process(Ledger(), Limits(max_concurrency=4), waiting=[1] * 10)
    process.ask(START_S, members_before=3)
    process.send(START_S)
    assert process.open == []
    process.ask(START_S + LAPSE_S)
    process.send(START_S + LAPSE_S)
    assert len(process.open) == 4


def test_a_large_request_is_not_starved_by_small_ones():
    ledger, limits = Ledger(), Limits(max_concurrency=64, tokens_per_minute=1_000)
    large, small = Process(ledger, limits, waiting=[900]), Process(ledger, limits, waiting=[50] * 1_000)
    at_s = START_S
    small.ask(at_s)
    small.send(at_s)
    while not large.open and at_s < START_S + 3 * WINDOW_S:
        at_s += 0.5
        for process in (large, small):
            process.ask(at_s)
            process.send(at_s)
        small.end_all(at_s)
    assert large.open


def in_any_minute(sent: Iterable[tuple[float, int]], value: Any) -> int:
    """The most that went out in any span of a minute."""
    sent = sorted(sent)
    return max(
        (sum(value(each) for each in sent if start <= each[0] < start + WINDOW_S) for start, _ in sent), default=0
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 4))
def test_no_minute_and_no_moment_ever_sees_more_than_the_limits(seed: int, count: int):
    draw = random.Random(seed)
    limits = Limits(max_concurrency=7, requests_per_minute=40, tokens_per_minute=9_000)
    ledger = Ledger()
    processes = [Process(ledger, limits, expected=draw.randint(1, count)) for _ in range(count)]
    for process in processes:
        process.waiting += [draw.randint(1, 3_000) for _ in range(12)]
    at_s = START_S + draw.random()
    while any(process.waiting or process.open for process in processes):
        at_s += draw.uniform(0.0, 1.0)
        assert at_s < START_S + 5_000, "somebody waits for ever"
        for process in draw.sample(processes, count):
            if draw.random() < 0.5:
                process.end_all(at_s, part=draw.random())
            process.ask(at_s)
            process.send(at_s)
            assert sum(len(each.open) for each in processes) <= 7
    sent = [each for process in processes for each in process.sent]
    assert len(sent) == 12 * count
    assert in_any_minute(sent, lambda each: 1) <= 40
    assert in_any_minute(sent, lambda each: each[1]) <= 9_000
