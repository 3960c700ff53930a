"""What a durable step costs one engine on one store, what is promised about it, and the one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table

Store = Literal["memory disk", "disk", "PostgreSQL"]

_SLACK = 1.10
"""A promise is missed when it is missed by more than 10 %, as the others are."""
_STORED_KIB = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Best rounds: wall and CPU milliseconds a step, one after another (`chain`) and many at once (`fan_out`).

    The floor is one commit of the bare value, in the same process, rounds taking turns. CPU is the engine's process;
    what a PostgreSQL server does is not in it. `stored_kib` holds KiB a step by the number of steps.
    """

    store: Store
    engine: str
    floor_ms: float
    floor_cpu_ms: float
    chain_ms: float
    chain_cpu_ms: float
    fan_out_ms: float
    fan_out_cpu_ms: float
    stored_kib: dict[int, float]
    rounds: int
    is_ours: bool

    @property
    def promises(self) -> list[StepPromise]:
        """Empty for the other engines."""
        return [*_times(self), *_stored(self)] if self.is_ours else []

    @property
    def kept(self) -> bool:
        return all(promise.kept for promise in self.promises)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPromise:
    """One promise about one row."""

    what: str
    measured: float
    limit: float

    @property
    def kept(self) -> bool:
        return self.measured <= self.limit * _SLACK

    def __str__(self) -> str:
        return f"{self.what} {self.measured:.3g} <= {self.limit:g} {'ok' if self.kept else 'MISSED'}"


def _times(cost: StepCost) -> Iterator[StepPromise]:
    match cost.store:
        case "memory disk":
            yield StepPromise(what="chain ms", measured=cost.chain_ms, limit=0.4)
            yield StepPromise(what="fan-out ms", measured=cost.fan_out_ms, limit=0.3)
        case "disk":
            # Flushing a disk takes as long as the disk takes.
            yield StepPromise(what="chain x floor", measured=cost.chain_ms / cost.floor_ms, limit=1.15)
            yield StepPromise(what="fan-out ms", measured=cost.fan_out_ms, limit=0.3)
        case "PostgreSQL":
            yield StepPromise(what="chain ms", measured=cost.chain_ms, limit=6.0)
            yield StepPromise(what="fan-out ms", measured=cost.fan_out_ms, limit=1.0)


def _stored(cost: StepCost) -> Iterator[StepPromise]:
    """The same limit for few steps and for many: what a step stores may not grow with the number of steps."""
    yield StepPromise(what="KiB at most", measured=max(cost.stored_kib.values()), limit=_STORED_KIB)


def as_table(costs: Sequence[StepCost]) -> Table:
    """One row an engine and store."""
    table = Table(title="Durable steps of 1 KiB, flushed at each commit: ms a step (best round), KiB stored a step")
    for name in ("store", "engine"):
        table.add_column(name, no_wrap=True)
    for name in ("floor", "chain", "CPU", "x floor", "200 at once", "CPU", "x floor"):
        table.add_column(name, justify="right")
    for steps in costs[0].stored_kib if costs else ():
        table.add_column(f"KiB/{steps}", justify="right")
    table.add_column("promised")
    for cost in costs:
        table.add_row(cost.store, cost.engine, *_figures(cost), "\n".join(map(str, cost.promises)))
    return table


def _figures(cost: StepCost) -> list[str]:
    return [
        f"{cost.floor_ms:.3f}",
        f"{cost.chain_ms:.3f}",
        f"{cost.chain_cpu_ms:.3f}",
        f"{cost.chain_ms / cost.floor_ms:.1f}",
        f"{cost.fan_out_ms:.3f}",
        f"{cost.fan_out_cpu_ms:.3f}",
        f"{cost.fan_out_ms / cost.floor_ms:.1f}",
        *(f"{kib:.1f}" for kib in cost.stored_kib.values()),
    ]
