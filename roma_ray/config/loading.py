"""Loading the config: all sources in order, merged, checked, with where each value came from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from roma_ray.config import groups, keys, layers, overrides, sources
from roma_ray.config.layers import Layer, Setting
from roma_ray.config.schema import Config
from roma_ray.errors import ConfigError
from roma_ray.redact import MASK, Redactor, is_secret_name
from roma_ray.types import Json

COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A checked config, where each value came from by full key, and the environment with .env in it."""

    config: Config
    sources: dict[str, str]
    environ: Mapping[str, str]


def load_config(
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    base: Mapping[str, Json] | None = None,
) -> Loaded:
    """Merge defaults < user file < profile < .env < environment < `overrides`, and check the result.

    `base`, the stored config of a run that is resumed, takes the place of everything below the overrides, but for
    secrets, which are never stored, and for where the run log is.
    Raises ConfigError or UsageError, each with a message of one line.
    """
    environ = os.environ if environ is None else environ
    dotenv = sources.dotenv(cwd)
    command_line = _command_line(overrides)
    below = _below(command_line, environ, {name: text for name, text in dotenv.items() if name not in environ})
    if base is not None:
        stored = layers.from_pairs(layers.flatten(base, "stored config"), "stored config")
        below = [stored, *({n: s for n, s in layer.items() if _may_come_anew(n)} for layer in below)]
    merged = layers.merge([*below, command_line])
    config = _checked(_resolved(merged), merged)
    return Loaded(config=config, sources=_all_sources(merged, config), environ={**dotenv, **environ})


def storable(config: Config) -> dict[str, Json]:
    """`config` as plain data for the run log; `load_config(base=…)` reads it back.

    Secrets are left out, and so is `runlog`: whoever reads this has found the run log, whose url may hold a password.
    """
    return _without_secrets(config.model_dump(mode="json", exclude_none=True, exclude={"runlog"}))


def shown(config: Config, name: str) -> Json:
    """The value of the full key `name` for people: plain data with every secret masked; None if it is not set."""
    at: Any = config.model_dump(mode="json")
    for part in name.split("."):
        at = at.get(part) if isinstance(at, dict) else None
    return MASK if is_secret_name(name) and at else Redactor().data(at)


def _command_line(texts: Sequence[str]) -> Layer:
    return layers.from_pairs(overrides.parse(texts, COMMAND_LINE), COMMAND_LINE)


def _below(command_line: Layer, environ: Mapping[str, str], dotenv: Mapping[str, str]) -> list[Layer]:
    """Every layer under the command line, lowest first; the profile that the highest source names has its place there.

    `dotenv` holds only what `environ` does not.
    """
    everything = {**dotenv, **environ}
    root = layers.from_pairs(layers.flatten(groups.read_root(), "conf/config.yaml"), "default")
    user = sources.user_file(everything)
    variables = [sources.variables(dotenv, ".env"), sources.variables(environ, "environment")]
    named = layers.merge([user, *variables, command_line]).get("profile")
    return [root, sources.defaults(everything), user, _profile(named, sources.user_folder(everything)), *variables]


def _profile(named: Setting | None, user_folder: Path) -> Layer:
    if named is None or named.value is None:
        return {}
    source = f"profile {named.value}"
    own = user_folder if (user_folder / "profile").is_dir() else None
    content = groups.read("profile", str(named.value), named.source, own)
    if "profile" in content:
        raise ConfigError(f"{source} does not say where it belongs", cure="begin its file with `# @package _global_`")
    return layers.from_pairs(layers.flatten(content, source), source)


def _may_come_anew(name: str) -> bool:
    return is_secret_name(name) or name.startswith("runlog.")


def _resolved(merged: Layer) -> dict[str, Any]:
    """Nested plain data with `${…}` replaced by what it refers to; raw text such as the goal is left alone."""
    if not any(isinstance(s.value, str) and "${" in s.value for n, s in merged.items() if n not in overrides.RAW):
        return layers.nest(merged)
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    raw = {name: setting for name, setting in merged.items() if name in overrides.RAW}
    rest = {name: setting for name, setting in merged.items() if name not in overrides.RAW}
    try:
        resolved = OmegaConf.to_container(OmegaConf.create(layers.nest(rest)), resolve=True)
    except OmegaConfBaseException as error:
        at = getattr(error, "full_key", None) or "a value"
        raise ConfigError(f"{at}: {str(error).splitlines()[0]}", cure="correct the ${…} in it") from error
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()} | layers.nest(raw)


def _checked(nested: dict[str, Any], merged: Layer) -> Config:
    try:
        config = Config.model_validate(nested)
    except ValidationError as error:
        raise _as_config_error(error, merged) from None
    base_path = config.storage.base_path
    if "://" not in base_path:
        absolute = str(Path(base_path).expanduser().absolute())
        config = config.model_copy(update={"storage": config.storage.model_copy(update={"base_path": absolute})})
    return config


def _as_config_error(error: ValidationError, merged: Layer) -> ConfigError:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    name = next((n for n in merged if path == n or path.startswith(f"{n}.")), path)
    if name not in merged:
        # A free table is judged as a whole, and named by what was put into it.
        name = next((n for n in merged if n.startswith(f"{path}.")), path)
    setting = merged.get(name)
    if setting is None:
        return ConfigError(f"{path} is missing", cure=f"set {path}=…")
    value = overrides.unsecret(name, str(setting.value))
    key = keys.find(name, setting.source)
    if first["type"] == "value_error":
        reason = overrides.unsecret(name, first["msg"].removeprefix("Value error, "))
        return ConfigError(f"{name}={value} ({setting.source}): {reason}")
    cure = "leave it out for the default" if key.default in (None, ()) else f"the default is {name}={key.default}"
    return ConfigError(f"{name}={value} ({setting.source}) is not {key.words}", cure=cure)


def _all_sources(merged: Layer, config: Config) -> dict[str, str]:
    by_type = [f"agents.executor.by_type.{task_type}." for task_type in config.agents.executor.by_type]
    of_executor = "agents.executor."
    names = [key.name for key in keys.values()]
    handed = [n.removeprefix(of_executor) for n in names if n.startswith(of_executor)]
    names += [prefix + rest for prefix in by_type for rest in handed]
    return dict.fromkeys(names, "default") | {name: setting.source for name, setting in merged.items()}


def _without_secrets(data: Any) -> Any:
    if isinstance(data, dict):
        return {name: _without_secrets(value) for name, value in data.items() if not is_secret_name(name)}
    return data
