"""One pool of calls, tokens and money per run.

A step reserves its worst case before it starts and gives back what it did not use; one Aggregator call stays held for
every open ancestor, so that what exists can always be put together. What a worker may spend is its `Grant`, checked at
every call by the gate: the pool is never overdrawn, however many steps run at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from roma_ray.config import AgentConfig, Config, LimitsConfig, Price, Role
from roma_ray.errors import LimitReached
from roma_ray.lm.scope import Grant
from roma_ray.types import NodeType, StepKind, TaskType, Usage

_CALLS_PER_ASK = {"ReAct": 22, "ReActV2": 22, "BestOfN": 3, "Refine": 6, "MultiChainComparison": 4, "majority": 5}
_SAMPLING: dict[str, Callable[[int], int]] = {
    "BestOfN": lambda n: n,
    # Each sample but the last may be followed by a call for advice.
    "Refine": lambda n: 2 * n,
    "MultiChainComparison": lambda m: m + 1,
    "majority": lambda n: n,
}
_PROMPT_FLOOR_TOKENS = 1_500
"""Instructions and field marks of a prompt, before any input."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Calls, tokens and US dollars; infinite where there is no limit."""

    calls: float = 0.0
    tokens: float = 0.0
    cost_usd: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.cost_usd + other.cost_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.cost_usd - other.cost_usd)

    def fits(self, room: Amount) -> bool:
        """Whether this fits into `room` in every respect."""
        return self.calls <= room.calls and self.tokens <= room.tokens and self.cost_usd <= room.cost_usd

    def within(self, room: Amount) -> Amount:
        """As much of this as `room` has, never less than nothing."""
        return Amount(
            max(0.0, min(self.calls, room.calls)),
            max(0.0, min(self.tokens, room.tokens)),
            max(0.0, min(self.cost_usd, room.cost_usd)),
        )

    @classmethod
    def of(cls, usage: Usage) -> Amount:
        return cls(usage.lm_calls, usage.tokens, usage.cost_usd or 0.0)


NOTHING = Amount()


@dataclass(slots=True)
class Reservation:
    """What one running step may still spend; `charge` moves what it has spent from reserved to spent."""

    pool: Pool
    left: Amount
    grant: Grant
    short_of: str = ""
    """The limit that made this less than was asked for."""
    is_open: bool = True

    def charge(self, usage: Usage) -> None:
        used = Amount.of(usage)
        self.pool.spent += used
        kept = (self.left - used).within(self.left)
        self.pool.reserved -= self.left - kept
        self.left = kept

    def forgo(self) -> None:
        """Give back everything but the right to run: what goes on makes no call."""
        self.pool.reserved -= self.left
        self.left, self.grant = NOTHING, Grant(calls=0, tokens=0, cost_usd=0.0)
        self.pool.wake()

    def give_back(self) -> None:
        """The step has ended; a second time is nothing."""
        if not self.is_open:
            return
        self.is_open = False
        self.forgo()
        self.pool.open -= 1
        self.pool.wake()


@dataclass(slots=True)
class Pool:
    """The pool of one run. `limit` is infinite where nothing is limited."""

    limit: Amount
    spent: Amount = NOTHING
    reserved: Amount = NOTHING
    held: dict[str, Amount] = field(default_factory=dict[str, Amount])
    open: int = 0
    _waiters: set[asyncio.Future[None]] = field(default_factory=set["asyncio.Future[None]"])

    @classmethod
    def of(cls, limits: LimitsConfig, *, spent: Usage) -> Pool:
        """A pool with the run's limits, from which `spent` was taken before (a resumed run)."""
        return cls(
            Amount(
                limits.max_lm_calls or math.inf,
                limits.max_tokens or math.inf,
                limits.max_cost_usd or math.inf,
            ),
            spent=Amount.of(spent),
        )

    @property
    def room(self) -> Amount:
        """What could be reserved now."""
        room = self.limit - self.spent - self.reserved
        for held in self.held.values():
            room -= held
        return room

    @property
    def is_limited(self) -> bool:
        return self.limit != Amount(math.inf, math.inf, math.inf)

    async def reserve(self, worst: Amount, least: Amount) -> Reservation:
        """Reserve `worst`, waiting for others to give back; when nobody can, as much of it as there is.

        With less than `least` the reservation says what it is `short_of`. Raises LimitReached when there is not even
        one call left.
        """
        if not self.is_limited:
            return self._take(worst)
        while not worst.fits(self.room):
            if self.open == 0:
                return self._take_rest(worst, least)
            await self._changed()
        return self._take(worst)

    def hold(self, node_id: str, amount: Amount) -> None:
        """Keep `amount` for the Aggregator of a node that was planned."""
        self.held[node_id] = amount

    def take_held(self, node_id: str) -> None:
        """The node's Aggregator is about to reserve for itself."""
        self.held.pop(node_id, None)
        self.wake()

    def nothing(self) -> Reservation:
        """A reservation that allows no call at all."""
        return self._take(NOTHING, grant=Grant(calls=0, tokens=0, cost_usd=0.0))

    def wake(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _take_rest(self, worst: Amount, least: Amount) -> Reservation:
        rest = worst.within(self.room)
        if rest.calls < 1:
            raise LimitReached("limits.max_lm_calls is reached")
        if rest.tokens <= 0 < worst.tokens:
            raise LimitReached("limits.max_tokens is reached")
        if rest.cost_usd <= 0 < worst.cost_usd:
            raise LimitReached("limits.max_cost_usd is reached")
        rest = Amount(math.floor(rest.calls), rest.tokens, rest.cost_usd)
        short_of = ""
        if rest.calls < least.calls:
            short_of = "max_lm_calls"
        elif rest.tokens < least.tokens:
            short_of = "max_tokens"
        elif rest.cost_usd < least.cost_usd:
            short_of = "max_cost_usd"
        return self._take(rest, short_of=short_of)

    def _take(self, amount: Amount, *, grant: Grant | None = None, short_of: str = "") -> Reservation:
        self.reserved += amount
        self.open += 1
        if grant is None:
            grant = Grant(
                calls=None if math.isinf(self.limit.calls) else int(amount.calls),
                tokens=None if math.isinf(self.limit.tokens) else int(amount.tokens),
                cost_usd=None if math.isinf(self.limit.cost_usd) else amount.cost_usd,
            )
        return Reservation(self, amount, grant, short_of)

    async def _changed(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        await waiter


@dataclass(frozen=True, slots=True)
class WorstCase:
    """How much one step can spend at most: every role asked twice, every answer as long as it may be."""

    config: Config
    prices: Mapping[tuple[Role, TaskType | None], Price | None]
    default_max_tokens: Mapping[Role, int]

    def of_step(
        self,
        kind: StepKind,
        *,
        task_type: TaskType,
        decided: NodeType | None,
        verify: bool,
        input_tokens: int,
        groups: int = 1,
        asks: int = 2,
    ) -> Amount:
        """The worst case of a step whose inputs have `input_tokens` altogether; `groups` of an Aggregator's folding.

        `asks` is 2 with the one corrective ask that each role may need, 1 without.
        """
        roles: list[Role] = ["verifier"] if verify else []
        if kind == "ascend":
            roles.extend("aggregator" for _ in range(groups + 1 if groups > 1 else 1))
        else:
            roles.append("executor")
            if decided is not NodeType.EXECUTE:
                roles.append("planner")
            if decided is None:
                roles.append("atomizer")
        total = NOTHING
        for role in roles:
            total += self._of_ask(role, task_type, input_tokens, asks=asks)
        return total

    def of_aggregator(self, task_type: TaskType) -> Amount:
        """One Aggregator call with a full share of inputs: what is held for an open ancestor."""
        share = self.config.agents.aggregator.lm.context_tokens
        return self._of_ask("aggregator", task_type, min(share, _PROMPT_FLOOR_TOKENS), asks=1)

    def _of_ask(self, role: Role, task_type: TaskType, input_tokens: int, *, asks: int) -> Amount:
        agent = self.config.agents.of(role, task_type)
        calls = asks * calls_per_ask(agent)
        longest = agent.lm.max_tokens or self.default_max_tokens[role]
        prompt = _PROMPT_FLOOR_TOKENS + min(input_tokens, agent.lm.context_tokens) + longest * (asks - 1)
        price = self.prices.get((role, task_type)) or self.prices.get((role, None))
        cost = (prompt * price.prompt + longest * price.completion) / 1e6 if price else 0.0
        return Amount(calls, calls * (prompt + longest), calls * cost)


def calls_per_ask(agent: AgentConfig) -> int:
    """How many model calls one ask of this agent takes at most."""
    if agent.strategy in ("ReAct", "ReActV2"):
        return int(agent.strategy_config.get("max_iters", 20)) + 2
    calls = _CALLS_PER_ASK.get(agent.strategy, 1)
    if agent.strategy not in _SAMPLING or agent.samples is None:
        return calls
    return _SAMPLING[agent.strategy](agent.samples)
