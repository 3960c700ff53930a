"""One model call on its way through the gate, and the endpoint that it may be sent to."""

from __future__ import annotations

from dataclasses import dataclass

from dspy._vendor.lm15.serde import response_to_dict
from dspy.lm15 import Request, Response

from roma_ray.config import Price
from roma_ray.lm.cost import Meter, estimate_tokens, worst_case_usd
from roma_ray.lm.endpoint import Endpoint
from roma_ray.lm.engines import Engine
from roma_ray.lm.hedge import Latencies
from roma_ray.lm.limiter import Limiter
from roma_ray.lm.scope import CallScope
from roma_ray.redact import Redactor
from roma_ray.types import CallRecord, CallWaiting, Fault, Json, Usage


@dataclass(frozen=True, slots=True)
class Target:
    """One endpoint that a gate may ask, with what it shares with other gates of the process."""

    endpoint: Endpoint
    engine: Engine
    limiter: Limiter
    latencies: Latencies
    price: Price | None
    meter: Meter


@dataclass(frozen=True, slots=True)
class WorstCase:
    """What a request may cost: its prompt as estimated, and the longest answer."""

    longest: int
    tokens: int
    cost_usd: float | None


@dataclass(slots=True, kw_only=True)
class Call:
    """One request of a step. `turn` says when it came; `failed_attempts` went out and brought no answer yet."""

    role: str
    request: Request
    plain: Json
    key: str
    size_bytes: int
    ordinal: int
    turn: int
    scope: CallScope
    redactor: Redactor
    failed_attempts: int = 0
    sent_s: float | None = None
    is_answered: bool = False

    def worst_case(self, target: Target, wanted: int) -> WorstCase:
        """At most `wanted` tokens of answer, fewer where the allowance has less left."""
        prompt = estimate_tokens(self.size_bytes)
        longest = self.scope.allowance.answer_tokens(wanted, prompt_tokens=prompt, price=target.price)
        cost_usd = worst_case_usd(target.price, prompt_tokens=prompt, completion_tokens=longest)
        return WorstCase(longest, prompt + longest, cost_usd)

    def emit(
        self,
        model: str,
        usage: Usage,
        *,
        response: Response | None = None,
        latency_s: float = 0.0,
        finish_reason: str = "",
        cached: bool = False,
        fault: Fault | None = None,
    ) -> None:
        """Record what became of it, where it belongs to a step."""
        if not self.scope.step:
            return
        self.scope.emit(
            CallRecord(
                step=self.scope.step,
                role=self.role,
                model=model,
                request_key=self.key,
                ordinal=self.ordinal,
                usage=usage,
                request=self.redactor.data(self.plain) if self.scope.keep_prompts else None,
                response=response_to_dict(response) if response is not None else None,
                latency_s=latency_s,
                finish_reason=response.finish_reason if response is not None else finish_reason,
                cached=cached,
                fault=fault,
            )
        )

    def tell(self, reason: str, wait_s: float) -> None:
        """Say that it waits, and for what."""
        if self.scope.step:
            self.scope.emit(CallWaiting(step=self.scope.step, role=self.role, reason=reason, wait_s=wait_s))
