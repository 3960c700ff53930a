"""How many node tasks of one coordinator are in flight at once.

A task in flight holds about 40 KB where it runs (traced with 10,000 leaves open at once, nine in ten of which only
waited for their turn at the model). Such a task waits here instead, where it costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from roma_ray.cluster.backend import Backend
from roma_ray.config import ROLES, Config


def places_per_worker(config: Config) -> int:
    """As many as may have calls open at once in the cluster, all of which one worker may have to take, and not fewer
    than those after which another worker is started."""
    agents = [*(config.agents.of(role) for role in ROLES), *config.agents.executor.by_type.values()]
    return max(config.cluster.calls_per_worker, *(agent.lm.max_concurrency for agent in agents))


class Places:
    """A number of places for each worker that the backend may have at the time, shared by all runs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def one(self, *, per_worker: int) -> AsyncGenerator[None]:
        """Hold one place inside; waits while `per_worker` places a worker are taken."""
        while self._taken >= self._backend.workers * per_worker:
            await self._turn()
        self._taken += 1
        if self._taken < self._backend.workers * per_worker:
            # There may be more workers than when the others began to wait.
            self._call_next()
        try:
            yield
        finally:
            self._taken -= 1
            self._call_next()

    async def _turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            # Called and cancelled in the same instant: the turn is passed on.
            if turn.done() and not turn.cancelled():
                self._call_next()
            raise

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
