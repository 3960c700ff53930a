"""The rules for asking one provider, as plain arithmetic: no clock and no waiting. Times are monotonic seconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WINDOW_S = 60
"""What "a minute" is in requests and tokens per minute."""
GROW_S = 1.0
"""Every so many seconds without a refusal, one more request may be open."""
PROBE_S = 2.0
"""A refusal comes at once: a request that is not refused for so long was let in, even if its answer takes minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one provider is asked at most; None is without limit."""

    max_concurrency: int
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __and__(self, other: Limits) -> Limits:
        """The smaller of each."""
        return Limits(
            max_concurrency=min(self.max_concurrency, other.max_concurrency),
            requests_per_minute=_smaller(self.requests_per_minute, other.requests_per_minute),
            tokens_per_minute=_smaller(self.tokens_per_minute, other.tokens_per_minute),
        )

    def share(self, processes: int) -> Limits:
        """What one of so many processes may do that know nothing of each other; never nothing at all."""

        def part(limit: int | None) -> int | None:
            return None if limit is None else max(1, limit // processes)

        return Limits(
            max_concurrency=max(1, self.max_concurrency // processes),
            requests_per_minute=part(self.requests_per_minute),
            tokens_per_minute=part(self.tokens_per_minute),
        )

    @property
    def has_rates(self) -> bool:
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


class Window:
    """What was spent in the last minute, in slots of one second: a sliding window.

    Providers say that they fill a bucket of one minute's size steadily (the Claude API's page on rate limits calls it
    the token bucket algorithm). A full bucket lets nearly twice its size through in a minute, a window never more than
    the limit: so whatever fits the window fits the bucket too, and also a provider that counts by minutes.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, amount: int, *, now_s: float) -> None:
        """Count `amount` as spent now."""
        second = int(now_s)
        self._total += amount
        if self._slots and self._slots[-1][0] == second:
            amount += self._slots.pop()[1]
        if amount:
            self._slots.append((second, amount))

    def merge(self, aged: Iterable[tuple[float, int]], *, now_s: float) -> None:
        """Count what another window has `aged` too."""
        slots = dict(self._slots)
        for age_s, amount in aged:
            second = int(now_s - age_s)
            slots[second] = slots.get(second, 0) + amount
        self._slots = deque(sorted(slots.items()))
        self._total = sum(slots.values())

    def total(self, *, now_s: float) -> int:
        """What counts now: a slot does until its last moment is a minute ago."""
        while self._slots and _left_s(self._slots[0], now_s) <= 0:
            self._total -= self._slots.popleft()[1]
        return self._total

    def wait_s(self, surplus: int, *, now_s: float) -> float:
        """Seconds until `surplus` of what counts now does not any more; a whole window where there is not so much."""
        for slot in self._slots:
            surplus -= slot[1]
            if surplus <= 0:
                return max(0.0, _left_s(slot, now_s))
        return float(WINDOW_S)

    def aged(self, *, now_s: float) -> tuple[tuple[float, int], ...]:
        """The slots as (age in seconds, amount), oldest first: for a window whose clock is another."""
        self.total(now_s=now_s)
        return tuple((now_s - second, amount) for second, amount in self._slots)


def _left_s(slot: tuple[int, int], now_s: float) -> float:
    return slot[0] + 1 + WINDOW_S - now_s


class Concurrency:
    """How many requests may be open: halved when the provider refuses, grown back one by one (AIMD).

    Chiu and Jain, "Analysis of the increase and decrease algorithms for congestion avoidance", 1989.
    """

    def __init__(self) -> None:
        self._from: int | None = None
        self._since_s = 0.0
        self._halved_s = 0.0

    def places(self, most: int, *, now_s: float) -> int:
        """How many may be open now, between 1 and `most`."""
        if self._from is None:
            return most
        grown = self._from + max(0, int((now_s - self._since_s) / GROW_S))
        if grown >= most:
            self._from = None
        return min(most, grown)

    def refused(self, most: int, *, sent_s: float, pause_s: float, now_s: float) -> None:
        """A request that was sent at `sent_s` was refused; what was sent before the last halving halves no further."""
        places = self.places(most, now_s=now_s)
        if self._from is None or sent_s > self._halved_s:
            places, self._halved_s = max(1, places // 2), now_s
        # Nothing is sent in the pause, so nothing is learnt from it either.
        self._from, self._since_s = places, now_s + pause_s

    def forget(self) -> None:
        """Back to the most: what was learnt of other work says little."""
        self._from = None


class Pause:
    """The pause that all keep after a refusal, and the one request that tries whether it is over."""

    def __init__(self) -> None:
        self._until_s: float | None = None
        self._probe_s: float | None = None

    def refused(self, wait_s: float, *, now_s: float) -> None:
        """Nobody asks for `wait_s` from now; a longer pause that is already agreed on stays."""
        self._until_s = max(self._until_s or 0.0, now_s + wait_s)
        self._probe_s = None

    def passed(self) -> None:
        """The probe was let in: the pause is over."""
        if self._probe_s is not None:
            self._until_s = self._probe_s = None

    def left_s(self, *, now_s: float) -> float:
        """Seconds for which nothing is sent, 0 when everybody may go on or a probe may be sent."""
        if self._probe_s is not None and now_s >= self._probe_s + PROBE_S:
            self.passed()
        if self._until_s is None:
            return 0.0
        until_s = self._until_s if self._probe_s is None else self._probe_s + PROBE_S
        return max(0.0, until_s - now_s)

    @property
    def is_probing(self) -> bool:
        """Whether a probe is out, as `left_s` last found."""
        return self._probe_s is not None

    @property
    def is_on(self) -> bool:
        """Whether nothing but a probe may be sent, as `left_s` last found."""
        return self._until_s is not None

    def wants_probe(self, *, now_s: float) -> bool:
        """Whether one request, and no other, may be sent now."""
        return self.left_s(now_s=now_s) == 0 and self.is_on

    def probe(self, *, now_s: float) -> None:
        """One was sent; the others wait for what becomes of it, or for a moment without a refusal."""
        self._probe_s = now_s


def shares(places: int, needs: Mapping[str, int], *, expected: int, turn: int) -> dict[str, int]:
    """Split `places` by max-min fairness: nobody gets more than it needs while another lacks some.

    `needs` holds a number >= 0 for each member, of whom there is at least one. What nobody needs is handed out in
    equal parts, one for each of the `expected` members, so that a call that comes next finds a place. `turn` (any
    number) says whose turn it is where there are fewer places than members.
    """
    names = sorted(needs)
    start = turn % len(names)
    most = 1 if places < len(names) else places
    # The smallest needs first: what they leave is for the others.
    order = sorted(names[start:] + names[:start], key=lambda name: min(needs[name], most))
    given: dict[str, int] = {}
    for rank, name in enumerate(order):
        left = len(order) - rank
        part = places // left if places >= left else min(places, 1)
        given[name] = min(needs[name], part)
        places -= given[name]
    spare = places // max(len(names), expected)
    return {name: count + spare for name, count in given.items()}
