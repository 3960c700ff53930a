"""Where the limits of a provider are kept: in this process, or in one that the whole cluster asks."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roma_ray.config import ROLES, Config
from roma_ray.engine.request import SessionArgument
from roma_ray.lm.endpoint import endpoints_of
from roma_ray.lm.ledger import Answer, Ask
from roma_ray.lm.limiters import IN_PROCESS, LEDGER, Limiters, identity

if TYPE_CHECKING:
    from roma_ray.cluster.shared import Shared

_IDLE_S = 600.0
"""How long a ledger outlives its last member: longer than what it remembers, which is a minute and a pause."""
_VERSION = 1
"""Of what members and ledgers say to each other: programs of another version on the same cluster have their own."""


@dataclass(slots=True)
class SharedDesk:
    """A ledger in a process that the whole cluster asks."""

    shared: Shared
    expected: int = 1

    async def ask(self, ask: Ask) -> Answer:
        """As Ledger.ask. Raises ConnectionError."""
        from roma_ray.cluster.shared import SharedLost

        try:
            return await self.shared.call("ask", ask)
        except SharedLost as error:
            raise ConnectionError(str(error)) from error


class _SharedDesks:
    """The desks of this process; made early, a ledger starts while the rest of a worker does."""

    def __init__(self) -> None:
        self.expected = 1
        self._desks: dict[str, SharedDesk] = {}

    def __call__(self, name: str) -> SharedDesk:
        from roma_ray.cluster.shared import Shared

        if name not in self._desks:
            self._desks[name] = SharedDesk(Shared(f"limiter:{_VERSION}:{name}", LEDGER, idle_s=_IDLE_S))
        self._desks[name].expected = self.expected
        return self._desks[name]


_shared_desks = _SharedDesks()
_ON_CLUSTER = Limiters(_shared_desks)


def limiters_of(config: Config) -> Limiters:
    """The limiters that the workers of a run use."""
    return IN_PROCESS if config.cluster.mode == "inline" else _ON_CLUSTER


async def start_ledgers(argument: SessionArgument) -> None:
    """Start the ledgers that a run will need, where a cluster keeps them; if that fails, the limiters will find out."""
    if argument.config.cluster.mode == "inline":
        return
    from roma_ray.cluster.shared import SharedLost, cpu_count

    _shared_desks.expected = argument.config.cluster.max_workers or await asyncio.to_thread(cpu_count)
    with contextlib.suppress(SharedLost):
        await asyncio.gather(*(_shared_desks(name).shared.find() for name in _identities(argument)))


def _identities(argument: SessionArgument) -> set[str]:
    names: set[str] = set()
    for role in ROLES:
        place = endpoints_of(argument.config.agents.of(role).lm)[0]
        names.add(identity(place, argument.keys.get(f"{role}:{place.name}") or argument.keys.get(place.name)))
    return names
