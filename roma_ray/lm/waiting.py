"""Waiting that is told: a call that waits for more than a moment says what for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

Tell = Callable[[str, float], None]
"""Takes what is waited for, in words, and the seconds still to go where they are known, else 0."""

_FIRST_S = 1.0
_MOST_S = 10.0
"""Told ever more seldom: an event a second of each of a thousand calls would cost more than the calls."""


async def until_done(future: asyncio.Future[None], reason: Callable[[], tuple[str, float]], tell: Tell) -> None:
    """Wait for `future`; tell the `reason`, asked anew each time, after 1 s and then after ever longer times."""
    for patience_s in _patience_s():
        if (await asyncio.wait((future,), timeout=patience_s))[0]:
            return future.result()
        tell(*reason())


def _patience_s() -> Iterator[float]:
    """1, 1, 2, 4, 8, 10, 10 … seconds."""
    yield _FIRST_S
    for doubled in itertools.count():
        yield min(_FIRST_S * 2**doubled, _MOST_S)
