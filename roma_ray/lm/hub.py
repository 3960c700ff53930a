"""All models of one session in one process, as DSPy LMs behind the call gate."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar

import dspy
from dspy._vendor.lm15 import response_to_events
from dspy._vendor.lm15.types import StreamEvent
from dspy.lm15 import Request, Response

from roma_ray.config import LmConfig, Role
from roma_ray.errors import ContextTooLong
from roma_ray.lm.call import Target
from roma_ray.lm.cost import Meter, metadata, price_at
from roma_ray.lm.endpoint import Endpoint, endpoints_of
from roma_ray.lm.engines import Engine, open_engine
from roma_ray.lm.gate import Gate
from roma_ray.lm.hedge import Latencies
from roma_ray.lm.library import prepare
from roma_ray.lm.limiters import IN_PROCESS, Limiters
from roma_ray.lm.rules import Limits
from roma_ray.redact import Redactor, Secret

_PARAMS = frozenset({"temperature", "max_tokens", "top_p", "stop"})
_TOOL_PARAMS = frozenset({"tools", "tool_choice"})
_REASONING_TOKENS = 16_000
"""Default bound for a reasoning model, whose hidden reasoning counts."""

T = TypeVar("T")


class LmHub:
    """Builds and keeps the LMs of one session; built on the event loop that its calls will run on.

    Built where no loop runs (a module used in a script), it runs one of its own in a thread. Calls from other loops
    and from threads are handed over, so that sync strategies pass the same gate.
    """

    def __init__(self, keys: Mapping[str, Secret], *, limiters: Limiters = IN_PROCESS) -> None:
        """`keys` as in ResolvedModels: by `role:endpoint name` or endpoint name. `limiters` give out permits."""
        prepare()
        self._keys = dict(keys)
        self._redactor = Redactor(self._keys.values())
        self._lms: dict[tuple[Role, LmConfig, int], dspy.LM] = {}
        self._engines: dict[tuple[str, Secret | None], Engine] = {}
        self._limiters = limiters
        self._latencies: defaultdict[tuple[str, str], Latencies] = defaultdict(Latencies)
        try:
            self._loop, self._owns_loop = asyncio.get_running_loop(), False
        except RuntimeError:
            self._loop, self._owns_loop = asyncio.new_event_loop(), True
            threading.Thread(target=_run, args=(self._loop,), name="roma-ray-lm", daemon=True).start()

    def lm(self, role: Role, config: LmConfig, *, default_max_tokens: int) -> dspy.LM:
        """The LM of `role` by a resolved config; the same one for the same arguments.

        `default_max_tokens` is the longest answer in tokens where `lm.max_tokens` is not set. The LM neither retries
        nor caches by itself. It raises our errors wrapped by DSPy: see `retry.unwrap`.
        """
        wanted = (role, config, default_max_tokens)
        if wanted not in self._lms:
            self._lms[wanted] = self._build(*wanted)
        return self._lms[wanted]

    async def aclose(self) -> None:
        """Close all connections; no call may be open."""
        self._lms.clear()
        engines, self._engines = list(self._engines.values()), {}
        for engine in engines:
            await self.hand_over(engine.aclose())
        await self.hand_over(self._limiters.leave(self))
        if self._owns_loop:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _build(self, role: Role, config: LmConfig, default_max_tokens: int) -> dspy.LM:
        targets = [self._target(role, place, config) for place in endpoints_of(config)]

        def behind_gate(longest: int, **settings: Any) -> dspy.LM:
            gate = Gate(role, config, targets, default_max_tokens=longest, redactor=self._redactor)
            doors = {"engine": SyncDoor(self, gate, targets[0].endpoint, config), "async_engine": AsyncDoor(self, gate)}
            return dspy.LM(config.model, cache=False, num_retries=0, **doors, **settings)

        try:
            bounds = {"temperature": config.temperature, "max_tokens": config.max_tokens or default_max_tokens}
            return behind_gate(default_max_tokens, **bounds)
        except dspy.LMConfigurationError:
            # OpenAI's reasoning models take no temperature, and DSPy no small bound for them: the gate fills it in.
            return behind_gate(max(default_max_tokens, _REASONING_TOKENS))

    def _target(self, role: Role, place: Endpoint, config: LmConfig) -> Target:
        key = self._keys.get(f"{role}:{place.name}") or self._keys.get(place.name)
        if (place.name, key) not in self._engines:
            self._engines[place.name, key] = open_engine(place, key)
        limits = Limits(
            max_concurrency=config.max_concurrency,
            requests_per_minute=config.requests_per_minute,
            tokens_per_minute=config.tokens_per_minute,
        )
        stated = config.price if place.model == config.model else None
        return Target(
            endpoint=place,
            engine=self._engines[place.name, key],
            limiter=self._limiters.join(self, place, key, limits, loop=self._loop),
            latencies=self._latencies[place.name, place.model],
            price=price_at(place, config),
            meter=Meter(place, stated),
        )

    async def hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` on the hub's loop, in the caller's context."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Block this thread until `work` is done on the hub's loop, in the caller's context."""
        if asyncio._get_running_loop() is self._loop:
            work.close()
            raise RuntimeError("a blocking model call on the event loop would wait for itself: await it instead")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class SyncDoor:
    """The gate as DSPy's sync engine, with the capabilities that DSPy's adapters ask for."""

    def __init__(self, hub: LmHub, gate: Gate, place: Endpoint, config: LmConfig) -> None:
        listed = metadata(place)
        self._hub, self._gate = hub, gate
        self.supports_function_calling = bool(listed.get("supports_function_calling"))
        self.supports_reasoning = bool(listed.get("supports_reasoning"))
        self.supports_response_schema = (
            place.is_local or config.adapter == "json" or bool(listed.get("supports_response_schema"))
        )
        self.supported_params = (
            _PARAMS
            | (_TOOL_PARAMS if self.supports_function_calling else frozenset())
            | (frozenset({"response_format"}) if self.supports_response_schema else frozenset())
        )

    def complete(self, request: Request) -> Response:
        return self._hub.wait_for(_ask(self._gate, request))

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """The whole answer as events, once it is there: an answer is recorded before anybody sees a part of it."""
        yield from response_to_events(self.complete(request))

    def close(self) -> None:
        """Nothing: the hub owns the connections."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


class AsyncDoor:
    """The gate as DSPy's async engine."""

    def __init__(self, hub: LmHub, gate: Gate) -> None:
        self._hub, self._gate = hub, gate

    async def complete(self, request: Request) -> Response:
        return await self._hub.hand_over(_ask(self._gate, request))

    async def stream(self, request: Request) -> AsyncIterator[StreamEvent]:
        """As SyncDoor.stream."""
        for event in response_to_events(await self.complete(request)):
            yield event

    async def aclose(self) -> None:
        """Nothing: the hub owns the connections."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


async def _ask(gate: Gate, request: Request) -> Response:
    try:
        return await gate.complete(request)
    except ContextTooLong as error:
        # DSPy's agents shorten their history on this one error, which its boundary lets through as it is.
        raise dspy.ContextWindowExceededError(message=error.message, model=request.model) from error
