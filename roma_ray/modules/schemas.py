"""The JSON schema that is sent with a request: made from the signature at the call, with bounds that DSPy drops."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import dspy

from roma_ray.modules.reading import enum_values, without_none
from roma_ray.types import SubTask, TaskType

Schema = dict[str, Any]

_REASONING_CHARS = 400
_GOAL_CHARS = 240
_NOTE_CHARS = 400
_SOURCE_CHARS = 200
_MAX_SOURCES = 8
_SHORT_TEXTS = {"reasoning": _REASONING_CHARS, "rationale": _REASONING_CHARS, "feedback": _NOTE_CHARS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What an answer may hold at most.

    `enforced` puts the lengths into the schema too: endpoints that build a grammar from it (llama.cpp, vLLM) obey them,
    some hosted ones refuse a request that has them. The task types are in the schema in any case.
    """

    max_subtasks: int = 12
    task_types: tuple[TaskType, ...] = tuple(TaskType)
    enforced: bool = False


def response_format(signature: type[dspy.Signature], bounds: Bounds) -> Schema:
    """The `response_format` for the outputs of `signature`: a strict schema, or plain JSON mode where none fits.

    None fits when a required output is an open mapping or of any type. Optional open mappings are left out.
    """
    properties: dict[str, Schema] = {}
    fields: Mapping[str, Any] = signature.output_fields
    for name, field in fields.items():
        schema = _of(field.annotation, name, bounds)
        if schema is not None:
            properties[name] = schema
        elif field.is_required():
            return {"type": "json_object"}
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": _closed(properties), "strict": True},
    }


def _of(kind: Any, name: str, bounds: Bounds) -> Schema | None:
    origin = get_origin(kind)
    bare, optional = without_none(kind)
    if optional:
        schema = _of(bare, name, bounds)
        return None if schema is None else {"anyOf": [schema, {"type": "null"}]}
    if origin is list:
        return _list_of(get_args(kind)[0], bounds)
    if origin is Literal:
        return {"enum": list(get_args(kind))}
    if kind is SubTask:
        return _subtask(bounds)
    if isinstance(kind, enum.EnumMeta):
        return {"type": "string", "enum": enum_values(kind)}
    if kind is str:
        return _text(_SHORT_TEXTS.get(name), bounds)
    plain = {bool: "boolean", int: "integer", float: "number"}.get(kind)
    return {"type": plain} if plain else None


def _list_of(kind: Any, bounds: Bounds) -> Schema | None:
    items = _text(_SOURCE_CHARS, bounds) if kind is str else _of(kind, "", bounds)
    if items is None:
        return None
    schema: Schema = {"type": "array", "items": items}
    if bounds.enforced:
        schema |= {"minItems": 1, "maxItems": bounds.max_subtasks} if kind is SubTask else {"maxItems": _MAX_SOURCES}
    return schema


def _subtask(bounds: Bounds) -> Schema:
    """Only what a plan needs: results are filled in later, and by us."""
    # The last subtask cannot be needed by another one.
    positions = [str(index) for index in range(max(bounds.max_subtasks - 1, 1))]
    needs: Schema = {"type": "array", "items": {"type": "string", "enum": positions}}
    if bounds.enforced:
        needs["maxItems"] = len(positions)
    goal = _text(_GOAL_CHARS, bounds)
    if bounds.enforced:
        goal["minLength"] = 1
    kinds = {"type": "string", "enum": [kind.value for kind in bounds.task_types]}
    return _closed({"goal": goal, "task_type": kinds, "dependencies": needs})


def _text(max_chars: int | None, bounds: Bounds) -> Schema:
    return {"type": "string", "maxLength": max_chars} if max_chars and bounds.enforced else {"type": "string"}


def _closed(properties: Mapping[str, Schema]) -> Schema:
    names: Sequence[str] = list(properties)
    return {"type": "object", "properties": dict(properties), "required": names, "additionalProperties": False}
