"""What the call gate knows of the step in which a model call is made."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

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
        grant = self.grant
        if grant.calls is not None and self.calls + 1 > grant.calls:
            raise LimitReached("limits.max_lm_calls is reached")
        if grant.tokens is not None and self.tokens + tokens > grant.tokens:
            raise LimitReached("limits.max_tokens is reached")
        if grant.cost_usd is not None and self.cost_usd + (cost_usd or 0.0) > grant.cost_usd:
            raise LimitReached("limits.max_cost_usd is reached")
        self.calls += 1
        self.tokens += tokens
        self.cost_usd += cost_usd or 0.0

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


@dataclass(slots=True, kw_only=True)
class CallScope:
    """One attempt at one step: its answers from the log, its allowance, and where its records go.

    `known` holds, per request key, the answered records of this step in the order of their ordinals. `emit` takes a
    CallRecord the moment a call is answered, has failed for good, or was served from what is known, and a CallWaiting
    when one has to wait.
    `last_finish_reason` and `last_text` are those of the answer that the gate gave out last, known ones included.
    """

    step: str
    known: Mapping[str, Sequence[CallRecord]] = field(default_factory=dict)
    allowance: Allowance = field(default_factory=lambda: Allowance(Grant()))
    emit: Callable[[CallRecord | CallWaiting], None] = lambda record: None
    keep_prompts: bool = True
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
