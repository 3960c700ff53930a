"""The permits of one provider in one process: calls wait here for a place, for their share of a minute, or a pause.

What may be done is leased from a ledger that other processes use too (`ledger.py`). It is asked in the background,
about once a second and whenever something runs short, so that a call which finds a lease here waits for nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Protocol

from roma_ray.clock import mono_s
from roma_ray.errors import QuotaTooSmall
from roma_ray.lm.leases import MOST_CALLS, Leases
from roma_ray.lm.ledger import LAPSE_S, Answer, Ask, Keeper, Refusal
from roma_ray.lm.rules import Limits
from roma_ray.lm.waiting import Tell, until_done

_BEAT_S = 1.0
"""How often the ledger is asked where nothing is short: so long may a pause or a place stay unknown."""
_SOONEST_S = 0.02
_FIRST_ANSWER_S = 0.25
"""Patience with a ledger that never answered: it may be starting."""
_ANSWER_S = LAPSE_S - 1.5 * _BEAT_S
"""Patience with one that did; then the leases lapse."""
_AGAIN_S = 0.2
_RECONNECT_WITHIN_S = 30.0
_RECONNECT_S = 2.0
_ALONE_S = 10.0
"""How long a process may be without its ledger before people are told."""

_log = logging.getLogger(__name__)


class Desk(Protocol):
    """Where a ledger is asked."""

    @property
    def expected(self) -> int:
        """How many processes ask it, as far as one knows before it answers."""
        ...

    async def ask(self, ask: Ask) -> Answer:
        """As Ledger.ask. Raises ConnectionError when the ledger cannot be reached."""
        ...


@dataclass(frozen=True, slots=True)
class OwnDesk:
    """A ledger in this process."""

    keeper: Keeper = field(default_factory=Keeper)
    expected: int = 1

    async def ask(self, ask: Ask) -> Answer:
        return self.keeper.ask(ask)


@dataclass(slots=True, kw_only=True)
class Permit:
    """The right to send one request. Whoever sends it says so, and what became of it."""

    tokens: int
    is_probe: bool
    sent_s: float | None = None
    used_tokens: int | None = None
    """None: nobody knows, so all that was estimated counts."""
    was_refused: bool = False


@dataclass(slots=True, order=True)
class _Waiter:
    turn: int
    tokens: int = field(compare=False)
    admitted: asyncio.Future[None] = field(compare=False)
    permit: Permit | None = field(default=None, compare=False)


class Limiter:
    """Permits in the order of turns. Belongs to one event loop."""

    def __init__(self, label: str, desk: Desk, limits: Limits) -> None:
        """`label` names the provider for people. With a `desk` that cannot be reached, the process keeps to its part
        of `limits` until it can.
        """
        self.has_answered = False
        """Whether this endpoint has answered anything yet."""
        self.refusals_in_row = 0
        self._label = label
        self._leases = Leases(limits)
        self._desk = self._shared = desk
        self._link = self._shared_link = self._leases.link()
        self._alone_since_s: float | None = None
        self._queue: list[_Waiter] = []
        self._refusals: list[tuple[float, float]] = []
        self._passed = False
        self._is_paused = False
        self._pause_until_s = 0.0
        self._probes = 0
        self._last = Answer(ledger="")
        self._members_before = 0
        """How many members the shared ledger had when it was last heard, this one included."""
        self._asked_s = self._heard_s = float("-inf")
        self._gap_s = _SOONEST_S
        self._wake = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._reconnecting: asyncio.Task[None] | None = None

    @property
    def limits(self) -> Limits:
        return self._leases.limits

    @limits.setter
    def limits(self, limits: Limits) -> None:
        self._leases.limits = limits

    @property
    def warning(self) -> str:
        """What people should know; empty when all is well."""
        if self._alone_since_s is None or mono_s() < self._alone_since_s + _ALONE_S:
            return ""
        return (
            f"the limiter of {self._label} cannot be reached: each process keeps to 1/{self._processes} of its limits"
        )

    @asynccontextmanager
    async def permit(self, tokens: int, *, turn: int, tell: Tell) -> AsyncGenerator[Permit]:
        """Hold a permit for a request of at most so many tokens; calls go in the order of `turn`.

        `tell` hears of waiting. Raises QuotaTooSmall when the request is larger than a minute allows.
        """
        permit = await self._take(tokens, turn, tell)
        try:
            yield permit
        finally:
            self._give_back(permit)

    def has_room(self, tokens: int) -> bool:
        """Whether a request of this size would be sent at once."""
        return not self._queue and not self._is_paused and self._may_go(tokens)

    def refused(self, permit: Permit, wait_s: float) -> None:
        """The provider answered "too many requests": nobody asks it for `wait_s`."""
        permit.was_refused = True
        self.refusals_in_row += 1
        now_s = mono_s()
        self._refusals.append((now_s if permit.sent_s is None else permit.sent_s, wait_s))
        self._is_paused, self._probes = True, 0
        self._pause_until_s = max(self._pause_until_s, now_s + wait_s)
        self._wake.set()

    def answered(self) -> None:
        """The provider answered a request."""
        self.has_answered = True
        self.refusals_in_row = 0

    async def aclose(self) -> None:
        """Give every lease back; no call may be open or waiting."""
        tasks = [task for task in (self._asking, self._reconnecting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._shared_link.ledger:
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(_FIRST_ANSWER_S):
                    await self._shared.ask(self._leases.farewell(self._shared_link, now_s=mono_s()))

    # ---- permits -----------------------------------------------------------------------------------------------

    async def _take(self, tokens: int, turn: int, tell: Tell) -> Permit:
        most = self.limits.tokens_per_minute
        if most is not None and tokens > most:
            raise QuotaTooSmall(
                f"lm.tokens_per_minute of {self._label} is {most:,} and this request may need {tokens:,}",
                cure="raise lm.tokens_per_minute, or lower lm.max_tokens",
            )
        self._start_asking()
        if not self._queue and self._may_go(tokens):
            return self._go(tokens)
        waiter = _Waiter(turn, tokens, asyncio.get_running_loop().create_future())
        heapq.heappush(self._queue, waiter)
        if len(self._queue) == 1:
            self._wake.set()
        try:
            await until_done(waiter.admitted, self._reason, tell)
        except asyncio.CancelledError:
            if waiter.permit is not None:
                # Admitted and cancelled in the same instant: pass the permit on.
                self._give_back(waiter.permit)
            waiter.admitted.cancel()
            self._admit()
            raise
        assert waiter.permit is not None
        return waiter.permit

    def _may_go(self, tokens: int) -> bool:
        is_open = self._probes > 0 or not self._is_paused
        # After a longer silence the ledger has given our leases to others.
        return is_open and self._leases.fits(tokens) and mono_s() < self._heard_s + LAPSE_S

    def _go(self, tokens: int) -> Permit:
        self._leases.start(tokens)
        if self._is_paused:
            self._probes -= 1
        return Permit(tokens=tokens, is_probe=self._is_paused)

    def _give_back(self, permit: Permit) -> None:
        was_sent = permit.sent_s is not None
        used = permit.tokens if permit.used_tokens is None else permit.used_tokens
        self._leases.end(permit.tokens, requests=int(was_sent), used_tokens=used if was_sent else 0, now_s=mono_s())
        if permit.is_probe and was_sent and not permit.was_refused:
            self._passed = True
            self._wake.set()
        if self._leases.has_too_many:
            self._wake.set()
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            waiter = self._queue[0]
            if not waiter.admitted.done():
                if not self._may_go(waiter.tokens):
                    return
                waiter.permit = self._go(waiter.tokens)
                waiter.admitted.set_result(None)
            heapq.heappop(self._queue)

    def _reason(self) -> tuple[str, float]:
        left_s = self._pause_until_s - mono_s() if self._is_paused else 0.0
        if not self._is_paused and self._leases.has_place:
            left_s = self._asked_s + self._last.wait_s - mono_s()
        elif not self._is_paused:
            return f"a free place at {self._label} ({max(self._last.open, self._leases.open)} open)", 0.0
        left_s = max(0.0, left_s)
        return f"rate limit of {self._label}: {ceil(left_s)} s", left_s

    # ---- the ledger --------------------------------------------------------------------------------------------

    def _start_asking(self) -> None:
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._keep_asking(), name=f"limiter of {self._label}")

    async def _keep_asking(self) -> None:
        try:
            while True:
                await self._until_due()
                await self._ask()
                self._admit()
        except Exception as error:
            # A bug of ours must not become a call that waits for ever.
            _log.exception("the limiter of %s failed", self._label)
            for waiter in self._queue:
                if not waiter.admitted.done():
                    waiter.admitted.set_exception(error)
            self._queue.clear()

    async def _until_due(self) -> None:
        while (left_s := self._due_s() - mono_s()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._wake.wait()

    def _due_s(self) -> float:
        if self._refusals or self._passed:
            return self._asked_s
        due_s = self._asked_s + _BEAT_S
        if self._queue or self._leases.has_too_many:
            due_s = min(due_s, self._asked_s + self._gap_s)
        if self._is_paused and self._queue:
            # Not later than others hear of it, and not before it can be over.
            due_s = min(self._asked_s + _BEAT_S, max(due_s, self._pause_until_s))
        return due_s

    async def _ask(self) -> None:
        self._asked_s = mono_s()
        if self._asked_s >= self._heard_s + LAPSE_S:
            # This process stood still, and the ledger has given its leases to others.
            self._leases.let_go()
        ask = self._news()
        try:
            async with asyncio.timeout(_ANSWER_S if self._link.ledger else _FIRST_ANSWER_S):
                answer = await self._desk.ask(ask)
        except (ConnectionError, TimeoutError) as error:
            _log.info("the ledger of %s does not answer: %r", self._label, error)
            if self._members_before > 1 and mono_s() < self._heard_s + _ANSWER_S:
                # A new one may come up in time. Until then our leases hold, and nobody has more than was leased.
                await asyncio.sleep(_AGAIN_S)
            else:
                self._go_alone()
            return
        del self._refusals[: len(ask.refusals)]
        self._passed = self._passed and not ask.passed
        self._heard_s = self._asked_s
        self._follow(ask, answer)

    def _news(self) -> Ask:
        now_s = mono_s()
        waiting = [waiter.tokens for waiter in heapq.nsmallest(MOST_CALLS, self._queue) if not waiter.admitted.done()]
        count = sum(not waiter.admitted.done() for waiter in self._queue)
        return replace(
            self._leases.ask(self._link, waiting, count=count, now_s=now_s),
            limits=self.limits if self._alone_since_s is None else self.limits.share(self._processes),
            expected=self._desk.expected,
            members_before=self._members_before,
            refusals=tuple(Refusal(age_s=now_s - sent_s, wait_s=wait_s) for sent_s, wait_s in self._refusals),
            passed=self._passed,
        )

    def _follow(self, ask: Ask, answer: Answer) -> None:
        gave = self._leases.take(self._link, ask, answer)
        self._gap_s = min(2 * self._gap_s, _BEAT_S) if self._queue and not gave else _SOONEST_S
        if not answer.knows_you:
            return
        self._last = answer
        if self._alone_since_s is None:
            self._members_before = answer.members
        if self._refusals:
            return  # It does not know of them yet.
        self._is_paused, self._probes = answer.is_paused, int(answer.probe)
        self._pause_until_s = mono_s() + answer.pause_s

    @property
    def _processes(self) -> int:
        return max(self._shared.expected, self._members_before)

    def _go_alone(self) -> None:
        """Keep to this process's part of the limits, with a ledger of its own, until the shared one is back."""
        if self._alone_since_s is not None:
            return
        self._alone_since_s = mono_s()
        self._leases.let_go()
        self._desk, self._link = OwnDesk(), self._leases.link()
        self._asked_s = float("-inf")
        self._reconnecting = asyncio.create_task(self._reconnect(), name=f"reconnect to the limiter of {self._label}")

    async def _reconnect(self) -> None:
        while True:
            ask = self._leases.greeting(self._shared_link, now_s=mono_s())
            ask = replace(ask, expected=self._shared.expected, members_before=self._members_before)
            try:
                async with asyncio.timeout(_RECONNECT_WITHIN_S):
                    answer = await self._shared.ask(ask)
            except (ConnectionError, TimeoutError):
                await asyncio.sleep(_RECONNECT_S)
                continue
            except Exception:
                _log.exception("the ledger of %s failed; this process goes on without it", self._label)
                return
            if answer.knows_you:
                break
            self._shared_link.ledger = ""
        self._leases.unlink(self._link)
        self._leases.let_go()
        self._desk, self._link = self._shared, self._shared_link
        self._alone_since_s = None
        # The ask may be half a minute old and what is open another number: the next one, at once, brings the leases.
        self._follow(ask, replace(answer, places=0, calls=0))
        self._asked_s = float("-inf")
        self._wake.set()
