"""Which models a run uses and whose key goes where."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from roma_ray.config import ROLES, Config, LmConfig
from roma_ray.errors import ConfigError, ExtraMissing, KeyMissing, UserError
from roma_ray.lm import providers
from roma_ray.lm.endpoint import endpoint, endpoints_of
from roma_ray.lm.providers import resolve_models, with_local_endpoint
from roma_ray.redact import Secret
from tests.scripted.client import Scripted

OPENROUTER = {"OPENROUTER_API_KEY": "sk-or-0000000000"}
OPENAI = {"OPENAI_API_KEY": "sk-oa-0000000000"}
ANTHROPIC = {"ANTHROPIC_API_KEY": "sk-an-0000000000"}


def config(executor_by_type: dict[str, Any] | None = None, **lm: Any) -> Config:
    """A config in which `lm` holds for every role, as loading leaves it."""
    roles: dict[str, Any] = {role: {"lm": lm} for role in ROLES}
    roles["executor"]["by_type"] = executor_by_type or {}
    return Config.model_validate(
        {"lm": lm, "agents": roles, "storage": {"base_path": "/x"}, "runlog": {"url": "sqlite:///x"}}
    )


def models(resolved: providers.ResolvedModels) -> dict[str, str]:
    return {role: getattr(resolved.config.agents, role).lm.model for role in ROLES}


def test_auto_with_openrouter_puts_the_executor_on_a_stronger_model():
    resolved = resolve_models(config(), OPENROUTER | OPENAI | ANTHROPIC)
    others = dict.fromkeys(ROLES, "openrouter/google/gemini-2.5-flash")
    assert models(resolved) == others | {"executor": "openrouter/anthropic/claude-sonnet-4.5"}
    assert resolved.keys == {"openrouter": Secret(OPENROUTER["OPENROUTER_API_KEY"])}
    assert not resolved.uses_local_model


@pytest.mark.parametrize(("environ", "provider"), [(OPENAI | ANTHROPIC, "openai"), (ANTHROPIC, "anthropic")])
def test_auto_takes_the_provider_whose_key_is_set(environ: dict[str, str], provider: str):
    resolved = resolve_models(config(), environ)
    assert {model.split("/")[0] for model in models(resolved).values()} == {provider}
    assert list(resolved.keys) == [provider]


def test_auto_without_any_key_uses_the_embedded_model_and_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(providers, "find_spec", lambda name: object())
    resolved = resolve_models(config(), {})
    assert resolved.uses_local_model
    assert resolved.local_model == "default"
    assert len(resolved.notes) == 1 and "Qwen2.5-Coder-1.5B" in resolved.notes[0]
    placed = with_local_endpoint(resolved, "http://127.0.0.1:1/v1").config.agents.planner.lm
    assert (placed.api_base, placed.adapter) == ("http://127.0.0.1:1/v1", "json")
    again = resolve_models(with_local_endpoint(resolved, "http://127.0.0.1:1/v1").config, {})
    assert again.config.agents.planner.lm.api_base is None  # a resume starts a server of its own
    assert again.local_model == "default"


def test_without_a_key_and_without_the_runtime_the_error_names_the_ways(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(providers, "find_spec", lambda name: None)
    with pytest.raises(KeyMissing) as caught:
        resolve_models(config(), {})
    for way in ("OPENROUTER_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "lm.api_base", "roma_ray[local]"):
        assert way in caught.value.line
    with pytest.raises(ExtraMissing, match="xllamacpp"):
        resolve_models(config(model="local"), {})


def test_auto_at_an_endpoint_of_ones_own_takes_the_first_model_there_whatever_keys_are_set(scripted: Scripted):
    resolved = resolve_models(config(api_base=scripted.base_url), OPENROUTER)
    assert set(models(resolved).values()) == {"openai/scripted"}
    assert resolved.keys == {}


def test_an_endpoint_that_lists_no_models_asks_for_lm_model():
    with pytest.raises(ConfigError, match=r"lm\.model"):
        resolve_models(config(api_base="http://127.0.0.1:9/v1"), {})


def test_an_environment_key_is_not_sent_to_an_endpoint_of_ones_own_unless_asked_for():
    base = "http://h/v1"
    assert resolve_models(config(model="openai/x", api_base=base), OPENAI).keys == {}
    allowed = resolve_models(config(model="openai/x", api_base=base, use_env_key=True), OPENAI)
    assert allowed.keys == {f"openai@{base}": Secret(OPENAI["OPENAI_API_KEY"])}


def test_a_key_in_the_config_moves_to_the_keys_and_is_masked_there():
    resolved = resolve_models(config(model="openai/x", api_base="http://h/v1", api_key="sk-given-000000"), OPENAI)
    assert "sk-given" not in repr(resolved)
    assert resolved.config.lm.api_key is None
    assert all(getattr(resolved.config.agents, role).lm.api_key is None for role in ROLES)
    assert pickle.loads(pickle.dumps(resolved.keys))["planner:openai@http://h/v1"] == Secret("sk-given-000000")


def test_a_task_type_of_the_executor_has_its_own_model_and_key():
    special = {"RETRIEVE": {"lm": {"model": "anthropic/claude-haiku-4-5"}}}
    resolved = resolve_models(config(special, model="openai/gpt-4.1-mini"), OPENAI | ANTHROPIC)
    by_type = resolved.config.agents.executor.by_type
    assert [agent.lm.model for agent in by_type.values()] == ["anthropic/claude-haiku-4-5"]
    assert set(resolved.keys) == {"openai", "anthropic"}


def test_a_missing_key_is_an_error_at_start_for_a_fallback_too():
    with pytest.raises(KeyMissing, match="OPENAI_API_KEY"):
        resolve_models(config(model="openai/gpt-4.1-mini"), ANTHROPIC)
    with pytest.raises(KeyMissing, match="ANTHROPIC_API_KEY"):
        resolve_models(config(model="openai/gpt-4.1-mini", fallbacks=("anthropic/claude-haiku-4-5",)), OPENAI)


def test_two_keys_for_one_role_at_one_endpoint_are_an_error():
    special = {"WRITE": {"lm": {"model": "openai/y", "api_base": "http://h/v1", "api_key": "second-key"}}}
    with pytest.raises(UserError, match="two different"):
        resolve_models(config(special, model="openai/x", api_base="http://h/v1", api_key="first-key"), {})


def test_a_key_with_a_line_break_is_refused_without_being_shown():
    with pytest.raises(ConfigError, match="line break") as caught:
        resolve_models(config(model="openai/x"), {"OPENAI_API_KEY": "sk-secret\r"})
    assert "sk-secret" not in caught.value.line


def test_resolving_twice_changes_nothing():
    once = resolve_models(config(), OPENROUTER)
    assert resolve_models(once.config, OPENROUTER).config == once.config


@pytest.mark.parametrize(
    ("model", "base", "provider", "wire_model"),
    [
        ("openai/gpt-4.1-mini", None, "openai", "gpt-4.1-mini"),
        ("openrouter/anthropic/claude-sonnet-4.5", None, "openrouter", "anthropic/claude-sonnet-4.5"),
        ("Qwen/Qwen3-8B", "http://h/v1", "openai", "Qwen/Qwen3-8B"),
        ("llama3", "http://h/v1", "openai", "llama3"),
        ("openai/x@http://h/v1", None, "openai", "x"),
        ("bedrock/some-model", None, "bedrock", "some-model"),
    ],
)
def test_a_model_string_names_a_provider_and_a_model_there(
    model: str, base: str | None, provider: str, wire_model: str
):
    found = endpoint(model, base)
    assert (found.provider, found.wire_model) == (provider, wire_model)


def test_api_base_holds_for_fallbacks_of_the_same_provider_only():
    lm = LmConfig(
        model="openai/a", api_base="http://h/v1", fallbacks=("openai/b", "Qwen/Qwen3-8B", "anthropic/claude-haiku-4-5")
    )
    assert [place.base_url for place in endpoints_of(lm)] == ["http://h/v1", "http://h/v1", "http://h/v1", None]
