"""Prices and usage, true to what the provider reports."""

from __future__ import annotations

import pytest
from dspy._vendor.lm15.serde import response_from_dict

from roma_ray.config import LmConfig, Price
from roma_ray.lm.cost import Meter, price_of
from roma_ray.lm.endpoint import endpoint


def answer(usage: dict[str, int], *, reported: dict[str, object] | None = None, text: str = "yes", model: str = "m"):
    return response_from_dict(
        {
            "model": model,
            "message": {"role": "assistant", "parts": [{"type": "text", "text": text}]},
            "finish_reason": "stop",
            "usage": usage,
            "provider_data": {"usage": reported or {}},
        }
    )


def test_prices_come_from_the_list_the_config_or_not_at_all():
    assert price_of(LmConfig(model="openrouter/google/gemini-2.5-flash")) == Price(prompt=0.3, completion=2.5)
    assert price_of(LmConfig(model="openai/no-such-model")) is None
    own_place = {"model": "openai/gpt-4.1-mini", "api_base": "http://h/v1"}
    assert price_of(LmConfig.model_validate(own_place)) is None
    stated = Price(prompt=1, completion=2)
    assert price_of(LmConfig.model_validate(own_place | {"price": stated})) == stated
    assert price_of(LmConfig(model="local/default", api_base="http://h/v1")) == Price(prompt=0, completion=0)


def test_what_the_provider_says_it_charged_beats_every_price_list():
    meter = Meter(endpoint("openrouter/google/gemini-2.5-flash"), Price(prompt=9, completion=9))
    used = meter.read(None, answer({"input_tokens": 10, "output_tokens": 2}, reported={"cost": 0.25}), prompt_bytes=1)
    assert (used.prompt_tokens, used.completion_tokens, used.cost_usd) == (10, 2, 0.25)


def test_a_listed_model_costs_what_the_list_says():
    meter = Meter(endpoint("openai/gpt-4.1-mini"), None)
    response = answer({"input_tokens": 1_000_000, "output_tokens": 1_000_000}, model="gpt-4.1-mini")
    assert meter.read(None, response, prompt_bytes=1).cost_usd == pytest.approx(2.0)


def test_an_endpoint_that_reports_no_usage_is_estimated_and_an_unknown_price_stays_unknown():
    meter = Meter(endpoint("openai/x", "http://h/v1"), None)
    used = meter.read(None, answer({}, text="123456"), prompt_bytes=300)
    assert (used.prompt_tokens, used.completion_tokens, used.cost_usd) == (100, 2, None)


def test_anthropics_cached_prompt_tokens_are_prompt_tokens():
    meter = Meter(endpoint("anthropic/claude-haiku-4-5"), None)
    usage = {"input_tokens": 5, "output_tokens": 1, "cache_read_tokens": 20, "cache_write_tokens": 3}
    assert meter.read(None, answer(usage), prompt_bytes=1).prompt_tokens == 28
