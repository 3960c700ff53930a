"""Tasks as coroutines of the caller's own event loop: for unit tests, debuggers and notebooks. No Ray, no processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Self

from roma_ray.cluster.backend import Session, Task
from roma_ray.cluster.host import Ended, Host, ended
from roma_ray.cluster.register import Register
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import Cancelled, ConfigError

_CURE = "use cluster=local or cluster=auto"


class InlineBackend:
    """A Backend without Ray. A reference is the value itself, so nothing is copied and nothing is lost."""

    def __init__(self, config: ClusterConfig) -> None:
        """Raises ConfigError when `config` asks for processes."""
        if config.isolation == "process" or config.process_types:
            key = "cluster.isolation=process" if config.isolation == "process" else "cluster.process_types"
            raise ConfigError(f"{key} needs processes, which cluster=inline does not have", cure=_CURE)
        self._host = Host()
        self._register: Register[InlineStream] = Register()

    @property
    def machines(self) -> int:
        return 1

    @property
    def workers(self) -> int:
        return 1

    async def open(self) -> None:
        """There is nothing to start."""

    async def open_session(self, session: Session) -> None:
        self._register.add_session(session)
        self._host.add_session(session)

    def submit(self, task: Task, inputs: Sequence[Any]) -> InlineStream:
        """Start `task` on the running loop. Raises ConfigError for an isolated one."""
        session = self._register.session_of(task)
        if task.isolate:
            raise ConfigError(f"{task.name} is to run in a process of its own", cure=_CURE)
        stream = InlineStream(self._host, task, inputs)
        self._register.add_stream(session.id, stream)
        stream.pump.add_done_callback(lambda _: self._register.drop_stream(session.id, stream))
        return stream

    async def fetch(self, reference: Any) -> Any:
        return reference

    def renew_session(self, session_id: str, ttl_s: float) -> None:
        self._host.renew_session(session_id, ttl_s)

    async def close_session(self, session_id: str) -> None:
        self._register.close_session(session_id)
        await self._host.close_session(session_id)

    async def close(self) -> None:
        for session_id in list(self._register.sessions):
            await self.close_session(session_id)
        self._register.close()


class InlineStream:
    """A TaskStream whose task runs beside its reader."""

    def __init__(self, host: Host, task: Task, inputs: Sequence[Any]) -> None:
        self.worker = host.label
        self._batches: asyncio.Queue[Any] = asyncio.Queue()
        self._ended: Ended | None = None
        self._value: Any = None
        # The task starts now and runs to its end whether or not somebody reads, as it does on Ray.
        self.pump = asyncio.create_task(self._run(host, task, inputs), name=task.name)
        self.pump.add_done_callback(self._batches.put_nowait)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cancel()
        await asyncio.wait((self.pump,))
        if not self.pump.cancelled():
            self.pump.exception()  # Looked at, so that asyncio does not report it as unseen.

    def cancel(self) -> None:
        self.pump.cancel()

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        while (batch := await self._batches.get()) is not self.pump:
            yield batch
        if self.pump.cancelled():
            raise Cancelled(f"{self.pump.get_name()} was cancelled")
        self.pump.result()

    @property
    def outcome(self) -> Any:
        return ended(self._ended).outcome

    @property
    def value(self) -> Any:
        ended(self._ended)
        return self._value

    async def _run(self, host: Host, task: Task, inputs: Sequence[Any]) -> None:
        async with aclosing(host.stream(task, inputs)) as items:
            async for item in items:
                if self._ended is not None:
                    self._value = item
                    break
                batch = item.events if isinstance(item, Ended) else item
                if batch:
                    self._batches.put_nowait(batch)
                if isinstance(item, Ended):
                    self._ended, self._value = item, item.value
