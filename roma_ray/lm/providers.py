"""From a config and an environment to concrete models and keys: `auto`, the embedded model, whose key goes where."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from roma_ray.config import ROLES, AgentConfig, Config, ExecutorConfig, LmConfig, Role
from roma_ray.errors import ConfigError, ExtraMissing, KeyMissing
from roma_ray.lm.endpoint import LOCAL, Endpoint, endpoint, endpoints_of
from roma_ray.lm.local_model import display_name
from roma_ray.redact import Secret

OPENROUTER_EXECUTOR = "openrouter/anthropic/claude-sonnet-4.5"
OPENROUTER_OTHERS = "openrouter/google/gemini-2.5-flash"
OPENAI_MODEL = "openai/gpt-4.1-mini"
ANTHROPIC_MODEL = "anthropic/claude-sonnet-4-5"

_LOCAL_TIMEOUT_S = 600.0
"""The embedded model needs 6 to 60 s a call, more on a busy machine."""
_LOCAL_MAX_TOKENS = 768
_NOWHERE = "http://127.0.0.1/v1"
_LOCAL_CONTEXT_TOKENS = 4_000
"""It reads 30 to 60 tokens a second: more input than this is more than a person would wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModels:
    """Which models a run uses.

    In `config` every role's `lm.model` (by_type included) is concrete and no `api_key` is left. `keys` holds them by
    endpoint name (`openai`, `openai@http://host/v1`), those given by `lm.api_key` by `role:endpoint name`; it goes once
    to each worker. `notes` should be said aloud. With `uses_local_model` the driver serves `local_model` (a name or a
    path that `local_model.find` knows) and puts its address in place by `with_local_endpoint`.
    """

    config: Config
    keys: Mapping[str, Secret] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    local_model: str = ""

    @property
    def uses_local_model(self) -> bool:
        return bool(self.local_model)


def resolve_models(config: Config, environ: Mapping[str, str]) -> ResolvedModels:
    """Decide every role's model and collect the keys that they need.

    Resolving a resolved config again gives the same, so that a resume does it too. Raises KeyMissing where a model
    cannot be had without a key, ConfigError for settings that contradict each other, ExtraMissing where a package is
    missing.
    """
    resolver = _Resolver(environ)
    agents = config.agents.model_copy(
        update={role: resolver.agent(role, getattr(config.agents, role)) for role in ROLES}
    )
    resolved = config.model_copy(update={"agents": agents, "lm": config.lm.model_copy(update={"api_key": None})})
    return ResolvedModels(
        config=resolved, keys=resolver.keys, notes=tuple(resolver.notes), local_model=resolver.local_model
    )


def with_local_endpoint(resolved: ResolvedModels, base_url: str) -> ResolvedModels:
    """`resolved` with the address of the embedded model's server (up to and including `/v1`) filled in."""

    def place(lm: LmConfig) -> LmConfig:
        fallbacks = tuple(f"{m}@{base_url}" if endpoint(m).is_local else m for m in lm.fallbacks)
        own = {"api_base": base_url} if endpoint(lm.model).is_local else {}
        return lm.model_copy(update={"fallbacks": fallbacks, **own})

    def placed(agent: AgentConfig) -> AgentConfig:
        update: dict[str, object] = {"lm": place(agent.lm)}
        if isinstance(agent, ExecutorConfig):
            update["by_type"] = {kind: placed(special) for kind, special in agent.by_type.items()}
        return agent.model_copy(update=update)

    agents = resolved.config.agents
    agents = agents.model_copy(update={role: placed(getattr(agents, role)) for role in ROLES})
    return replace(resolved, config=resolved.config.model_copy(update={"agents": agents}))


def without_keys(config: Config) -> ResolvedModels:
    """The models of a config that was resolved before, for a replay: none of them is asked, so none needs a key."""
    nowhere = ResolvedModels(config=config, local_model=next(filter(None, map(_local_name, _models(config))), ""))
    return with_local_endpoint(nowhere, _NOWHERE)


def _models(config: Config) -> Iterator[str]:
    for agent in (*(config.agents.of(role) for role in ROLES), *config.agents.executor.by_type.values()):
        yield from (agent.lm.model, *agent.lm.fallbacks)


class _Resolver:
    """Collects keys, notes and the embedded model in use while the roles are gone through."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.keys: dict[str, Secret] = {}
        self.notes: list[str] = []
        self.local_model = ""

    def agent(self, role: Role, agent: AgentConfig) -> AgentConfig:
        update: dict[str, object] = {"lm": self._lm(role, agent.lm)}
        if isinstance(agent, ExecutorConfig):
            update["by_type"] = {kind: self.agent(role, special) for kind, special in agent.by_type.items()}
        return agent.model_copy(update=update)

    def _lm(self, role: Role, lm: LmConfig) -> LmConfig:
        model = self._auto(role, lm) if lm.model == "auto" else lm.model
        lm = lm.model_copy(update={"model": self._local(model), "fallbacks": tuple(map(self._local, lm.fallbacks))})
        if endpoint(lm.model).is_local:
            lm = lm.model_copy(
                update={
                    "api_base": None,
                    "adapter": "json",
                    "max_concurrency": 1,
                    "timeout_s": max(lm.timeout_s, _LOCAL_TIMEOUT_S),
                    "max_tokens": lm.max_tokens or _LOCAL_MAX_TOKENS,
                    "context_tokens": min(lm.context_tokens, _LOCAL_CONTEXT_TOKENS),
                }
            )
        first, *others = endpoints_of(lm)
        self._key(role, first, lm)
        for other in others:
            self._key(role, other, lm if other.name == first.name else LmConfig())
        return lm.model_copy(update={"api_key": None})

    def _auto(self, role: Role, lm: LmConfig) -> str:
        if lm.api_base is not None:
            return f"openai/{_first_model_at(lm.api_base, lm)}"
        if self.environ.get("OPENROUTER_API_KEY"):
            return OPENROUTER_EXECUTOR if role == "executor" else OPENROUTER_OTHERS
        if self.environ.get("OPENAI_API_KEY"):
            return OPENAI_MODEL
        if self.environ.get("ANTHROPIC_API_KEY"):
            return ANTHROPIC_MODEL
        if find_spec("xllamacpp") is None:
            raise KeyMissing(
                "no key is set, and the runtime of the embedded model is not installed",
                cure=f"{KeyMissing.default_cure} after `pip install 'roma_ray[local]'`",
            )
        return LOCAL

    def _local(self, model: str) -> str:
        """`model`, with `local`, `local:PATH` and a resolved `local/NAME` turned into `local/NAME`, and remembered."""
        name = _local_name(model)
        if name is None:
            return model
        if find_spec("xllamacpp") is None:
            raise ExtraMissing(
                f"lm.model={model} needs the package xllamacpp", cure="pip install 'roma_ray[local]', or set a key"
            )
        if self.local_model not in ("", name):
            raise ConfigError(f"one run can serve one embedded model, not both {self.local_model} and {name}")
        if not self.local_model:
            self.local_model = name
            self.notes.append(
                f"using the embedded model {display_name(name)}: a demonstration model, slow and easily wrong; "
                "set a key or lm.api_base for a real one"
            )
        return f"{LOCAL}/{name}"

    def _key(self, role: Role, place: Endpoint, lm: LmConfig) -> None:
        if place.lm15_provider is None and find_spec("litellm") is None:
            raise ExtraMissing(f"{place.model} needs the package litellm", cure="pip install litellm")
        if lm.api_key is not None and lm.api_key.get_secret_value():
            self._remember(f"{role}:{place.name}", Secret(lm.api_key.get_secret_value()))
            return
        if place.base_url is not None and not lm.use_env_key:
            return
        found = next((self.environ[name] for name in place.key_names if self.environ.get(name)), None)
        if found is not None:
            self._remember(place.name, Secret(found))
        elif place.key_names and place.lm15_provider is not None:
            raise KeyMissing(f"{place.model} needs a key: {' or '.join(place.key_names)} is not set")

    def _remember(self, name: str, key: Secret) -> None:
        if not key.reveal().isprintable():
            # Said here, since whoever builds the request would put the key into its complaint.
            where = name.replace(":", " at ", 1)
            raise ConfigError(f"the key for {where} holds a line break or control character", cure="give it without")
        if self.keys.setdefault(name, key) != key:
            raise ConfigError(f"two different lm.api_key for {name.replace(':', ' at ', 1)}")


def _local_name(model: str) -> str | None:
    model = model.split("@http", 1)[0]
    if model == LOCAL:
        return "default"
    for mark in (f"{LOCAL}:", f"{LOCAL}/"):
        if model.startswith(mark):
            return model.removeprefix(mark)
    return None


def _first_model_at(api_base: str, lm: LmConfig) -> str:
    """The first model that an OpenAI-compatible endpoint lists; ConfigError when it lists none."""
    headers = {"Authorization": f"Bearer {lm.api_key.get_secret_value()}"} if lm.api_key else {}
    request = urllib.request.Request(f"{api_base.rstrip('/')}/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"lm.model is not set and {api_base} does not list its models ({type(error).__name__})",
            cure="set lm.model, for example lm.model=openai/NAME",
        ) from error
