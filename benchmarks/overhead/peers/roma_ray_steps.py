"""roma_ray: `roma_ray_steps.py FOLDER`; tasks of the inline backend, each with its two events in the run log.

A task's start is written without waiting for it, its outcome is waited for, as the engine does it; what the engine
decides around them (budgets, approvals, the fold) is left out. PART=log leaves the tasks out too: outcomes alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.overhead.peers.work import measure, produce
from roma_ray.cluster.backend import Session, Task
from roma_ray.cluster.inline import InlineBackend
from roma_ray.config.schema import ClusterConfig, RunlogConfig
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import NodeStatus, Outcome, RunStatus

_SESSION = "steps"

Step = Callable[[Lease, int], Awaitable[None]]


class RomaRay:
    def __init__(self, runner: asyncio.Runner, log: RunLog, backend: InlineBackend) -> None:
        self._runner, self._log, self._backend = runner, log, backend
        self._step: Step = self._logged if os.environ.get("PART") == "log" else self._done

    def chain(self, steps: int) -> None:
        self._runner.run(self._run(steps, self._one_after_another))

    def fan_out(self, steps: int) -> None:
        self._runner.run(self._run(steps, self._at_once))

    async def _run(self, steps: int, way: Callable[[Lease, int], Awaitable[None]]) -> None:
        lease = await self._log.create(uuid4().hex, goal="steps", started={})
        await way(lease, steps)
        await self._log.release(lease, RunStatus.COMPLETED)

    async def _one_after_another(self, lease: Lease, steps: int) -> None:
        for number in range(steps):
            await self._step(lease, number)

    async def _at_once(self, lease: Lease, steps: int) -> None:
        await asyncio.gather(*[self._step(lease, number) for number in range(steps)])

    async def _done(self, lease: Lease, number: int) -> None:
        node_id = f"root.{number}"
        task = Task(name=f"descend:{node_id}", session_id=_SESSION, fn=_task, request=None)
        async with self._backend.submit(task, []) as stream:
            started = {"step": f"{node_id}/descend~0", "worker": stream.worker, "ran_s": 1.0}
            self._log.append(lease, NewEvent(type=EventType.STEP_STARTED, node_id=node_id, payload=started))
            async for _ in stream:
                pass
            await self._log.append(lease, _step_done(node_id, stream.outcome))

    async def _logged(self, lease: Lease, number: int) -> None:
        await self._log.append(lease, _step_done(f"root.{number}", _outcome()))


async def _task(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Outcome, Any]:
    outcome = _outcome()
    return outcome, outcome.value


def _outcome() -> Outcome:
    return Outcome(status=NodeStatus.COMPLETED, value=produce())


def _step_done(node_id: str, outcome: Outcome) -> NewEvent:
    payload = {"step": f"{node_id}/descend~0", "outcome": outcome.to_plain(), "ran_s": 1.0}
    return NewEvent(type=EventType.STEP_DONE, node_id=node_id, payload=payload)


async def _nothing(_: Any) -> None:
    """What the session of these tasks sets up and tears down."""


async def _open(url: str) -> tuple[RunLog, InlineBackend]:
    log = await RunLog.open(RunlogConfig(url=url, durability="power"))
    backend = InlineBackend(ClusterConfig())
    await backend.open()
    await backend.open_session(Session(id=_SESSION, setup=_nothing, argument=None, teardown=_nothing))
    return log, backend


@contextmanager
def opened(postgres: str, folder: Path) -> Generator[RomaRay]:
    with asyncio.Runner() as runner:
        log, backend = runner.run(_open(postgres or f"sqlite:///{folder}/runs.db"))
        yield RomaRay(runner, log, backend)
        runner.run(backend.close())
        runner.run(log.close())


if __name__ == "__main__":
    measure(opened)
