"""The call gate: every model call passes here, and nowhere else.

    budget → known answer → cache → permit → HTTP, with retries → record

What a call may spend, what is known already and where its record goes stands in the CallScope that is current where the
call is made; without one (a module used on its own) the call is made with retries and nothing is recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy
import orjson
from dspy._vendor.lm15.serde import request_to_dict, response_from_dict, response_to_dict
from dspy.lm15 import Request, Response

from roma_ray import faults
from roma_ray.clock import mono_s
from roma_ray.config import LmConfig, Price
from roma_ray.errors import (
    AuthRefused,
    BillingRefused,
    Cancelled,
    EndpointUnreachable,
    RateLimited,
    RequestRefused,
    RomaError,
    WorldError,
)
from roma_ray.lm.cost import Meter, estimate_tokens, worst_case_usd
from roma_ray.lm.endpoint import Endpoint
from roma_ray.lm.engines import Engine, addressed
from roma_ray.lm.limiter import Limiter
from roma_ray.lm.retry import as_roma_error, is_retryable, may_be_billed, wait_before_retry_s
from roma_ray.lm.scope import CallScope, current
from roma_ray.redact import Redactor
from roma_ray.types import CallRecord, Fault, Json, Usage

_FALLS_BACK = (WorldError, AuthRefused, BillingRefused, RequestRefused)
_RETRIES_IF_NEVER_THERE = 2
_STOPPED = Fault(code=Cancelled.code, message="the call was stopped before its answer came")


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint that a gate may ask, with what it shares with other gates of the process."""

    endpoint: Endpoint
    engine: Engine
    limiter: Limiter
    price: Price | None
    meter: Meter


@dataclass(slots=True, kw_only=True)
class _Call:
    """One request of a step on its way through the gate."""

    request: Request
    plain: Json
    key: str
    size_bytes: int
    ordinal: int
    scope: CallScope
    failed_attempts: int = 0


class Gate:
    """The gate of one role's model. Belongs to one event loop."""

    def __init__(
        self, role: str, config: LmConfig, targets: Sequence[Target], *, default_max_tokens: int, redactor: Redactor
    ) -> None:
        self._role = role
        self._config = config
        self._targets = targets
        self._max_tokens = config.max_tokens or default_max_tokens
        self._redactor = redactor

    async def complete(self, request: Request) -> Response:
        """The answer to `request`: known, cached, or asked for.

        Raises LimitReached and Cancelled by the scope's word; ContextTooLong; and, when no model of the role can be
        had, the first one's error: AuthRefused, BillingRefused, RequestRefused or a WorldError.
        """
        call = self._enter(request)
        if call.scope.cancelled:
            raise Cancelled("the run was cancelled")
        response = self._known_answer(call)
        if response is None and self._config.cache:
            response = await self._cached_answer(call)
        if response is None:
            response = await self._first_answer(call)
        call.scope.last_finish_reason, call.scope.last_text = response.finish_reason, response.text or ""
        return response

    def _enter(self, request: Request) -> _Call:
        if request.config.max_tokens is None:
            request = replace(request, config=replace(request.config, max_tokens=self._max_tokens))
        plain = request_to_dict(request)
        encoded = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
        key = hashlib.sha256(encoded).hexdigest()
        scope = current.get() or CallScope(step="")
        # Counted before anything is awaited: identical requests keep the order in which they were made.
        ordinal = scope.ordinals.get(key, 0)
        scope.ordinals[key] = ordinal + 1
        return _Call(request=request, plain=plain, key=key, size_bytes=len(encoded), ordinal=ordinal, scope=scope)

    def _known_answer(self, call: _Call) -> Response | None:
        known = call.scope.known.get(call.key, ())
        if call.ordinal >= len(known):
            if known:
                # Answers may be missing in the middle, where a call was open at a kill: never reuse a logged number.
                call.ordinal += max(record.ordinal for record in known) + 1 - len(known)
            return None
        record = known[call.ordinal]
        call.ordinal = record.ordinal
        response = response_from_dict(record.response)
        self._emit(call, record.model, Usage(cached_calls=1), finish_reason=response.finish_reason, cached=True)
        return response

    async def _cached_answer(self, call: _Call) -> Response | None:
        stored = await asyncio.to_thread(dspy.cache.get, self._cache_key(call))
        if stored is None:
            return None
        response = response_from_dict(stored)
        # The log keeps the answer too, so that a resume does not depend on the cache.
        self._emit(call, self._config.model, Usage(cached_calls=1), response=response, cached=True)
        return response

    def _cache_key(self, call: _Call) -> dict[str, Json]:
        return {"roma_ray": call.key, "ordinal": call.ordinal, "endpoint": self._targets[0].endpoint.name}

    async def _first_answer(self, call: _Call) -> Response:
        reasons: list[RomaError] = []
        for target in self._targets:
            if reasons:
                call.scope.warnings.append(
                    f"{self._role}: asked the fallback {target.endpoint.model}, because {reasons[-1].message}"
                )
            try:
                response = await self._answer_from(target, call)
            except _FALLS_BACK as error:
                reasons.append(error)
                continue
            if self._config.cache and target is self._targets[0]:
                await asyncio.to_thread(dspy.cache.put, self._cache_key(call), response_to_dict(response))
            return response
        raise reasons[0]

    async def _answer_from(self, target: Target, call: _Call) -> Response:
        call.failed_attempts = 0
        started_s = mono_s()
        try:
            return await self._with_retries(target, call)
        except RomaError as error:
            self._record_failure(target, call, error.fault, started_s)
            raise
        except asyncio.CancelledError:
            self._record_failure(target, call, _STOPPED, started_s)
            raise

    async def _with_retries(self, target: Target, call: _Call) -> Response:
        for retries_done in itertools.count():
            try:
                return await self._attempt(target, call)
            except WorldError as error:
                if retries_done >= self._retries_for(error, target) or not is_retryable(error):
                    raise
                wait_s = wait_before_retry_s(error, retries_done=retries_done)
                if isinstance(error, RateLimited):
                    target.limiter.pause(wait_s)
            await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: the loop has no end of its own")

    def _retries_for(self, error: WorldError, target: Target) -> int:
        """Fewer for an endpoint that never answered and takes no connection: most likely its address is wrong."""
        never_there = isinstance(error, EndpointUnreachable) and not target.limiter.has_answered
        return min(self._config.max_retries, _RETRIES_IF_NEVER_THERE) if never_there else self._config.max_retries

    async def _attempt(self, target: Target, call: _Call) -> Response:
        """One HTTP attempt within the allowance; what it reserved stays taken if it may be billed all the same."""
        prompt_tokens, wanted = estimate_tokens(call.size_bytes), call.request.config.max_tokens or self._max_tokens
        longest = call.scope.allowance.answer_tokens(wanted, prompt_tokens=prompt_tokens, price=target.price)
        tokens = prompt_tokens, longest
        cost = worst_case_usd(target.price, prompt_tokens=tokens[0], completion_tokens=tokens[1])
        call.scope.allowance.reserve(tokens=sum(tokens), cost_usd=cost)
        used: Usage | None = Usage()
        try:
            async with target.limiter.permit(self._config.max_concurrency):
                if call.scope.cancelled:
                    raise Cancelled("the run was cancelled")
                used = None
                response, used = await self._send(target, call, longest)
                return response
        except RomaError as error:
            used = None if may_be_billed(error) else Usage()
            raise
        finally:
            if used is not None:
                call.scope.allowance.settle(used, tokens=sum(tokens), cost_usd=cost)

    async def _send(self, target: Target, call: _Call, max_tokens: int) -> tuple[Response, Usage]:
        # Shortened only on the wire: the request's key stays that of the work, whatever is left in the purse.
        request = addressed(call.request, target.endpoint)
        request = replace(request, config=replace(request.config, max_tokens=max_tokens))
        started_s = mono_s()
        call.failed_attempts += 1  # until it is answered
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = await target.engine.complete(request)
        except Exception as error:
            raise as_roma_error(error, model=target.endpoint.model, timeout_s=self._config.timeout_s) from error
        target.limiter.has_answered = True
        faults.hit("lm.answered")
        call.failed_attempts -= 1
        usage = target.meter.read(request, response, prompt_bytes=call.size_bytes)
        record = replace(usage, failed_calls=call.failed_attempts)
        self._emit(call, target.endpoint.model, record, response=response, latency_s=mono_s() - started_s)
        return response, usage

    def _record_failure(self, target: Target, call: _Call, fault: Fault, started_s: float) -> None:
        if not call.failed_attempts:
            return  # nothing was sent
        usage = Usage(failed_calls=call.failed_attempts)
        self._emit(call, target.endpoint.model, usage, fault=fault, latency_s=mono_s() - started_s)

    def _emit(self, call: _Call, model: str, usage: Usage, *, response: Response | None = None, **rest: Any) -> None:
        if not call.scope.step:
            return
        if response is not None:
            rest |= {"response": response_to_dict(response), "finish_reason": response.finish_reason}
        call.scope.emit(
            CallRecord(
                step=call.scope.step,
                role=self._role,
                model=model,
                request_key=call.key,
                ordinal=call.ordinal,
                usage=usage,
                request=self._redactor.data(call.plain) if call.scope.keep_prompts else None,
                **rest,
            )
        )
