"""The worker processes of one coordinator: started as they are needed, chosen by load, replaced when they die."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from roma_ray.cluster.backend import Session
from roma_ray.cluster.nodes import Node, ask_for_cpus, describe_nodes, emptiest, usable_nodes
from roma_ray.cluster.worker import Hello, LoopLag, worker_actor
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import NothingPlaced, RomaError

PLACED_WITHIN_S = 30.0
"""How long a cluster may have no node for a worker."""
STARTED_WITHIN_S = 120.0
"""How long the process of a worker may take to start on a node that lives: a busy machine is slow, not full."""
REFRESH_S = 10.0
"""How often the list of nodes is read anew."""
_TEARDOWN_S = 10.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class PoolWorker:
    """One worker process as the coordinator sees it; `load` counts its open streams."""

    handle: Any
    node_id: str
    label: str = ""
    load: int = 0
    is_ready: bool = False
    fault: RomaError | None = None
    """Why it never came to life, where that is known better than by its death."""
    sessions: set[str] = field(default_factory=lambda: set[str]())

    def open_session(self, session: Session) -> Any:
        """Send `session` there once; the reference is ready when it is set up."""
        self.sessions.add(session.id)
        return self.handle.open_session.options(name=f"open_session:{session.id}").remote(session)


class Pool:
    """Workers of one coordinator. All methods belong to its event loop."""

    def __init__(self, config: ClusterConfig, sessions: Mapping[str, Session]) -> None:
        """`sessions` is the live mapping of the open sessions: a new worker sets them up before it is preferred."""
        self._config = config
        self._sessions = sessions
        self._nodes: list[Node] = []
        self._workers: list[PoolWorker] = []
        self._background: set[asyncio.Task[None]] = set()
        self._asked_cpus = 0

    @property
    def node_count(self) -> int:
        """How many Ray nodes can carry a worker now."""
        return len(self._nodes)

    @property
    def most_workers(self) -> int:
        """How many workers there may be now: one per CPU, or as many as are allowed."""
        return self._config.max_workers or max(1, sum(node.cpus for node in self._nodes))

    async def open(self) -> None:
        """Find the nodes. Raises NothingPlaced when none that can carry a worker turns up in time."""
        deadline_s = asyncio.get_running_loop().time() + PLACED_WITHIN_S
        while not (nodes := await usable_nodes()):
            if asyncio.get_running_loop().time() > deadline_s:
                raise NothingPlaced(f"no Ray node with a free CPU to stand on: {await describe_nodes()}")
            await self._ask_for_cpus(1)
            await asyncio.sleep(1)
        self._nodes = nodes
        self._in_background(self._keep_fresh())

    def take(self, session: Session) -> PoolWorker:
        """The worker for the next task of `session`, with the session on its way there; `give_back` it afterwards."""
        self._grow(coming=1)
        # A task never waits for a process that starts while another one is there to take it.
        worker = min(self._workers, key=lambda each: (not each.is_ready, each.load))
        worker.load += 1
        if session.id not in worker.sessions:
            worker.open_session(session)
        return worker

    def give_back(self, worker: PoolWorker) -> None:
        worker.load -= 1

    def drop(self, worker: PoolWorker) -> None:
        """Use `worker` no more and make sure that it is gone."""
        if worker in self._workers:
            self._workers.remove(worker)
            ray.kill(worker.handle)
            self._in_background(self._refresh())

    def renew_session(self, session_id: str, ttl_s: float) -> None:
        """Tell each worker that has the session; whether it arrives is not waited for."""
        for worker in self._workers:
            if session_id in worker.sessions:
                worker.handle.renew_session.options(name=f"renew_session:{session_id}").remote(session_id, ttl_s)

    async def close_session(self, session_id: str) -> None:
        """Tear the session down wherever it is. Raises what a teardown raises; a dead worker has nothing to do."""
        closing: list[asyncio.Future[Any]] = []
        for worker in self._workers:
            if session_id in worker.sessions:
                worker.sessions.discard(session_id)
                closing.append(asyncio.ensure_future(_closed(worker, session_id)))
        await asyncio.gather(*closing)

    async def close(self) -> None:
        """End every worker and take back what was asked of the autoscaler."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for worker in self._workers:
            ray.kill(worker.handle)
        self._workers.clear()
        if self._asked_cpus:
            await self._ask_for_cpus(0)

    def _grow(self, *, coming: int) -> None:
        if self._wants_another(coming):
            self._start()

    def _wants_another(self, coming: int) -> bool:
        """Until every CPU has a worker: as soon as there are more open streams than workers; a lone node needs but one.
        Then only when they are overloaded.
        """
        count, load = len(self._workers), coming + sum(worker.load for worker in self._workers)
        cpus = sum(node.cpus for node in self._nodes)
        if count < min(cpus, self._config.max_workers or cpus):
            return load > count
        return count < (self._config.max_workers or 0) and self._is_overloaded()

    def _is_overloaded(self) -> bool:
        load = sum(worker.load for worker in self._workers)
        return load >= len(self._workers) * self._config.calls_per_worker

    def _start(self) -> None:
        node = emptiest(self._nodes, Counter(worker.node_id for worker in self._workers))
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        worker = PoolWorker(worker_actor.options(scheduling_strategy=strategy).remote(), node.id)
        self._workers.append(worker)
        self._in_background(self._watch(worker))

    async def _watch(self, worker: PoolWorker) -> None:
        """Follow one worker from its start to its death."""
        items = worker.handle.watch.options(num_returns="streaming", name="watch").remote()
        try:
            worker.label = (await self._hello(worker, items)).label
            await asyncio.gather(*map(worker.open_session, self._unknown_to(worker)))
            worker.is_ready = True
            self._grow(coming=0)
            async for reference in items:
                lag: LoopLag = await reference
                _log.info("the loop of worker %s stood still for %.1f s", lag.label, lag.lag_s)
        except NothingPlaced as fault:
            worker.fault = fault
        except RayError as death:
            _log.info("worker %s ended: %s", worker.label or "(not started)", type(death).__name__)
        self.drop(worker)

    async def _hello(self, worker: PoolWorker, items: Any) -> Hello:
        first = asyncio.ensure_future(_first(items))
        try:
            for patience_s in (PLACED_WITHIN_S, STARTED_WITHIN_S - PLACED_WITHIN_S):
                if (await asyncio.wait((first,), timeout=patience_s))[0]:
                    return first.result()
                if worker.node_id not in {node.id for node in await usable_nodes()}:
                    break
        finally:
            # Also when the pool closes while this worker still starts: nobody would look at the death that follows.
            first.cancel()
        raise NothingPlaced(f"no worker process came up on the node {worker.node_id[:8]}: {await describe_nodes()}")

    def _unknown_to(self, worker: PoolWorker) -> Iterable[Session]:
        return [session for session in self._sessions.values() if session.id not in worker.sessions]

    async def _keep_fresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self._refresh()
            except RuntimeError:
                return  # the interpreter is ending: no thread pool takes work any more
            if self._workers and not self._config.max_workers and self._is_overloaded():
                await self._ask_for_cpus(len(self._workers) + 1)

    async def _refresh(self) -> None:
        # An empty answer would leave no place to try: what was there before is the better guess.
        self._nodes = await usable_nodes() or self._nodes

    async def _ask_for_cpus(self, count: int) -> None:
        if count != self._asked_cpus:
            self._asked_cpus = count
            await ask_for_cpus(count)

    def _in_background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _first(items: Any) -> Hello:
    return await (await anext(items))


async def _closed(worker: PoolWorker, session_id: str) -> None:
    try:
        async with asyncio.timeout(_TEARDOWN_S):
            await worker.handle.close_session.options(name=f"close_session:{session_id}").remote(session_id)
    except TimeoutError:
        _log.warning("worker %s did not tear a session down within %g s", worker.label, _TEARDOWN_S)
    except RayError as error:
        if cause := getattr(error, "cause", None):
            raise cause from None
