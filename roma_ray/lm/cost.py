"""What a model call costs: prices from DSPy's bundled list, from the config, or what the provider itself reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roma_ray.config import LmConfig, Price
from roma_ray.lm.endpoint import Endpoint, endpoints_of
from roma_ray.lm.library import prepare
from roma_ray.types import Usage

_BYTES_PER_TOKEN = 3
"""Fewer than any tokenizer needs on average for prose, so that an estimate is rather too high."""


def price_of(config: LmConfig) -> Price | None:
    """The price of the model of a resolved config: what `lm.price` says, else the bundled list; None when unknown.

    A model served at an `api_base` of one's own has no known price unless the config states it.
    """
    return price_at(endpoints_of(config)[0], config)


def price_at(endpoint: Endpoint, config: LmConfig) -> Price | None:
    """The price of one endpoint of `config`, which may be a fallback; `lm.price` is about the first one only."""
    if config.price is not None and endpoint.model == config.model:
        return config.price
    if endpoint.is_free:
        return Price(prompt=0, completion=0)
    info = metadata(endpoint)
    prompt, completion = info.get("input_cost_per_token"), info.get("output_cost_per_token")
    if prompt is None or completion is None:
        return None
    return Price(prompt=prompt * 1e6, completion=completion * 1e6)


def metadata(endpoint: Endpoint) -> dict[str, Any]:
    """What the bundled list says of the model at its own provider; empty for an endpoint of the user's own."""
    if endpoint.base_url is not None:
        return {}
    prepare()
    from dspy.clients.model_metadata import model_info  # heavy: only where a listed model is in use

    return model_info(endpoint.lm15_provider or endpoint.provider, endpoint.wire_model)


def estimate_tokens(size_bytes: int) -> int:
    """Tokens that a text of `size_bytes` has at most, about."""
    return -(-size_bytes // _BYTES_PER_TOKEN)


def worst_case_usd(price: Price | None, *, prompt_tokens: int, completion_tokens: int) -> float | None:
    """What a call with so many tokens costs, None when the price is unknown."""
    if price is None:
        return None
    return (price.prompt * prompt_tokens + price.completion * completion_tokens) / 1e6


@dataclass(frozen=True, slots=True)
class Meter:
    """Turns the answers of one endpoint into Usage. `stated` is the config's own price, which beats the list."""

    endpoint: Endpoint
    stated: Price | None

    def read(self, request: Any, response: Any, *, prompt_bytes: int) -> Usage:
        """The usage of one answered call, as the endpoint reports it; what it does not report is estimated."""
        prompt, completion = self._tokens(response, prompt_bytes)
        return Usage(
            lm_calls=1,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cost_usd=self._cost(request, response, prompt, completion),
        )

    def _tokens(self, response: Any, prompt_bytes: int) -> tuple[int, int]:
        used = response.usage
        if used.input_tokens is None or used.output_tokens is None:
            return estimate_tokens(prompt_bytes), estimate_tokens(len((response.text or "").encode()))
        prompt, completion = used.input_tokens, used.output_tokens
        # The counters are the provider's own: these leave out what the others include.
        if self.endpoint.lm15_provider == "anthropic":
            prompt += (used.cache_read_tokens or 0) + (used.cache_write_tokens or 0)
        elif self.endpoint.lm15_provider in ("gemini", "xai"):
            completion += used.reasoning_tokens or 0
        return prompt, completion

    def _cost(self, request: Any, response: Any, prompt: int, completion: int) -> float | None:
        reported = ((response.provider_data or {}).get("usage") or {}).get("cost")
        if isinstance(reported, int | float) and not isinstance(reported, bool):
            return float(reported)
        if self.stated is not None:
            return worst_case_usd(self.stated, prompt_tokens=prompt, completion_tokens=completion)
        if self.endpoint.is_free:
            return 0.0
        if self.endpoint.base_url is not None:
            return None
        from dspy.clients.costs import estimate_cost

        provider = self.endpoint.lm15_provider or self.endpoint.provider
        cost, _ = estimate_cost(response, provider=provider, requested_model=self.endpoint.wire_model, request=request)
        return cost
