"""The call gate: every model call passes here, and nowhere else.

    budget → known answer → cache → permit → HTTP, with retries → record

What a call may spend, what is known already and where its record goes stands in the CallScope that is current where the
call is made; without one (a module used on its own) the call is made with retries and nothing is recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import dspy
import orjson
from dspy._vendor.lm15.serde import request_to_dict, response_from_dict, response_to_dict
from dspy.lm15 import Request, Response

from roma_ray import faults
from roma_ray.clock import mono_s
from roma_ray.config import LmConfig
from roma_ray.errors import (
    AuthRefused,
    BillingRefused,
    Cancelled,
    EndpointUnreachable,
    RateLimited,
    RequestRefused,
    RomaError,
    WorldError,
    from_fault,
)
from roma_ray.lm.call import Call, Target
from roma_ray.lm.engines import addressed
from roma_ray.lm.hedge import first_answer
from roma_ray.lm.limiter import Permit
from roma_ray.lm.retry import as_roma_error, is_retryable, may_be_billed, wait_before_retry_s
from roma_ray.lm.scope import CallScope, current
from roma_ray.lm.sealed import differs
from roma_ray.lm.waiting import until_done
from roma_ray.redact import Redactor
from roma_ray.texts import whole
from roma_ray.types import Fault, Json, Usage

_FALLS_BACK = (WorldError, AuthRefused, BillingRefused, RequestRefused)
_RETRIES_IF_NEVER_THERE = 2
_turns = itertools.count()
_STOPPED = Fault(code=Cancelled.code, message="the call was stopped before its answer came")


class _TooLate(Exception):
    """The other of two requests was answered first."""


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

        Raises LimitReached and Cancelled by the scope's word, ReplayDiffers in a sealed one; ContextTooLong; and, when
        no model of the role can be had, the first one's error: AuthRefused, BillingRefused, RequestRefused or a
        WorldError.
        """
        call = self._enter(request)
        if call.scope.cancelled:
            raise Cancelled("the run was cancelled")
        response = self._recorded_answer(call) if call.scope.sealed else self._known_answer(call)
        if response is None and self._config.cache:
            response = await self._cached_answer(call)
        if response is None:
            response = await self._first_answer(call)
        call.scope.last_finish_reason, call.scope.last_text = response.finish_reason, response.text or ""
        return response

    def _enter(self, request: Request) -> Call:
        if request.config.max_tokens is None:
            request = replace(request, config=replace(request.config, max_tokens=self._max_tokens))
        plain = request_to_dict(request)
        encoded = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
        key = hashlib.sha256(encoded).hexdigest()
        scope = current.get() or CallScope(step="")
        # Counted before anything is awaited: identical requests keep the order in which they were made.
        ordinal = scope.ordinals.get(key, 0)
        scope.ordinals[key] = ordinal + 1
        return Call(
            role=self._role,
            request=request,
            plain=plain,
            key=key,
            size_bytes=len(encoded),
            ordinal=ordinal,
            turn=next(_turns),
            scope=scope,
            redactor=self._redactor,
        )

    def _known_answer(self, call: Call) -> Response | None:
        known = call.scope.known.get(call.key, ())
        if call.ordinal >= len(known):
            if known:
                # Answers may be missing in the middle, where a call was open at a kill: never reuse a logged number.
                call.ordinal += max(record.ordinal for record in known) + 1 - len(known)
            return None
        record = known[call.ordinal]
        call.ordinal = record.ordinal
        response = _read(record.response)
        call.emit(record.model, Usage(cached_calls=1), finish_reason=response.finish_reason, cached=True)
        return response

    def _recorded_answer(self, call: Call) -> Response:
        """What a replay answers: nothing leaves the process, and what had failed fails again."""
        scope, recorded = call.scope, call.scope.known.get(call.key, ())
        if call.ordinal >= len(recorded):
            request = self._redactor.data(call.plain)
            raise differs(step=scope.step, role=self._role, key=call.key, request=request, known=scope.known)
        record = recorded[call.ordinal]
        call.ordinal = record.ordinal
        if record.fault is not None:
            call.emit(record.model, Usage(), fault=record.fault)
            raise from_fault(record.fault)
        response = _read(record.response)
        # The log of the replay has the answers too, so that it stands on its own.
        call.emit(record.model, Usage(cached_calls=1), response=response, cached=True)
        return response

    async def _cached_answer(self, call: Call) -> Response | None:
        stored = await asyncio.to_thread(dspy.cache.get, self._cache_key(call))
        if stored is None:
            return None
        response = _read(stored)
        # The log keeps the answer too, so that a resume does not depend on the cache.
        call.emit(self._config.model, Usage(cached_calls=1), response=response, cached=True)
        return response

    def _cache_key(self, call: Call) -> dict[str, Json]:
        return {"roma_ray": call.key, "ordinal": call.ordinal, "endpoint": self._targets[0].endpoint.name}

    async def _first_answer(self, call: Call) -> Response:
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

    async def _answer_from(self, target: Target, call: Call) -> Response:
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

    async def _with_retries(self, target: Target, call: Call) -> Response:
        for retries_done in itertools.count():
            try:
                return await self._hedged(target, call)
            except WorldError as error:
                if retries_done >= self._retries_for(error, target) or not is_retryable(error):
                    raise
                wait_s = wait_before_retry_s(error, retries_done=retries_done)
                is_refused = isinstance(error, RateLimited)
            if not is_refused:  # What was refused waits in the pause that all keep.
                await asyncio.sleep(wait_s)
        raise AssertionError("unreachable: the loop has no end of its own")

    def _retries_for(self, error: WorldError, target: Target) -> int:
        """Fewer for an endpoint that never answered and takes no connection: most likely its address is wrong."""
        never_there = isinstance(error, EndpointUnreachable) and not target.limiter.has_answered
        return min(self._config.max_retries, _RETRIES_IF_NEVER_THERE) if never_there else self._config.max_retries

    async def _hedged(self, target: Target, call: Call) -> Response:
        """Ask, and once more when that is slow; the loser counts as a failed attempt that may be billed."""
        slow_s = target.latencies.slow_s if self._config.hedge else None
        if slow_s is None:
            return await self._attempt(target, call)
        call.sent_s = None

        def may_double() -> bool:
            worst, scope = call.worst_case(target, self._longest(call)), call.scope
            affordable = scope.allowance.has(tokens=worst.tokens, cost_usd=worst.cost_usd)
            return affordable and scope.hearing.is_heard and target.limiter.has_room(worst.tokens)

        return await first_answer(
            lambda: self._attempt(target, call),
            patience_s=lambda: slow_s if call.sent_s is None else call.sent_s + slow_s - mono_s(),
            may_double=may_double,
        )

    def _longest(self, call: Call) -> int:
        return call.request.config.max_tokens or self._max_tokens

    async def _attempt(self, target: Target, call: Call) -> Response:
        """One HTTP attempt within the allowance; what it reserved stays taken if it may be billed all the same."""
        worst = call.worst_case(target, self._longest(call))
        call.scope.allowance.reserve(tokens=worst.tokens, cost_usd=worst.cost_usd)
        used: Usage | None = Usage()
        try:
            async with self._turn(target, call, worst.tokens) as permit:
                used = None
                response, used = await self._send(target, call, permit, worst.longest)
                return response
        except RomaError as error:
            used = None if may_be_billed(error) else Usage()
            raise
        finally:
            if used is not None:
                call.scope.allowance.settle(used, tokens=worst.tokens, cost_usd=worst.cost_usd)

    @asynccontextmanager
    async def _turn(self, target: Target, call: Call, tokens: int) -> AsyncGenerator[Permit]:
        """Hold a permit inside, with the coordinator heard; nobody waits for it while holding one."""
        while True:
            await _until_heard(call)
            async with target.limiter.permit(tokens, turn=call.turn, tell=call.tell) as permit:
                if call.scope.cancelled:
                    raise Cancelled("the run was cancelled")
                if target.limiter.warning:
                    call.scope.warnings.append(target.limiter.warning)
                if call.scope.hearing.is_heard:
                    yield permit
                    return

    async def _send(self, target: Target, call: Call, permit: Permit, max_tokens: int) -> tuple[Response, Usage]:
        # Shortened only on the wire: the request's key stays that of the work, whatever is left in the purse.
        request = addressed(call.request, target.endpoint)
        request = replace(request, config=replace(request.config, max_tokens=max_tokens))
        permit.sent_s = call.sent_s = started_s = mono_s()
        call.failed_attempts += 1  # until it is answered
        faults.hit("lm.before_send")
        try:
            async with asyncio.timeout(self._config.timeout_s):
                response = _whole(await target.engine.complete(request))
        except Exception as error:
            raise self._unanswered(error, target, permit) from error
        faults.hit("lm.answered")
        if call.is_answered:
            raise _TooLate
        call.is_answered = True
        call.failed_attempts -= 1
        latency_s = mono_s() - started_s
        target.limiter.answered()
        target.latencies.add(latency_s)
        usage = target.meter.read(request, response, prompt_bytes=call.size_bytes)
        permit.used_tokens = usage.tokens
        record = replace(usage, failed_calls=call.failed_attempts)
        faults.hit("lm.before_record")
        call.emit(target.endpoint.model, record, response=response, latency_s=latency_s)
        return response, usage

    def _unanswered(self, error: Exception, target: Target, permit: Permit) -> RomaError:
        """What `error` means; the permit learns of it too."""
        told = as_roma_error(error, model=target.endpoint.model, timeout_s=self._config.timeout_s)
        told.__cause__ = error
        if not may_be_billed(told):
            permit.used_tokens = 0
        if isinstance(told, RateLimited) and is_retryable(told):
            target.limiter.refused(permit, wait_before_retry_s(told, retries_done=target.limiter.refusals_in_row))
        return told

    def _record_failure(self, target: Target, call: Call, fault: Fault, started_s: float) -> None:
        if not call.failed_attempts:
            return  # nothing was sent
        usage = Usage(failed_calls=call.failed_attempts)
        call.emit(target.endpoint.model, usage, fault=fault, latency_s=mono_s() - started_s)


def _whole(response: Response) -> Response:
    """An answer as it can be written down, sent on and shown."""
    plain = response_to_dict(response)
    return response if whole(plain) == plain else replace(_read(plain), provider_data=response.provider_data)


def _read(plain: Json) -> Response:
    return response_from_dict(whole(plain))


async def _until_heard(call: Call) -> None:
    if call.scope.hearing.is_heard:
        return
    heard = asyncio.ensure_future(call.scope.hearing.until_heard())
    try:
        await until_done(heard, lambda: ("the coordinator", 0.0), call.tell)
    finally:
        heard.cancel()
