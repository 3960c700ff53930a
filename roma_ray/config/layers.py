"""A layer is what one source says, flat: full key -> value. Later layers win; `lm.*` is handed down to the roles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roma_ray.config import groups, keys
from roma_ray.config.schema import ROLES
from roma_ray.errors import ConfigError
from roma_ray.types import TaskType


@dataclass(frozen=True, slots=True)
class Setting:
    """One value and, for people, where it came from."""

    value: Any
    source: str


Layer = dict[str, Setting]


def from_pairs(pairs: Iterable[tuple[str, Any]], source: str) -> Layer:
    """The layer that says `pairs` of key and value; `cluster=NAME` stands for the content of that group's file.

    Raises ConfigError for a key that does not exist or a value where a section is.
    """
    layer: Layer = {}
    chosen: Layer = {}
    for name, value in pairs:
        key = keys.find(name, source)
        if key.name in groups.SECTIONS and isinstance(value, str):
            content = groups.read(key.name, value, source)
            chosen |= from_pairs(flatten(content, source), f"{source}: {key.name}={value}")
        elif key.kind == "section" and not (key.nullable and value is None):
            names = ", ".join(keys.below(key.name))
            raise ConfigError(f"{key.name} is a section, not a value ({source})", cure=f"set one of {names}")
        else:
            layer[key.name] = Setting(value, source)
    # What the source says by name wins over the group that it chose.
    return chosen | layer


def flatten(content: Mapping[str, Any], source: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The full keys and values of nested `content`, e.g. of a YAML file. Raises ConfigError for an unknown key."""
    for part, value in content.items():
        key = keys.find(f"{prefix}{part}", source)
        is_open = key.kind == "table" and value
        if isinstance(value, Mapping) and (key.kind == "section" or is_open):
            yield from flatten(value, source, f"{key.name}.")
        elif value is not None or key.kind != "section" or key.nullable:
            yield key.name, as_written(key, value)


def as_written(key: keys.Key, value: Any) -> Any:
    """`value` of a YAML file as the text that stood there, where `key` takes text.

    YAML reads `off` as false and a key made of digits as a number.
    """
    if not key.is_text or value is None or isinstance(value, str | list | dict):
        return value
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def merge(layers: Sequence[Layer]) -> Layer:
    """All layers in one, later ones winning, with the config of every role and task type complete.

    Source beats specificity: `lm.model` of a later layer overrides `agents.planner.lm.model` of an earlier one; within
    one layer the specific key wins.
    """
    used = {task_type for layer in layers for task_type in TaskType if _names(layer, task_type)}
    merged: Layer = {}
    for layer in layers:
        for part in (*_handed_down(layer, sorted(used)), layer):
            _put(merged, part)
    return merged


def _names(layer: Layer, task_type: TaskType) -> bool:
    prefix = f"agents.executor.by_type.{task_type}."
    return any(name.startswith(prefix) for name in layer)


def _handed_down(layer: Layer, used: Sequence[TaskType]) -> Iterator[Layer]:
    """What `layer` says for all roles as said for each role, then what it says for the Executor for each task type."""
    of_lm: Layer = {}
    of_executor: Layer = {}
    by_type = [f"agents.executor.by_type.{task_type}." for task_type in used]
    for name, setting in layer.items():
        handed = Setting(setting.value, f"{setting.source}, as {name}")
        if name.startswith("lm."):
            of_lm |= {f"agents.{role}.{name}": handed for role in ROLES} | {f"{p}{name}": handed for p in by_type}
        elif name.startswith("agents.executor.") and not name.startswith("agents.executor.by_type."):
            of_executor |= {p + name.removeprefix("agents.executor."): handed for p in by_type}
    yield of_lm
    yield of_executor


def _put(merged: Layer, part: Layer) -> None:
    for name, setting in part.items():
        if name.endswith(".strategy") and name in merged and merged[name].value != setting.value:
            # Settings of one strategy mean nothing to another.
            _drop_below(merged, f"{name}_config")
        _drop_below(merged, name)
        merged.pop(name.rpartition(".")[0], None)
    merged.update(part)


def _drop_below(merged: Layer, name: str) -> None:
    for below in [n for n in merged if n.startswith(f"{name}.")]:
        del merged[below]


def nest(layer: Layer) -> dict[str, Any]:
    """The layer as nested plain data, as the schema reads it."""
    nested: dict[str, Any] = {}
    for name, setting in layer.items():
        *path, last = name.split(".")
        at = nested
        for part in path:
            at = at.setdefault(part, {})
        at[last] = setting.value
    return nested
