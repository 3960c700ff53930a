"""How many requests may be open at one endpoint at once, and the pause that all of them keep after a 429."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from roma_ray.clock import mono_s


class Pause:
    """When an endpoint that said "too many requests" may be asked again; times are monotonic seconds."""

    def __init__(self) -> None:
        self._until_s = 0.0

    def extend(self, seconds: float, *, now_s: float) -> None:
        """Nobody asks for `seconds` from now; a longer pause that is already agreed on stays."""
        self._until_s = max(self._until_s, now_s + seconds)

    def left_s(self, *, now_s: float) -> float:
        """Seconds still to wait, 0 when there is no pause."""
        return max(0.0, self._until_s - now_s)


class Limiter:
    """Permits of one endpoint in one process, given out in the order of asking. Belongs to one event loop."""

    def __init__(self) -> None:
        self.has_answered = False
        """Whether this endpoint has answered anything yet."""
        self._open = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._pause = Pause()

    @property
    def open(self) -> int:
        """Permits that are held now."""
        return self._open

    @asynccontextmanager
    async def permit(self, limit: int) -> AsyncGenerator[None]:
        """Hold one permit inside; waits while `limit` permits are held and until a shared pause is over.

        Cancelling the wait gives up the place in the queue.
        """
        await self._take(limit)
        try:
            while (left_s := self._pause.left_s(now_s=mono_s())) > 0:
                await asyncio.sleep(left_s)
            yield
        finally:
            self._open -= 1
            self._admit()

    def pause(self, seconds: float) -> None:
        """Let every call that has not been sent yet wait for `seconds`."""
        self._pause.extend(seconds, now_s=mono_s())

    async def _take(self, limit: int) -> None:
        if not self._waiting and self._open < limit:
            self._open += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((limit, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # Admitted and cancelled in the same instant: pass the permit on.
            if turn.done() and not turn.cancelled():
                self._open -= 1
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting:
            limit, turn = self._waiting[0]
            if turn.done():
                self._waiting.popleft()
                continue
            if self._open >= limit:
                return
            self._waiting.popleft()
            self._open += 1
            turn.set_result(None)
