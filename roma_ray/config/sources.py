"""Where values come from besides the command line: the user's file, .env, the environment, the default folders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roma_ray.config import keys, layers, overrides
from roma_ray.errors import ConfigError

PREFIX = "ROMA_RAY_"
NOT_KEYS = frozenset({"ROMA_RAY_HOME", "ROMA_RAY_FAULTS", "ROMA_RAY_FAULTS_ONCE", "ROMA_RAY_LOCAL_MODEL"})
"""Variables with the prefix that are read elsewhere and name no config key."""


def environment(environ: Mapping[str, str] | None = None, cwd: Path | None = None) -> dict[str, str]:
    """The environment, with what .env in `cwd` adds to it; .env never overrides."""
    environ = os.environ if environ is None else environ
    return dotenv(cwd) | dict(environ)


def dotenv(cwd: Path | None = None) -> dict[str, str]:
    """The variables of `cwd`/.env, empty when there is none. Raises ConfigError for what is no UTF-8 text."""
    path = (cwd or Path.cwd()) / ".env"
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        values = dotenv_values(path, interpolate=False)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", cure="save it as UTF-8") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", cure="make it readable") from error
    return {name: value for name, value in values.items() if value is not None}


def home(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of everything that an installation keeps: ROMA_RAY_HOME, else ~/.roma_ray. Absolute."""
    environ = environment() if environ is None else environ
    chosen = environ.get("ROMA_RAY_HOME")
    return Path(chosen).expanduser().absolute() if chosen else _user_home(environ) / ".roma_ray"


def user_folder(environ: Mapping[str, str]) -> Path:
    """The folder of the user's own config.yaml and profile/*.yaml."""
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _user_home(environ) / ".config") / "roma_ray"


def defaults(environ: Mapping[str, str]) -> layers.Layer:
    """The values that depend on the machine: where things are kept."""
    folder = home(environ)
    source = "default in ROMA_RAY_HOME" if environ.get("ROMA_RAY_HOME") else "default"
    pairs = [("storage.base_path", str(folder)), ("runlog.url", f"sqlite:///{folder / 'runs.db'}")]
    return layers.from_pairs(pairs, source)


def user_file(environ: Mapping[str, str]) -> layers.Layer:
    """What the user's config.yaml says; empty when there is none. Raises ConfigError with the place of a YAML fault."""
    path = user_folder(environ) / "config.yaml"
    if not path.is_file():
        return {}
    return layers.from_pairs(layers.flatten(_read_yaml(path), str(path)), str(path))


def variables(environ: Mapping[str, str], place: str) -> layers.Layer:
    """What ROMA_RAY_LIMITS__MAX_DEPTH and the like in `environ` say; `place` is where they stand, for people."""
    merged: layers.Layer = {}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in NOT_KEYS:
            continue
        source = f"{place} {name}"
        merged |= layers.from_pairs(_variable(name, environ[name], source), source)
    return merged


def _variable(name: str, text: str, source: str) -> Iterator[tuple[str, Any]]:
    key = keys.find(name.removeprefix(PREFIX).lower().replace("__", "."), source)
    yield key.name, overrides.value_of(key, text, source)


def _read_yaml(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}", cure="correct that file") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", cure="make it readable") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path} does not hold keys and values", cure="write lines such as `lm: {model: …}`")
    return content


def _user_home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
