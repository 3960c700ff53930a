"""The Ray side of a task: one async worker actor for them all, and one function for a task in its own process."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import ray

from roma_ray.cluster import garbage
from roma_ray.cluster.backend import Session, Task
from roma_ray.cluster.host import Host

CONCURRENCY = 10_000
"""Tasks that one worker takes at once; far more than the pool gives it, because Ray silently queues what is above."""
THREADS = 32
"""Of the default executor: Python's own choice is CPUs + 4, which a few blocking file reads would fill."""
LAG_S = 0.2
"""How late a worker's loop may be before somebody is told."""
TICK_S = 0.25
"""How soon a task in a process of its own sees that it is cancelled."""

_END = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first item of `watch`: the worker runs."""

    label: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLag:
    """The loop of this worker stood still for `lag_s` seconds, and with it every task there."""

    label: str
    lag_s: float


class Worker:
    """An async actor that runs any number of tasks of any number of sessions on one event loop."""

    def __init__(self) -> None:
        self._host = Host()
        garbage.relax()
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C goes to every process of the terminal's group; when to stop is the coordinator's decision.
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def watch(self) -> AsyncGenerator[Hello | LoopLag]:
        """Says Hello, then every lag of the loop; runs as long as the process and so ends when that dies."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="roma_ray"))
        yield Hello(label=self._host.label, pid=int(self._host.label.partition("@")[0]))
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_S)
            lag_s = time.monotonic() - before - LAG_S
            if lag_s > LAG_S:
                yield LoopLag(label=self._host.label, lag_s=lag_s)

    async def open_session(self, session: Session) -> None:
        """Set `session` up unless it is. A failing set-up is told to each of its tasks, not here."""
        self._host.add_session(session)
        await asyncio.gather(self._host.prepare(session.id), return_exceptions=True)

    async def renew_session(self, session_id: str, ttl_s: float) -> None:
        """Its owner was heard."""
        self._host.renew_session(session_id, ttl_s)

    async def close_session(self, session_id: str) -> None:
        """Cancel the session's tasks here and tear it down."""
        await self._host.close_session(session_id)

    async def run(self, task: Task, *inputs: Any) -> AsyncGenerator[Any]:
        """The stream of one task; see Host.stream."""
        async for item in self._host.stream(task, inputs):
            yield item


_remote: Any = ray.remote
worker_actor = _remote(num_cpus=0, max_concurrency=CONCURRENCY, max_restarts=0, max_task_retries=0)(Worker)


def _run_alone(session: Session, task: Task, *inputs: Any) -> Generator[Any]:
    """The same stream in a process of its own, with a session and an event loop of its own.

    Ray cancels a function by an interrupt of the main thread; asyncio.Runner turns that into the cancellation of what
    it runs, so that the task sees a CancelledError here too.
    """
    with asyncio.Runner() as runner:
        host = Host()
        items = host.stream(task, inputs)
        try:
            _ticking = runner.run(_open(host, session))
            while (item := runner.run(_next(items))) is not _END:
                yield item
        finally:
            runner.run(_close(host, session, items))


async def _open(host: Host, session: Session) -> asyncio.Task[None]:
    # Nobody can tell this process that the owner lives: it has no address.
    host.add_session(replace(session, ttl_s=None))
    return asyncio.create_task(_tick())


async def _tick() -> None:
    """Wake the loop up: Ray's interrupt is a flag that only running Python sees, a loop that waits would sleep on."""
    while True:
        await asyncio.sleep(TICK_S)


async def _next(items: AsyncGenerator[Any]) -> Any:
    return await anext(items, _END)


async def _close(host: Host, session: Session, items: AsyncGenerator[Any]) -> None:
    await items.aclose()
    await host.close_session(session.id)


run_alone = _remote(num_cpus=1, max_retries=0)(_run_alone)
