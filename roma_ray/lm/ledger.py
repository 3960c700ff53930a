"""Who may ask one provider how much: the book that all processes share which use it.

A *member* is one process. It asks about once a second, telling what it did and what it needs, and is answered with what
it may do: places (requests that may be open at once) and calls (requests and their tokens of this minute). Both are
leases: what a member holds belongs to nobody else, and lapses when the member is not heard for LAPSE_S.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from roma_ray.clock import mono_s
from roma_ray.lm.rules import Concurrency, Limits, Pause, Window, shares

LAPSE_S = 5.0
"""A member that is not heard for so long is taken for dead. It must not use its leases any longer than that either."""
_SOON_S = 0.25
"""When to ask again where only another member's doing can help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The provider said "too many requests" to a request sent `age_s` ago; nobody should ask for `wait_s`."""

    age_s: float
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a member has spent in the last minute, as (age in seconds, amount): for a ledger that has not seen it."""

    requests: tuple[tuple[float, int], ...] = ()
    tokens: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a member tells and wants.

    `expected` is how many members it thinks there are. `ledger` is the id of the ledger that it means, or it tells in
    `past` what it spent before they met, and in `members_before` how many an earlier one had. Of places:
    `open` requests, `waiting` calls, and `places` that it keeps (at least the open ones). Of this minute: `requests`
    and `tokens` spent since it was last answered, `held_requests` and `held_tokens` that it keeps, its open requests
    included, and `calls`: the sizes in tokens of what it would send next, those that wait first. `passed` says that
    its probe was let in.
    """

    member: str
    limits: Limits
    expected: int = 1
    ledger: str = ""
    past: Spent | None = None
    members_before: int = 0
    open: int = 0
    waiting: int = 0
    places: int = 0
    requests: int = 0
    tokens: int = 0
    held_requests: int = 0
    held_tokens: int = 0
    calls: tuple[int, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    passed: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a member may do from now on, in addition to what it keeps.

    `knows_you` is False where the ledger needs to be told the past first: nothing else counts then. `places` more may
    be open; more than `fair` should be given back with the next ask. Where requests or tokens are `metered`, the first
    `calls` of the calls that were named may be sent, the next one in about `wait_s`; `is_scarce` says that somebody
    waits for them. In a pause nothing may be sent for `pause_s`, and then one `probe` where the answer says so.
    `open` requests are open in all, at `members` members.
    """

    ledger: str
    knows_you: bool = True
    places: int = 0
    fair: int = 0
    is_metered: bool = False
    calls: int = 0
    wait_s: float = 0.0
    is_scarce: bool = False
    is_paused: bool = False
    pause_s: float = 0.0
    probe: bool = False
    open: int = 0
    members: int = 1


@dataclass(slots=True)
class _Member:
    """What the ledger knows of a member: its last ask, and what it holds since the answer to it."""

    ask: Ask
    heard_s: float
    places: int = 0
    requests: int = 0
    tokens: int = 0
    in_line_s: float | None = None
    """Since when its next call waits for requests or tokens."""

    @property
    def need(self) -> int:
        return self.ask.open + self.ask.waiting


class Ledger:
    """The book of one provider."""

    def __init__(self) -> None:
        self.id = os.urandom(8).hex()
        self._members: dict[str, _Member] = {}
        self._requests = Window()
        self._tokens = Window()
        self._concurrency = Concurrency()
        self._pause = Pause()
        self._awaited = 0
        self._began_s: float | None = None

    def ask(self, ask: Ask, *, now_s: float) -> Answer:
        """Take note of what a member tells and give it what it may have. `now_s` never goes back."""
        self._drop_silent(now_s)
        if ask.leaving:
            self._leave(ask, now_s)
            return Answer(ledger=self.id)
        if ask.ledger != self.id and ask.past is None:
            return Answer(ledger=self.id, knows_you=False)
        member = self._note(ask, now_s)
        limits = self._limits()
        places, fair = self._places(member, limits, now_s)
        calls, wait_s = self._calls(member, limits, now_s)
        probe, pause_s = self._probe(member, now_s)
        return Answer(
            ledger=self.id,
            places=places,
            fair=fair,
            is_metered=limits.has_rates,
            calls=calls,
            wait_s=wait_s,
            is_scarce=any(each.in_line_s is not None for each in self._members.values()),
            is_paused=self._pause.is_on,
            pause_s=pause_s,
            probe=probe,
            open=sum(each.ask.open for each in self._members.values()),
            members=len(self._members),
        )

    def _note(self, ask: Ask, now_s: float) -> _Member:
        member = self._members.setdefault(ask.member, _Member(ask, now_s))
        member.ask, member.heard_s, member.places = ask, now_s, ask.places
        if self._began_s is None:
            self._began_s = now_s
        if ask.past is not None:
            self._awaited = max(self._awaited, ask.members_before)
            for window, spent in ((self._requests, ask.past.requests), (self._tokens, ask.past.tokens)):
                window.merge(spent, now_s=now_s)
        else:
            self._spend(ask.requests, ask.tokens, now_s)
        member.requests, member.tokens = ask.held_requests, ask.held_tokens
        most = self._limits().max_concurrency
        for refusal in ask.refusals:
            self._concurrency.refused(most, sent_s=now_s - refusal.age_s, pause_s=refusal.wait_s, now_s=now_s)
            self._pause.refused(refusal.wait_s, now_s=now_s)
        if ask.passed:
            self._pause.passed()
        return member

    def _places(self, member: _Member, limits: Limits, now_s: float) -> tuple[int, int]:
        """Lease the member more places, as far as they are free; also how many are its fair share."""
        most = self._concurrency.places(limits.max_concurrency, now_s=now_s)
        # Who needs none now keeps one all the same where there are plenty: its next call shall find it.
        least = 1 if most >= 2 * len(self._members) else 0
        needs = {name: max(each.need, least) for name, each in self._members.items()}
        fair = shares(most, needs, expected=member.ask.expected, turn=int(now_s))[member.ask.member]
        free = 0 if self._is_incomplete(now_s) else most - sum(each.places for each in self._members.values())
        more = max(0, min(fair - member.places, free))
        member.places += more
        return more, fair

    def _probe(self, member: _Member, now_s: float) -> tuple[bool, float]:
        """Whether the member may send the one request that tries, and how long to wait before it asks again."""
        probe = member.ask.waiting > 0 and self._pause.wants_probe(now_s=now_s)
        if probe:
            self._pause.probe(now_s=now_s)
        pause_s = self._pause.left_s(now_s=now_s)
        return probe, min(pause_s, _SOON_S) if self._pause.is_probing else pause_s

    def _calls(self, member: _Member, limits: Limits, now_s: float) -> tuple[int, float]:
        """Lease the member its next calls, as many as it may have; also the seconds until the one after those fits."""
        wanted = member.ask.calls
        if not limits.has_rates:
            return 0, 0.0
        waiting = [each for each in self._members.values() if each.ask.waiting and each.ask.calls]
        requests, tokens = self._left(limits, now_s)
        count = 0
        if not self._is_incomplete(now_s) and all(each is member or not _is_before(each, member) for each in waiting):
            count = _how_many(wanted, requests, tokens, among=max(1, len(waiting)))
        member.requests += count
        member.tokens += sum(wanted[:count])
        if count or not member.ask.waiting or not wanted:
            member.in_line_s = None
            return count, 0.0
        if member.in_line_s is None:
            member.in_line_s = now_s
        return 0, self._wait_s(limits, wanted[0], requests, tokens, now_s)

    def _is_incomplete(self, now_s: float) -> bool:
        """Whether members of an earlier ledger may hold leases that this one has not heard of yet."""
        began_s = now_s if self._began_s is None else self._began_s
        return len(self._members) < self._awaited and now_s < began_s + LAPSE_S

    def _left(self, limits: Limits, now_s: float) -> tuple[float, float]:
        """Requests and tokens of this minute that are neither spent nor held."""

        def left(limit: int | None, window: Window, held: int) -> float:
            return float("inf") if limit is None else limit - window.total(now_s=now_s) - held

        members = self._members.values()
        return (
            left(limits.requests_per_minute, self._requests, sum(each.requests for each in members)),
            left(limits.tokens_per_minute, self._tokens, sum(each.tokens for each in members)),
        )

    def _wait_s(self, limits: Limits, size: int, requests: float, tokens: float, now_s: float) -> float:
        """About how long until a call of `size` fits; what others hold may come back sooner than what is spent ages."""
        wait_s = _SOON_S
        if requests < 1:
            wait_s = max(wait_s, self._requests.wait_s(int(1 - requests), now_s=now_s))
        if tokens < size:
            wait_s = max(wait_s, self._tokens.wait_s(int(size - tokens), now_s=now_s))
        return wait_s

    def _limits(self) -> Limits:
        """The smallest of what the members state: who knows of a limit is right."""
        first, *others = (each.ask.limits for each in self._members.values())
        for limits in others:
            first &= limits
        return first

    def _drop_silent(self, now_s: float) -> None:
        for name in [name for name, each in self._members.items() if now_s - each.heard_s > LAPSE_S]:
            dead = self._members[name]
            # What it held may have been spent.
            self._spend(dead.requests, dead.tokens, now_s)
            self._remove(name)

    def _leave(self, ask: Ask, now_s: float) -> None:
        if ask.member in self._members:
            self._spend(ask.requests + ask.held_requests, ask.tokens + ask.held_tokens, now_s)
            self._remove(ask.member)

    def _remove(self, name: str) -> None:
        del self._members[name]
        if not self._members:
            self._concurrency.forget()

    def _spend(self, requests: int, tokens: int, now_s: float) -> None:
        self._requests.add(requests, now_s=now_s)
        self._tokens.add(tokens, now_s=now_s)


def _is_before(one: _Member, other: _Member) -> bool:
    """Whether `one` waits for calls and has done so for longer."""
    if one.in_line_s is None:
        return False
    return other.in_line_s is None or one.in_line_s < other.in_line_s


def _how_many(calls: Sequence[int], requests: float, tokens: float, *, among: int) -> int:
    """How many of `calls`, in order, one of so many members may take: the first if it fits, then its fair part."""
    count = used = 0
    for size in calls:
        is_first = count == 0
        if count + 1 > requests or used + size > tokens:
            break
        if not is_first and (count + 1 > requests / among or used + size > tokens / among):
            break
        count, used = count + 1, used + size
    return count


@dataclass(slots=True)
class Keeper:
    """A ledger with a clock, for members in several threads or processes."""

    _ledger: Ledger = field(default_factory=Ledger)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, ask: Ask) -> Answer:
        """As Ledger.ask, now."""
        with self._lock:
            return self._ledger.ask(ask, now_s=mono_s())
