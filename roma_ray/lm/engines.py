"""One HTTP attempt at one endpoint: lm15 natively, LiteLLM only where a provider needs it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol
from urllib.request import getproxies

from dspy._vendor.lm15.transports import StdlibAsyncTransport
from dspy.lm15 import AsyncLMRouter, Request, Response, RouterConfig

from roma_ray.errors import ConfigError
from roma_ray.lm.endpoint import Endpoint
from roma_ray.redact import Secret

_CONNECTIONS = 4096
"""The gate's permits are the limit, not the pool: lm15's default of 100 would queue calls behind our back."""
_CONNECT_S = 15.0
_NO_LIMIT_S = 86_400.0
"""The gate bounds the whole request; lm15 would bound each single read."""
_PLACEHOLDER_KEY = "none"


class Engine(Protocol):
    """One attempt, no retries. Belongs to the event loop of its first call."""

    async def complete(self, request: Request) -> Response:
        """Ask and return the answer; raises lm15 errors."""
        ...

    async def aclose(self) -> None: ...


def open_engine(endpoint: Endpoint, key: Secret | None) -> Engine:
    """The engine for `endpoint`; it sends `key`, or a placeholder, and never a key from the environment."""
    if endpoint.lm15_provider is None:
        return _litellm_engine(endpoint, key)
    return NativeEngine(endpoint, key)


class NativeEngine:
    """lm15's own client; every endpoint gets a connection pool of its own."""

    def __init__(self, endpoint: Endpoint, key: Secret | None) -> None:
        provider = endpoint.lm15_provider or "openai-chat"
        self._provider = provider
        self._router = AsyncLMRouter(
            RouterConfig(
                env={},
                api_keys={provider: key.reveal() if key else _PLACEHOLDER_KEY},
                base_urls={provider: endpoint.base_url} if endpoint.base_url else None,
                transport=StdlibAsyncTransport(
                    connect_timeout=_CONNECT_S,
                    read_timeout=_NO_LIMIT_S,
                    write_timeout=_NO_LIMIT_S,
                    pool_timeout=None,
                    max_connections=_CONNECTIONS,
                    # Looking for a proxy in the environment costs 0.2 ms a request: look once.
                    trust_env=bool(getproxies()),
                ),
            )
        )

    async def complete(self, request: Request) -> Response:
        """Ask the model that `request` names after its provider prefix."""
        client: Any = self._router.lm(f"{self._provider}:{request.model}")
        return await client.complete(request)

    async def aclose(self) -> None:
        await self._router.aclose()


def addressed(request: Request, endpoint: Endpoint) -> Request:
    """`request` with the model's name as `endpoint` knows it."""
    native = endpoint.lm15_provider is not None
    return replace(request, model=endpoint.wire_model if native else endpoint.model)


def _litellm_engine(endpoint: Endpoint, key: Secret | None) -> Engine:
    if endpoint.base_url is not None:
        raise ConfigError(f"lm.api_base cannot be combined with {endpoint.model}", cure="use openai/NAME there")
    from dspy.clients.engines.litellm_engine import AsyncLiteLLMEngine

    return AsyncLiteLLMEngine(api_key=key.reveal()) if key else AsyncLiteLLMEngine()
