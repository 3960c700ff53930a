"""A second request when the first one is slow: the first answer wins (`lm.hedge`).

Dean and Barroso, "The Tail at Scale", 2013: hedging at the 95th percentile costs about 5 % more requests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_SEEN = 20
"""Answers of an endpoint before anything can be said of its usual time."""
_KEPT = 200
_LEAST_S = 1.0

T = TypeVar("T")


class Latencies:
    """How long the last answers of one endpoint took."""

    def __init__(self) -> None:
        self._last_s: deque[float] = deque(maxlen=_KEPT)

    def add(self, seconds: float) -> None:
        self._last_s.append(seconds)

    @property
    def slow_s(self) -> float | None:
        """The time that 95 % of the answers took at most, at least 1 s; None while too few are known."""
        if len(self._last_s) < _SEEN:
            return None
        return max(_LEAST_S, sorted(self._last_s)[int(len(self._last_s) * 0.95)])


async def first_answer(
    request: Callable[[], Coroutine[Any, Any, T]], *, patience_s: Callable[[], float], may_double: Callable[[], bool]
) -> T:
    """What `request()` gives, or a second one that is made when the first is slow and `may_double()`.

    `patience_s()` is how many seconds the first still has until it counts as slow, 0 when it does. When both fail, the
    first one's error is raised. The one that is not needed is cancelled, and has cleaned up when this returns.
    """
    running = [asyncio.ensure_future(request())]
    try:
        while (left_s := patience_s()) > 0:
            if (await asyncio.wait(running, timeout=left_s))[0]:
                return running[0].result()
        if may_double():
            running.append(asyncio.ensure_future(request()))
        pending = set(running)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            answered = [each for each in done if not each.cancelled() and each.exception() is None]
            if answered:
                return answered[0].result()
        return running[0].result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
