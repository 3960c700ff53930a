"""What a model string means: which provider, which model there, at which URL, with which key."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from roma_ray.config import LmConfig

LOCAL = "local"
"""The provider of the embedded model."""


class Provider(NamedTuple):
    """A provider that is spoken to natively: its name in lm15 and the environment variables that may hold its key."""

    lm15: str
    key_names: tuple[str, ...] = ()


PROVIDERS: dict[str, Provider] = {
    "openrouter": Provider("openrouter", ("OPENROUTER_API_KEY",)),
    "openai": Provider("openai-chat", ("OPENAI_API_KEY",)),
    "anthropic": Provider("anthropic", ("ANTHROPIC_API_KEY",)),
    "gemini": Provider("gemini", ("GEMINI_API_KEY", "GOOGLE_API_KEY")),
    "groq": Provider("groq", ("GROQ_API_KEY",)),
    "deepseek": Provider("deepseek", ("DEEPSEEK_API_KEY",)),
    "xai": Provider("xai", ("XAI_API_KEY",)),
    "moonshot": Provider("moonshotai", ("MOONSHOT_API_KEY", "MOONSHOTAI_API_KEY")),
    "ollama": Provider("ollama"),
    "hosted_vllm": Provider("vllm"),
    LOCAL: Provider("openai-chat"),
}
"""Every other provider goes through LiteLLM."""

_WITH_URL = re.compile(r"(?P<model>.+?)@(?P<url>https?://.+)")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one place. `base_url` is None for the provider's own address; `lm15_provider` for LiteLLM."""

    model: str
    provider: str
    wire_model: str
    base_url: str | None
    lm15_provider: str | None

    @property
    def name(self) -> str:
        """`provider`, or `provider@url`: what keys, connections and permits are shared by."""
        return f"{self.provider}@{self.base_url}" if self.base_url else self.provider

    @property
    def key_names(self) -> tuple[str, ...]:
        """Environment variables that may hold the key, by preference."""
        known = PROVIDERS.get(self.provider)
        return known.key_names if known else (f"{self.provider.upper()}_API_KEY",)

    @property
    def is_local(self) -> bool:
        return self.provider == LOCAL

    @property
    def is_free(self) -> bool:
        """Whether it runs on the user's own machines by its nature."""
        return self.provider in (LOCAL, "ollama", "hosted_vllm")


def endpoint(model: str, api_base: str | None = None) -> Endpoint:
    """What `model` names: `provider/model`, or `provider/model@URL` with an address of its own.

    With an address, a provider that is not known is taken as part of the model's name at an OpenAI-compatible
    endpoint, as in `Qwen/Qwen3-8B`.
    """
    with_url = _WITH_URL.fullmatch(model)
    name, base_url = (with_url["model"], with_url["url"]) if with_url else (model, api_base)
    head, slash, rest = name.partition("/")
    if slash and rest and head in PROVIDERS:
        return Endpoint(model, head, rest, base_url, PROVIDERS[head].lm15)
    if base_url is not None or not slash:
        return Endpoint(model, "openai", name, base_url, PROVIDERS["openai"].lm15)
    return Endpoint(model, head, rest, None, None)


def endpoints_of(config: LmConfig) -> tuple[Endpoint, ...]:
    """The endpoint of a resolved config and its fallbacks in order; `api_base` holds for the same provider only."""
    first = endpoint(config.model, config.api_base)
    return (first, *(_fallback(model, first) for model in config.fallbacks))


def _fallback(model: str, first: Endpoint) -> Endpoint:
    found = endpoint(model)
    if found.base_url is None and (
        found.provider == first.provider or (found.lm15_provider is None and first.base_url)
    ):
        return endpoint(model, first.base_url)
    return found
