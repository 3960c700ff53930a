"""The values of a run: references to what workers hold, handles to what is stored, and making anew what was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from roma_ray.cluster.backend import Backend, InputLost
from roma_ray.config import StorageConfig
from roma_ray.engine.state import RunState, Solved
from roma_ray.engine.stored import value_store
from roma_ray.errors import ValueLost
from roma_ray.runlog.events import EventType
from roma_ray.runlog.log import RunLog
from roma_ray.types import CallRecord, Json, StepKey

MakeAnew = Callable[[StepKey, Sequence[Solved]], Awaitable[bool]]


class Values:
    """What the steps of one run brought.

    A reference is a cache in front of a handle. `make_anew` does a step again from the answers that `state` then holds
    for it, keeps the reference, and says whether there is a value again.
    """

    def __init__(
        self, *, state: RunState, storage: StorageConfig, log: RunLog, backend: Backend, make_anew: MakeAnew
    ) -> None:
        self._state = state
        self._storage = storage
        self._log = log
        self._backend = backend
        self._make_anew = make_anew
        self._references: dict[StepKey, Any] = {}
        self._inputs: dict[StepKey, Sequence[Solved]] = {}

    def made_from(self, key: StepKey, inputs: Sequence[Solved]) -> None:
        """Remember what a step was given: it is needed to do it again."""
        self._inputs[key] = inputs

    def keep(self, key: StepKey, reference: Any) -> None:
        """Hold on to a reference that the backend gave for the value of a step."""
        self._references[key] = reference

    def share(self, key: StepKey, first: StepKey) -> None:
        """Let a step have the value of an earlier, identical one."""
        if first in self._references:
            self._references[key] = self._references[first]

    def let_go(self, *keys: StepKey) -> None:
        """Give references back; what is stored stays."""
        for key in keys:
            self._references.pop(key, None)

    def passed(self, solved: Solved) -> Any:
        """The positional input of a task: a reference where there is one, else the value itself or its handle."""
        if not solved.outcome.has_value:
            return None
        reference = self._references.get(solved.key)
        return reference if reference is not None else solved.outcome.handle or solved.outcome.value

    async def get(self, solved: Solved) -> Json:
        """The value itself. Raises ValueLost when it is neither in the log, nor stored, nor in memory."""
        outcome = solved.outcome
        if outcome.handle is None:
            return outcome.value
        if solved.key in self._references:
            try:
                return await self._backend.fetch(self._references[solved.key])
            except InputLost:
                del self._references[solved.key]
        store = value_store(self._storage, self._state.run_id)
        try:
            return await asyncio.to_thread(store.get, outcome.handle)
        except ValueLost:
            if not await self.rebuild([solved]):
                raise
        return await self.get(solved)

    async def rebuild(self, inputs: Sequence[Solved]) -> bool:
        """Make lost values anew from the answers in the log, without a single call; whether all are there again."""
        for solved in inputs:
            if solved.outcome.handle is None or solved.key in self._references:
                continue
            store = value_store(self._storage, self._state.run_id)
            try:
                await asyncio.to_thread(store.get, solved.outcome.handle)
            except ValueLost:
                # Identical work was done once: the answers are those of the node that did it.
                same_as = solved.outcome.same_as
                key = StepKey(same_as, "descend") if same_as else solved.key
                if not await self._rebuild_one(key):
                    return False
                self.share(solved.key, key)
        return True

    async def _rebuild_one(self, key: StepKey) -> bool:
        inputs = self._inputs.get(key)
        # A file that the user gave has no step; and what a value was made from may be lost as well.
        if inputs is None or not await self.rebuild(inputs):
            return False
        answers = self._state.answers.setdefault(str(key), {})
        for event in await self._log.read(self._state.run_id):
            if event.type in (EventType.CALL_ANSWERED, EventType.CALL_CACHED):
                record = CallRecord.from_plain(event.payload)
                if record.step == str(key) and record.response is not None:
                    answers.setdefault(record.request_key, []).append(record)
        try:
            return await self._make_anew(key, inputs)
        finally:
            self._state.answers.pop(str(key), None)
