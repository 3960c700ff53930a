"""Tasks on Ray: streams from async workers, and from processes of their own where isolation is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import ray
from ray.exceptions import RayError

from roma_ray.cluster.backend import Session, Task
from roma_ray.cluster.host import Ended, ended, plain_value
from roma_ray.cluster.pool import Pool, PoolWorker
from roma_ray.cluster.ray_errors import fetch_error, task_error
from roma_ray.cluster.register import Register
from roma_ray.cluster.start import connect, disconnect
from roma_ray.cluster.worker import run_alone
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import Cancelled, WorkerLost

_PAUSES_S = (0.0, 0.001, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)


class RayBackend:
    """A Backend on Ray. A reference is an ObjectRef that this process owns; it reads one only in `fetch`."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._register: Register[RayStream] = Register()
        self._pool = Pool(config, self._register.sessions)

    @property
    def machines(self) -> int:
        return self._pool.node_count

    @property
    def workers(self) -> int:
        return self._pool.most_workers

    async def open(self) -> None:
        await connect(self._config)
        try:
            await self._pool.open()
        except BaseException:
            await disconnect()
            raise

    async def open_session(self, session: Session) -> None:
        self._register.add_session(session)

    def submit(self, task: Task, inputs: Sequence[Any]) -> RayStream:
        session = self._register.session_of(task)
        alone = task.isolate or self._config.isolation == "process"
        worker = None if alone else self._pool.take(session)
        # One argument, because each costs a serialisation of its own.
        remote, arguments = (run_alone, (session, task)) if worker is None else (worker.handle.run, (task,))
        items = remote.options(name=task.name, num_returns="streaming").remote(*arguments, *inputs)
        stream = RayStream(task.name, items, worker, on_end=lambda: self._ended(session.id, stream))
        self._register.add_stream(session.id, stream)
        return stream

    async def fetch(self, reference: Any) -> Any:
        if not isinstance(reference, ray.ObjectRef):
            return reference
        try:
            return plain_value(await reference)
        except RayError as error:
            raise fetch_error(error) from None

    def renew_session(self, session_id: str, ttl_s: float) -> None:
        self._pool.renew_session(session_id, ttl_s)

    async def close_session(self, session_id: str) -> None:
        self._register.close_session(session_id)
        await self._pool.close_session(session_id)

    async def close(self) -> None:
        self._register.close()
        try:
            for session_id in list(self._register.sessions):
                await self.close_session(session_id)
        finally:
            await self._pool.close()
            await disconnect()

    def _ended(self, session_id: str, stream: RayStream) -> None:
        self._register.drop_stream(session_id, stream)
        if stream.pool_worker is None:
            return
        self._pool.give_back(stream.pool_worker)
        if stream.has_lost_worker:
            self._pool.drop(stream.pool_worker)


class RayStream:
    """A TaskStream over a Ray streaming generator. `on_end` is called once, when it has ended in whatever way."""

    def __init__(self, name: str, items: Any, worker: PoolWorker | None, *, on_end: Callable[[], None]) -> None:
        self.pool_worker = worker
        self.has_lost_worker = False
        self._name = name
        self._items = items
        self._on_end = on_end
        self._is_over = False
        self._ended: Ended | None = None
        self._value: Any = None

    @property
    def worker(self) -> str:
        if self._ended is not None:
            return self._ended.worker
        return self.pool_worker.label if self.pool_worker else ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        if not self._is_over:
            # A generator object that is merely dropped would leave its task running.
            ray.cancel(self._items)
            self._over()

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        reference, item = await self._next()
        while not isinstance(item, Ended):
            yield item
            reference, item = await self._next()
        if item.events:
            yield item.events
        self._value = await self._value_reference() if item.has_value_item else reference
        self._ended = item
        self._over()

    @property
    def outcome(self) -> Any:
        return ended(self._ended).outcome

    @property
    def value(self) -> Any:
        ended(self._ended)
        return self._value

    async def _next(self) -> tuple[Any, Any]:
        """The next item with its reference."""
        try:
            reference = await anext(self._items)
            return reference, await reference
        except StopAsyncIteration:
            raise Cancelled(f"{self._name} was cancelled") from None
        except RayError as error:
            told = task_error(error, self._name, self.worker)
        fault = self.pool_worker.fault if self.pool_worker else None
        self.has_lost_worker = isinstance(told, WorkerLost)
        self._over()
        raise (fault or told) if self.has_lost_worker else told

    async def _value_reference(self) -> Any:
        """The reference of the value. `anext` on an item that has not arrived would read it into this process."""
        for pause_s in _PAUSES_S:
            if self._items.next_ready():
                break
            await asyncio.sleep(pause_s)
        return await anext(self._items)

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end()
