"""The names of all config keys, read from the schema: which exist, what they take, and which one was meant."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from roma_ray.config.schema import Config
from roma_ray.errors import ConfigError
from roma_ray.types import TaskType


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One name of the config: a section, a single value, or a free table whose own keys are open.

    `words` says what it takes ("a whole number of at least 1"); `is_text` that it takes text as it stands.
    """

    name: str
    kind: Literal["section", "value", "table"]
    words: str
    default: Any = None
    is_text: bool = False
    is_list: bool = False
    nullable: bool = False


def find(name: str, source: str) -> Key:
    """The key called `name` in any case; names below a free table count as values.

    Raises ConfigError with the nearest name when there is none; `source` says where the name was read.
    """
    key = _table().get(name.lower())
    if key is not None:
        return key
    table = _table_above(name)
    if table is not None:
        return Key(name=table.name + name[len(table.name) :], kind="value", words="any value", nullable=True)
    raise ConfigError(f"no config key is called {name} ({source})", cure=_did_you_mean(name))


def values() -> Iterator[Key]:
    """Every key that holds a value, in the order of the schema; those of single task types are left out."""
    return (key for key in _table().values() if key.kind != "section" and ".by_type." not in key.name)


def below(name: str) -> list[str]:
    """The full names directly below the section `name`."""
    depth = name.count(".") + 1
    return [k.name for k in _table().values() if k.name.startswith(f"{name}.") and k.name.count(".") == depth]


def _table_above(name: str) -> Key | None:
    parts = name.lower().split(".")
    for size in range(len(parts) - 1, 0, -1):
        key = _table().get(".".join(parts[:size]))
        if key is not None:
            return key if key.kind == "table" else None
    return None


def _did_you_mean(name: str) -> str | None:
    near = _nearest(name)
    return f"did you mean {near}?" if near else None


def _nearest(name: str) -> str | None:
    wanted = name.lower()
    close = difflib.get_close_matches(wanted, _table(), n=1, cutoff=0.7)
    if not close:
        # `depth` or `max_depth` for limits.max_depth: compare with the last part alone, shortest full name first.
        last = wanted.rpartition(".")[2]
        by_last: dict[str, str] = {}
        for folded in sorted(_table(), key=lambda k: (k.count("."), len(k))):
            by_last.setdefault(folded.rpartition(".")[2], folded)
        close = [by_last[k] for k in difflib.get_close_matches(last, by_last, n=1, cutoff=0.7)]
    return _table()[close[0]].name if close else None


@cache
def _table() -> dict[str, Key]:
    return {key.name.lower(): key for key in _walk(Config, "")}


def _walk(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        yield from _keys_of(f"{prefix}{name}", field)


def _keys_of(name: str, field: FieldInfo) -> Iterator[Key]:
    annotation, nullable = _without_none(field.annotation)
    section = _section_in(annotation)
    if section is not None:
        yield Key(name=name, kind="section", words="a section", nullable=nullable)
        yield from _walk(section, f"{name}.")
    elif get_origin(annotation) is dict and get_args(annotation)[0] is TaskType:
        yield Key(name=name, kind="section", words="a section by task type")
        for task_type in TaskType:
            yield Key(name=f"{name}.{task_type}", kind="section", words="a section")
            yield from _walk(get_args(annotation)[1], f"{name}.{task_type}.")
    else:
        yield _value_key(name, field, annotation, nullable)


def _value_key(name: str, field: FieldInfo, annotation: Any, nullable: bool) -> Key:
    words = _words(annotation, [*field.metadata])
    return Key(
        name=name,
        kind="table" if get_origin(annotation) is dict else "value",
        words=f"{words} or null" if nullable else words,
        default=None if field.default is PydanticUndefined else field.default,
        is_text=_is_text(_bare(annotation)),
        is_list=get_origin(annotation) is tuple,
        nullable=nullable,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    kept = [arg for arg in get_args(annotation) if arg is not types.NoneType]
    return kept[0], len(kept) < len(get_args(annotation))


def _section_in(annotation: Any) -> type[BaseModel] | None:
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _is_text(bare: Any) -> bool:
    return bare in (str, SecretStr, Path) or get_origin(bare) is Literal


def _words(annotation: Any, bounds: list[Any]) -> str:
    if get_origin(annotation) is Annotated:
        bare, *more = get_args(annotation)
        inner = [m for item in more for m in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _words(bare, bounds + inner)
    if get_origin(annotation) is Literal:
        return "one of " + ", ".join(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return "one of " + ", ".join(annotation)
    if get_origin(annotation) is tuple:
        return f"a list [a,b] of: {_words(get_args(annotation)[0], []).removeprefix('one of ')}"
    plain = {bool: "true or false", int: "a whole number", float: "a number", Path: "a path"}
    return plain.get(annotation, "text") + _bound_words(bounds)


def _bound_words(bounds: Iterable[Any]) -> str:
    said: list[str] = []
    for bound in bounds:
        match bound:
            case Ge(ge=low):
                said.append(f"at least {low}")
            case Gt(gt=low):
                said.append(f"more than {low}")
            case Le(le=high):
                said.append(f"at most {high}")
            case Lt(lt=high):
                said.append(f"less than {high}")
            case _:
                pass
    return f" of {' and '.join(said)}" if said else ""
