"""What a process does for its tasks: the same for a Ray worker, an isolated process and the process of the caller."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from roma_ray import faults
from roma_ray.clock import mono_s
from roma_ray.cluster.backend import Session, Task

LINGER_S = 0.005
"""How long an event waits for company. One more item of a Ray stream costs about 1 ms of CPU; the last event of a task
is nearly always followed by its outcome within this time and then travels with it."""

_END = object()


INLINE_LETTERS = 16_384
"""Texts up to this length travel in the item of the outcome, which saves an item of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The item of a stream that comes after the batches; a value that is not small is an item of its own after it.

    Where the value is in here, a reference to this item stands for it: as an input, `plain_value` takes it out.
    """

    outcome: Any
    events: list[Any]
    """Those that no batch has carried yet."""
    worker: str
    value: Any = None
    has_value_item: bool = False


def plain_value(item: Any) -> Any:
    """The value behind a resolved reference: `item` itself, or what an outcome's item carries."""
    return item.value if isinstance(item, Ended) else item


def ended(item: Ended | None) -> Ended:
    """`item` once it is there. Raises RuntimeError before: an outcome exists only after the iteration has ended."""
    if item is None:
        raise RuntimeError("the outcome and the value of a task are there only after its stream was read to the end")
    return item


@dataclass(slots=True)
class _Held:
    """One session in this process. `known` is resolved when the session itself comes, which may be after its tasks."""

    known: asyncio.Future[Session]
    heard_until_s: float | None = None
    """On this process's monotonic clock; None where nobody promised to be heard."""
    state: asyncio.Future[Any] | None = None
    tasks: set[asyncio.Future[Any]] = field(default_factory=lambda: set[asyncio.Future[Any]]())


class Host:
    """Sets sessions up once and runs their tasks as streams. All methods belong to one event loop."""

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}
        self.label = f"{os.getpid()}@{socket.gethostname()}"

    def add_session(self, session: Session) -> None:
        """Make `session` known; its tasks, also those that wait here already, may set it up from now on."""
        known = self._of(session.id).known
        if not known.done():
            known.set_result(session)
            if session.ttl_s is not None:
                self.renew_session(session.id, session.ttl_s)

    def renew_session(self, session_id: str, ttl_s: float) -> None:
        """The owner of the session was heard, and will be again within `ttl_s`. Unknown ids are ignored."""
        held = self._held.get(session_id)
        if held is None or not held.known.done() or held.known.cancelled():
            return
        held.heard_until_s = mono_s() + ttl_s
        _renew(held)

    async def prepare(self, session_id: str) -> Any:
        """The state of the session, set up now if it is not yet; concurrent callers share one set-up and its error."""
        held = self._of(session_id)
        session = await asyncio.shield(held.known)
        if held.state is None:
            held.state = asyncio.ensure_future(session.setup(session.argument))
            # It may have taken a while: what is left of the promise counts.
            held.state.add_done_callback(lambda _: _renew(held))
        # Shielded: a task that is cancelled while it waits must not take the set-up from the others.
        return await asyncio.shield(held.state)

    async def stream(self, task: Task, inputs: Sequence[Any]) -> AsyncGenerator[Any]:
        """Run `task`; yields batches of its events (lists, never empty), then Ended, then the value if it is not small.

        Closing or cancelling the generator cancels the task and waits for its clean-up. Raises what its `fn` or the
        set-up of its session raises.
        """
        faults.hit("cluster.task_received")
        state = await self.prepare(task.session_id)
        faults.hit("cluster.session_opened")
        events: asyncio.Queue[Any] = asyncio.Queue()
        values = [plain_value(item) for item in inputs]
        work = asyncio.ensure_future(task.fn(state, task.request, values, events.put_nowait))
        work.add_done_callback(lambda _: events.put_nowait(_END))
        running = self._of(task.session_id).tasks
        running.add(work)
        try:
            while True:
                batch = await _next_batch(events, work)
                if work.done():
                    break
                yield batch
                faults.hit("cluster.batch_yielded")
            if batch and (work.cancelled() or work.exception() is not None):
                yield batch
            outcome, value = work.result()
            small = _is_small(value)
            inside = value if small else None
            yield Ended(outcome=outcome, events=batch, worker=self.label, value=inside, has_value_item=not small)
            faults.hit("cluster.outcome_yielded")
            if not small:
                yield value
        finally:
            running.discard(work)
            await _cancelled({work})

    async def close_session(self, session_id: str) -> None:
        """Cancel what still runs of the session, wait for it, tear the session down. Unknown ids are ignored."""
        held = self._held.pop(session_id, None)
        if held is None:
            return
        held.known.cancel()
        await _cancelled(held.tasks)
        if held.state is None:
            return
        if not held.state.done():
            await _cancelled({held.state})
        if held.state.cancelled() or held.state.exception() is not None:
            return
        await held.known.result().teardown(held.state.result())

    def _of(self, session_id: str) -> _Held:
        if session_id not in self._held:
            self._held[session_id] = _Held(asyncio.get_running_loop().create_future())
        return self._held[session_id]


def _renew(held: _Held) -> None:
    """Tell the state how long its owner is still believed to live, once there is a state."""
    session, state = held.known.result(), held.state
    if session.renew is None or held.heard_until_s is None or state is None or not state.done():
        return
    if not state.cancelled() and state.exception() is None:
        session.renew(state.result(), held.heard_until_s - mono_s())


def _is_small(value: Any) -> bool:
    # Only what can be told without writing it out: anything else may be large inside.
    return (
        value is None
        or isinstance(value, bool | int | float)
        or (isinstance(value, str) and len(value) <= INLINE_LETTERS)
    )


async def _next_batch(events: asyncio.Queue[Any], task: asyncio.Future[Any]) -> list[Any]:
    """Wait for an event, then a moment for more of them or for the end of `task`; empty only when it has ended."""
    batch = [await events.get()]
    if not task.done():
        await asyncio.wait((task,), timeout=LINGER_S)
    while not events.empty():
        batch.append(events.get_nowait())
    return [event for event in batch if event is not _END]


async def _cancelled(tasks: set[asyncio.Future[Any]]) -> None:
    """Cancel those of `tasks` that still run and wait until their clean-up is done; how they end is not told."""
    open_tasks = {task for task in tasks if not task.done()}
    for task in open_tasks:
        task.cancel()
    if open_tasks:
        await asyncio.wait(open_tasks)
