"""What calls in one process share: a coordinator per loop, cluster and run log, while any of its runs is at work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from roma_ray.config import Config, StorageConfig
from roma_ray.config.schema import RunlogConfig
from roma_ray.engine.background import background_loop
from roma_ray.engine.coordinator import Coordinator, Say
from roma_ray.engine.state import RunState
from roma_ray.runlog.log import RunLog


@contextlib.asynccontextmanager
async def run_log(config: RunlogConfig) -> AsyncGenerator[RunLog]:
    """The run log, open inside."""
    log = await RunLog.open(config)
    try:
        yield log
    finally:
        await log.close()


def storage_of(state: RunState, config: Config) -> StorageConfig:
    """Where a run has its files and values, as it was told; the present setting where its log does not say."""
    base_path = state.config.get("storage", {}).get("base_path")
    return config.storage.model_copy(update={"base_path": base_path}) if base_path else config.storage


@dataclass(slots=True)
class _Shared:
    """A coordinator that the runs of one loop share, while any of them is at work."""

    opened: asyncio.Future[Coordinator]
    exit: contextlib.AsyncExitStack
    users: int = 0


_shared: dict[tuple[Any, ...], _Shared] = {}


@contextlib.asynccontextmanager
async def coordinator_of(config: Config, say: Say) -> AsyncGenerator[Coordinator]:
    """The coordinator of this loop for the cluster and run log of `config`, opened where there is none yet."""
    loop = asyncio.get_running_loop()
    key = (loop, config.cluster, config.runlog)
    shared = _shared.get(key)
    if shared is None:
        shared = _shared[key] = _Shared(loop.create_future(), contextlib.AsyncExitStack())
        shared.users += 1
        try:
            opened = await shared.exit.enter_async_context(Coordinator.opened(config, say=say))
            shared.opened.set_result(opened)
        except BaseException as error:
            del _shared[key]
            shared.opened.set_exception(error if isinstance(error, Exception) else RuntimeError("start was stopped"))
            shared.opened.exception()
            raise
    else:
        shared.users += 1
    try:
        yield await asyncio.shield(shared.opened)
    finally:
        shared.users -= 1
        # The background loop keeps its cluster for the next solve(); starting Ray takes seconds.
        if shared.users == 0 and not _is_background(loop):
            _shared.pop(key, None)
            await shared.exit.aclose()


def _is_background(loop: asyncio.AbstractEventLoop) -> bool:
    return background_loop.cache_info().currsize > 0 and loop is background_loop()


def _close_background() -> None:
    if background_loop.cache_info().currsize == 0:
        return

    async def close() -> None:
        for shared in list(_shared.values()):
            if shared.opened.done() and not shared.opened.exception():
                await shared.exit.aclose()

    with contextlib.suppress(RuntimeError, TimeoutError):
        asyncio.run_coroutine_threadsafe(close(), background_loop()).result(timeout=20.0)


# Plain atexit is too late: by then no thread pool takes work, and Ray's own handler, registered after ours and so run
# before it, has shut down the cluster that is to be closed (a call to it would start another one).
threading._register_atexit(_close_background)  # type: ignore[attr-defined]
