"""What the call gate knows of the step in which a model call is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from roma_ray.clock import mono_s
from roma_ray.config import Price
from roma_ray.errors import LimitReached
from roma_ray.types import CallRecord, CallWaiting, Usage

SHORTEST_ANSWER_TOKENS = 256
"""An answer that may not even be this long is not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one step may spend at most; None is without limit."""

    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None


@dataclass(slots=True)
class Allowance:
    """Keeps the calls of a step within its grant, those that are open included."""

    grant: Grant
    calls: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def reserve(self, *, tokens: int, cost_usd: float | None) -> None:
        """Take one call with this worst case (prompt estimate + longest answer). Raises LimitReached."""
        limit = self._exceeded(tokens, cost_usd or 0.0)
        if limit:
            raise LimitReached(f"limits.{limit} is reached")
        self.calls += 1
        self.tokens += tokens
        self.cost_usd += cost_usd or 0.0

    def has(self, *, tokens: int, cost_usd: float | None) -> bool:
        """Whether a call with this worst case could be reserved."""
        return not self._exceeded(tokens, cost_usd or 0.0)

    def _exceeded(self, tokens: int, cost_usd: float) -> str:
        grant = self.grant
        if grant.calls is not None and self.calls + 1 > grant.calls:
            return "max_lm_calls"
        if grant.tokens is not None and self.tokens + tokens > grant.tokens:
            return "max_tokens"
        if grant.cost_usd is not None and self.cost_usd + cost_usd > grant.cost_usd:
            return "max_cost_usd"
        return ""

    def answer_tokens(self, wanted: int, *, prompt_tokens: int, price: Price | None) -> int:
        """The longest answer that is still allowed, at most `wanted`; `wanted` where less than a usable answer is left.

        A short answer near a limit is better than none: what is left then is refused by `reserve`.
        """
        allowed = float(wanted)
        if self.grant.tokens is not None:
            allowed = min(allowed, self.grant.tokens - self.tokens - prompt_tokens)
        if self.grant.cost_usd is not None and price is not None and price.completion:
            left_usd = self.grant.cost_usd - self.cost_usd - prompt_tokens * price.prompt / 1e6
            allowed = min(allowed, left_usd * 1e6 / price.completion)
        return int(allowed) if allowed >= SHORTEST_ANSWER_TOKENS else wanted

    def settle(self, usage: Usage, *, tokens: int, cost_usd: float | None) -> None:
        """Give back what a reservation did not use; an attempt that may have been billed keeps its call."""
        self.calls += usage.lm_calls - 1
        self.tokens += usage.tokens - tokens
        self.cost_usd += (usage.cost_usd or 0.0) - (cost_usd or 0.0)


class Hearing:
    """Whether the coordinator of a run is heard: without it nothing new is paid for. Belongs to one event loop."""

    def __init__(self) -> None:
        self._until_s: float | None = None
        self._renewed = asyncio.Event()

    def renew(self, ttl_s: float) -> None:
        """It was heard, which holds for `ttl_s` from now."""
        self._until_s = mono_s() + ttl_s
        self._renewed.set()

    @property
    def is_heard(self) -> bool:
        """Always True before the first `renew`: nobody promised to be heard."""
        return self._until_s is None or mono_s() < self._until_s

    async def until_heard(self) -> None:
        """Wait while it is not heard."""
        while not self.is_heard:
            self._renewed.clear()
            await self._renewed.wait()


@dataclass(slots=True, kw_only=True)
class CallScope:
    """One attempt at one step: its answers from the log, its allowance, and where its records go.

    `known` holds, per request key, the answered records of this step in the order of their ordinals. `emit` takes a
    CallRecord the moment a call is answered, has failed for good, or was served from what is known, and a CallWaiting
    when one has to wait.
    No request goes out while `hearing` says that the coordinator is not heard.
    A `sealed` scope belongs to a replay: what is known is all that may be asked, and known failures fail again.
    `last_finish_reason` and `last_text` are those of the answer that the gate gave out last, known ones included.
    """

    step: str
    known: Mapping[str, Sequence[CallRecord]] = field(default_factory=dict)
    allowance: Allowance = field(default_factory=lambda: Allowance(Grant()))
    emit: Callable[[CallRecord | CallWaiting], None] = lambda record: None
    hearing: Hearing = field(default_factory=Hearing)
    keep_prompts: bool = True
    sealed: bool = False
    cancelled: bool = False
    ordinals: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    last_finish_reason: str = ""
    last_text: str = ""


current: ContextVar[CallScope | None] = ContextVar("roma_ray_call_scope", default=None)


@contextmanager
def entered(scope: CallScope) -> Generator[CallScope]:
    """Make `scope` the current one for the calls inside."""
    token = current.set(scope)
    try:
        yield scope
    finally:
        current.reset(token)
