"""What one process holds of one provider: its side of the ledger. No waiting here; times are monotonic seconds."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from roma_ray.lm.ledger import Answer, Ask, Spent
from roma_ray.lm.rules import Limits, Window

MOST_CALLS = 256
"""How many calls are named in one ask."""
_USUAL_TOKENS = 1_000
"""Of a call, before the first one was seen."""


@dataclass(slots=True)
class Link:
    """What a ledger does not know yet; `ledger` is its id once it has answered."""

    ledger: str = ""
    requests: int = 0
    tokens: int = 0


class Leases:
    """Places, requests and tokens that this process may use without asking, and the news for a ledger.

    A request that is open holds the tokens that it was estimated at; once it is answered, those that it used are spent
    and the others are free again.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.open = 0
        self._member = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._links: list[Link] = []
        self._past = Window(), Window()
        self._places = self._fair = 0
        self._is_metered = limits.has_rates
        self._is_scarce = False
        self._requests = self._tokens = 0
        self._open_tokens = 0
        self._started: list[int] = []
        self._started_before: list[int] = []
        self._second_s = 0.0
        self._usual_tokens = _USUAL_TOKENS

    @property
    def has_place(self) -> bool:
        """Whether one more request may be open here."""
        return self.open < min(self._places, self.limits.max_concurrency)

    @property
    def has_too_many(self) -> bool:
        """Whether places lie here that others lack."""
        return self._places > max(self.open, self._fair)

    def fits(self, tokens: int) -> bool:
        """Whether a request of this size may be sent."""
        return self.has_place and (not self._is_metered or (self._requests >= 1 and self._tokens >= tokens))

    def start(self, tokens: int) -> None:
        """A request of this size goes out."""
        self.open += 1
        self._open_tokens += tokens
        if self._is_metered:
            self._requests -= 1
            self._tokens -= tokens
            self._started.append(tokens)
            self._usual_tokens = tokens

    def end(self, tokens: int, *, requests: int, used_tokens: int, now_s: float) -> None:
        """It is over, and counts as so many requests (0 where it was never sent) and tokens."""
        self.open -= 1
        self._open_tokens -= tokens
        if self._is_metered:
            self._requests += 1 - requests
            self._tokens += tokens - used_tokens
        for window, amount in zip(self._past, (requests, used_tokens), strict=True):
            window.add(amount, now_s=now_s)
        for link in self._links:
            link.requests += requests
            link.tokens += used_tokens

    # ---- ledgers -----------------------------------------------------------------------------------------------

    def link(self) -> Link:
        """A ledger that is going to be asked."""
        self._links.append(Link())
        return self._links[-1]

    def unlink(self, link: Link) -> None:
        """It is not asked any more."""
        self._links.remove(link)

    def ask(self, link: Link, waiting: Sequence[int], *, count: int, now_s: float) -> Ask:
        """What to tell the ledger now; gives back what is not needed.

        `waiting` holds the sizes of the first of `count` calls that wait.
        """
        self._places = max(self.open, min(self._places, self._fair))
        calls = self._wanted(waiting, now_s)
        return self._told(
            link,
            now_s,
            waiting=count,
            places=self._places,
            calls=calls,
            held_requests=max(0, self._requests) + self.open,
            held_tokens=max(0, self._tokens) + self._open_tokens,
        )

    def greeting(self, link: Link, *, now_s: float) -> Ask:
        """What to tell a ledger that leases nothing here yet."""
        return self._told(link, now_s, places=self.open, held_requests=self.open, held_tokens=self._open_tokens)

    def farewell(self, link: Link, *, now_s: float) -> Ask:
        """The last thing to tell it, which gives back everything."""
        return self._told(link, now_s, leaving=True)

    def take(self, link: Link, ask: Ask, answer: Answer) -> bool:
        """Take what the ledger leases in answer to `ask`; whether it gave anything."""
        if not answer.knows_you:
            link.ledger = ""
            return True
        link.ledger = answer.ledger
        link.requests -= ask.requests
        link.tokens -= ask.tokens
        self._places += answer.places
        self._fair = answer.fair
        self._is_metered, self._is_scarce = answer.is_metered, answer.is_scarce
        self._requests += answer.calls
        self._tokens += sum(ask.calls[: answer.calls])
        return bool(answer.places or answer.calls)

    def let_go(self) -> None:
        """Hold no lease any more: another ledger is going to be asked, or this one was not heard for too long."""
        self._places, self._fair = self.open, 0
        self._requests = self._tokens = 0

    def _told(self, link: Link, now_s: float, **wishes: int | bool | tuple[int, ...]) -> Ask:
        past = None
        if not link.ledger:
            requests, tokens = (window.aged(now_s=now_s) for window in self._past)
            past = Spent(requests=requests, tokens=tokens)
            link.requests = link.tokens = 0
        return Ask(
            member=self._member,
            limits=self.limits,
            ledger=link.ledger,
            past=past,
            open=self.open,
            requests=link.requests,
            tokens=link.tokens,
            **wishes,  # type: ignore[arg-type]
        )

    def _wanted(self, waiting: Sequence[int], now_s: float) -> tuple[int, ...]:
        """The calls for which nothing is leased yet; what is leased and not needed is no longer held."""
        if now_s >= self._second_s + 1:
            self._started_before, self._started, self._second_s = self._started, [], now_s
        started = max(self._started_before, self._started, key=len)
        if not self._is_metered:
            self._requests = self._tokens = 0
            return ()
        # Half as many again as in a second before, so that not every second ends with a wait.
        soon = [] if self._is_scarce else [*started, *started[::2], self._usual_tokens]
        sizes = [*waiting, *soon][:MOST_CALLS]
        covered = used = 0
        for size in sizes:
            if covered + 1 > self._requests or used + size > self._tokens:
                break
            covered, used = covered + 1, used + size
        self._requests, self._tokens = covered, used
        return tuple(sizes[covered:])
