"""One event loop in a thread of its own for the sync façades: every `solve(...)` of a process runs on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import lru_cache
from typing import Any, TypeVar

T = TypeVar("T")


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on the background loop and wait for it; Ctrl-C cancels it and waits until it has wound up.

    Raises RuntimeError when called from that loop itself, where waiting would never end.
    """
    loop = background_loop()
    if threading.current_thread() is _thread_of(loop):
        work.close()
        raise RuntimeError("a sync function of roma_ray was called from inside its own loop; await the async one")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        _wait_until_idle(loop)
        raise


@lru_cache(maxsize=1)
def background_loop() -> asyncio.AbstractEventLoop:
    """The loop, started on first use."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="roma-ray", daemon=True)
    loop.roma_ray_thread = thread  # type: ignore[attr-defined]
    thread.start()
    return loop


def _thread_of(loop: asyncio.AbstractEventLoop) -> threading.Thread:
    return loop.roma_ray_thread  # type: ignore[attr-defined]


def _wait_until_idle(loop: asyncio.AbstractEventLoop) -> None:
    """Give cancelled work the time to write down that it was interrupted."""

    async def others() -> None:
        me = asyncio.current_task()
        cancelled = [t for t in asyncio.all_tasks() if t is not me and t.cancelling()]
        await asyncio.wait(cancelled, timeout=30.0) if cancelled else None

    asyncio.run_coroutine_threadsafe(others(), loop).result()
