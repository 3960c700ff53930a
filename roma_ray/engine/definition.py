"""What a run is defined by: the version of the package, the settings that shape its work, the code they name.

Both are written down when a run begins, and compared when it is resumed: half a run by one definition and half by
another is no result that anybody could stand behind.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from roma_ray.config import ROLES, Config, storable
from roma_ray.redact import is_secret_name
from roma_ray.types import Json
from roma_ray.version import __version__

FREE_TO_CHANGE = (
    "approve",
    "cluster",
    "files",
    "goal",
    "goal_file",
    "limits",
    "log",
    "on_change",
    "output",
    "profile",
    "record",
    "resume",
    "runlog",
    "traceback",
)
"""The keys, and groups of keys, that a resume may give anew: they do not change what a step asks or answers."""


def fingerprint(config: Config) -> dict[str, str]:
    """What besides the settings shapes a run: version, and a hash for each file or module that the settings name."""
    return {"version": __version__, **{name: _hash_of(path) for name, path in _sources(config)}}


def changes(
    before: Mapping[str, Json], now: Config, fingerprint_before: Mapping[str, str], fingerprint_now: Mapping[str, str]
) -> list[str]:
    """What differs between a stored definition (`before` is the stored config) and the present one, in words."""
    found = [f"{key} was {was!r} and is {value!r}" for key, was, value in changed_settings(before, now)]
    for name in sorted({*fingerprint_before, *fingerprint_now}):
        was, value = fingerprint_before.get(name, ""), fingerprint_now.get(name, "")
        if was != value and name == "version":
            found.append(f"the run began with roma_ray {was or 'of an unknown version'}, this is {value}")
        elif was != value:
            found.append(f"{name} has changed (it had the hash {was[:12] or 'none'}, now {value[:12] or 'none'})")
    return found


def changed_settings(before: Mapping[str, Json], now: Config) -> list[tuple[str, Json, Json]]:
    """The settings that shape a run's work and differ, as (key, before, now)."""
    old, new = dict(flat(before)), dict(flat(storable(now)))
    keys = [key for key in sorted({*old, *new}) if key.partition(".")[0] not in FREE_TO_CHANGE]
    # A secret is in neither.
    return [(k, old.get(k), new.get(k)) for k in keys if old.get(k) != new.get(k) and not is_secret_name(k)]


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Json]]:
    """The full keys and values of a stored config."""
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _sources(config: Config) -> Iterator[tuple[str, Path]]:
    agents = {role: config.agents.of(role) for role in ROLES}
    agents |= {f"executor.by_type.{kind}": agent for kind, agent in config.agents.executor.by_type.items()}
    for name, agent in agents.items():
        for what, source in (("instructions", agent.instructions), ("demos", agent.demos)):
            path = _path_of(source) if source else None
            if path is not None:
                yield f"agents.{name}.{what} ({source})", path


def _path_of(source: str) -> Path | None:
    """The file behind a template's path or a `module:VARIABLE`; None for plain text."""
    text = source.strip()
    if "\n" in text:
        return None
    if text.endswith((".jinja", ".jinja2")):
        return Path(text).expanduser()
    module, _, variable = text.partition(":")
    if not variable.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        return None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _hash_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
