"""The seam between the engine and where its tasks run; `inline` and `ray` implement it and share one conformance suite.

A task is a stream: batches of the events that it emits, as they happen, then its outcome, then its value. The outcome
is read by the caller; the value is kept as a reference (on Ray an ObjectRef) that can be an input of other tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

Emit = Callable[[Any], None]
"""Hands one event (picklable) to the caller; callable from the task's event loop thread only."""

TaskFunction = Callable[[Any, Any, Sequence[Any], Emit], Awaitable[tuple[Any, Any]]]
"""`async def fn(state, request, inputs, emit) -> (outcome, value)`, importable by name; `state` is what the session's
set-up returned in that process. It raises only for bugs: a failure of its work is part of the outcome."""


class InputLost(Exception):
    """A reference that was passed as an input cannot be resolved any more; pass the value or its handle instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What every worker does once before it runs tasks of this session.

    `setup` is importable by name, is awaited on the worker's loop as `setup(argument)` and returns the state that its
    tasks share; `teardown(state)` is awaited when the session closes. `argument` may hold secrets of type Secret.

    With `ttl_s`, whoever opened the session promises to be heard by `Backend.renew_session` before so many seconds are
    over, and then again. `renew(state, ttl_s)`, importable by name, is called on the worker's loop each time with the
    seconds that are left, the first time after the set-up; what the tasks do about it is theirs. Tasks in a process of
    their own are not told, and so may go on without being heard.
    """

    id: str
    setup: Callable[[Any], Awaitable[Any]]
    argument: Any
    teardown: Callable[[Any], Awaitable[None]]
    renew: Callable[[Any, float], None] | None = None
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call of `fn` in a session; `name` is shown by Ray's dashboard and `ray list tasks`.

    `isolate` asks for a process of its own (see `cluster.isolation`).
    """

    name: str
    session_id: str
    fn: TaskFunction
    request: Any
    isolate: bool = False


class TaskStream(Protocol):
    """One submitted task. Leaving the context before the end cancels it.

    Iterating gives the batches of emitted events (never empty) and ends when the outcome is there. Raises WorkerLost
    when the process dies, InputLost when an input cannot be resolved, and the task's own exception when it raised one.
    """

    @property
    def worker(self) -> str:
        """Where it runs, for people: `pid@node`; empty until known."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...
    def __aiter__(self) -> AsyncIterator[list[Any]]: ...

    @property
    def outcome(self) -> Any:
        """What `fn` returned first; only after the iteration has ended."""
        ...

    @property
    def value(self) -> Any:
        """A reference to what `fn` returned second; only after the iteration has ended."""
        ...


class Backend(Protocol):
    """Where tasks run. All methods are called from one event loop."""

    @property
    def machines(self) -> int:
        """On how many machines tasks may run, once it is open."""
        ...

    @property
    def workers(self) -> int:
        """In how many worker processes tasks may run, as the cluster is now; at least 1."""
        ...

    async def open(self) -> None:
        """Start or join what is needed. Raises NothingPlaced or ConfigError with the cure."""

    async def open_session(self, session: Session) -> None:
        """Make `session` known; each worker sets it up before its first task of it."""

    def submit(self, task: Task, inputs: Sequence[Any]) -> TaskStream:
        """Start `task`; each of `inputs` is a reference from an earlier stream or a plain value."""
        ...

    async def fetch(self, reference: Any) -> Any:
        """The value behind a reference. Raises InputLost when it is gone."""
        ...

    def renew_session(self, session_id: str, ttl_s: float) -> None:
        """Tell every worker that has the session that its owner will be heard again within `ttl_s`; returns at once."""

    async def close_session(self, session_id: str) -> None:
        """Tear the session down in every worker that has it."""

    async def close(self) -> None:
        """Cancel what still runs and give everything back."""
