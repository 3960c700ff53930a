"""Reading a model's answer: from raw text to the output fields of a signature, or a reason why not.

Small slips are mended here without asking again (thinking out loud, code fences, an enum in the wrong case, null for an
empty list); anything else is a fault that the model is told in words.
"""

from __future__ import annotations

import enum
import json
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, cast, get_args, get_origin

import dspy
import json_repair
import orjson
from dspy.adapters.utils import apply_output_field_defaults, parse_value
from pydantic import BaseModel, ValidationError

_THINKING = re.compile(r"<(think|thinking)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_FENCED = re.compile(r"\A\s*```[\w-]*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
_HEADING = re.compile(r"^\s*\[\[ ## (\w+) ## \]\][ \t]*", re.MULTILINE)
_BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_NOTHING = frozenset({"", "none", "null", "n/a", "nil", "[]", "{}"})
_SCHEMA_TYPES = frozenset({"string", "boolean", "array", "object", "integer", "number"})


class Unreadable(ValueError):
    """An answer that does not have the asked form; the message tells the model what is wrong with it."""


def visible(text: str) -> str:
    """`text` without thinking blocks and without a fence around the whole."""
    text = _THINKING.sub("", text).strip()
    # A server that prefills the opening tag sends only the closing one.
    _, closing, rest = text.rpartition("</think>")
    text = rest.strip() if closing else text
    fenced = _FENCED.match(text)
    return fenced.group(1).strip() if fenced else text


def read_answer(signature: type[dspy.Signature], text: str) -> dict[str, Any]:
    """The output fields of `signature` in `text`, which may be marked sections or a JSON object.

    Raises Unreadable with one line that says what is missing or wrong.
    """
    raw = _marked_sections(text) if _HEADING.search(text) else _json_object(text)
    outputs: Mapping[str, Any] = signature.output_fields
    if _repeats_schema(raw, outputs):
        raise Unreadable("it repeats the JSON schema instead of filling it in")
    if any(_repeats_form(raw[name], name, field) for name, field in outputs.items() if name in raw):
        raise Unreadable("it repeats the form instead of filling it in")
    fields = {name: _read_field(name, raw[name], field.annotation) for name, field in outputs.items() if name in raw}
    fields = apply_output_field_defaults(signature, {k: v for k, v in fields.items() if v is not _MISSING})
    missing = [name for name in outputs if name not in fields]
    if missing:
        raise Unreadable(f"it lacks {', '.join(missing)}")
    return fields


def _marked_sections(text: str) -> dict[str, Any]:
    parts = _HEADING.split(text)[1:]
    sections: dict[str, Any] = {}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        sections.setdefault(name, visible(body))
    return sections


def _json_object(text: str) -> dict[str, Any]:
    start, end = text.find("{"), text.rfind("}")
    if start < 0:
        raise Unreadable("it has none of the asked fields")
    try:
        found: Any = orjson.loads(text[start : end + 1])
    except orjson.JSONDecodeError:
        found = json_repair.loads(text[start:])
    if not isinstance(found, dict):
        raise Unreadable("it is not a JSON object")
    return cast("dict[str, Any]", found)


def _repeats_schema(raw: Mapping[str, Any], outputs: Mapping[str, Any]) -> bool:
    if "properties" in raw and not outputs.keys() & raw.keys():
        return True
    values = [raw[name] for name in outputs if name in raw]
    return bool(values) and all(_is_schema(value) for value in values)


def _repeats_form(value: Any, name: str, field: Any) -> bool:
    """Whether a value is what stands in its place where the prompt shows the form: `{name}` or `{description}`."""
    description = (field.json_schema_extra or {}).get("desc", "")
    return isinstance(value, str) and value.strip() in (f"{{{name}}}", f"{{{description}}}")


def _is_schema(value: Any) -> bool:
    if isinstance(value, str) and value.startswith("{") and '"type"' in value:
        value = json_repair.loads(value)
    return isinstance(value, dict) and (
        value.get("type") in _SCHEMA_TYPES or any(key in value for key in ("$ref", "anyOf", "allOf"))
    )


_MISSING = object()


def _read_field(name: str, value: Any, annotation: Any) -> Any:
    kind, optional = without_none(annotation)
    if optional and isinstance(value, str) and value.strip().lower() in _NOTHING:
        return None
    if value is None:
        return None if optional else [] if get_origin(kind) is list else _MISSING
    try:
        return parse_value(_mended(value, kind), kind)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in (name, *first["loc"]))
        raise Unreadable(f"{where}: {first['msg']}") from error
    except ValueError as error:
        raise Unreadable(f"{name}: {error}") from error


def without_none(annotation: Any) -> tuple[Any, bool]:
    """`annotation` with None taken out, and whether it was in."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    optional = len(kinds) < len(get_args(annotation))
    return (kinds[0], optional) if len(kinds) == 1 else (annotation, optional)


def enum_values(kind: enum.EnumMeta) -> list[Any]:
    """The values of an enum's members, in order."""
    return [cast("enum.Enum", member).value for member in kind]


def _mended(value: Any, kind: Any) -> Any:
    """`value` with the slips put right that models make for this kind of field."""
    if kind is str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else value
    if kind is bool and isinstance(value, str):
        return value.strip().strip(".\"'*` ").lower()
    if isinstance(kind, enum.EnumMeta):
        return _nearest(value, enum_values(kind))
    if get_origin(kind) is Literal:
        return _nearest(value, get_args(kind))
    if get_origin(kind) is list:
        return _mended_list(value, get_args(kind)[0])
    if isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
        return _mended_model(cast("dict[str, Any]", value), kind)
    return value


def _mended_list(value: Any, kind: Any) -> Any:
    if isinstance(value, str):
        found = json_repair.loads(value) if value.lstrip().startswith(("[", "{")) else value
        if isinstance(found, str) and kind is str:
            found = [_BULLET.sub("", line).strip() for line in value.splitlines() if line.strip()]
        value = found
    if isinstance(value, dict) and len(value) == 1 and isinstance(next(iter(value.values())), list):
        value = next(iter(value.values()))
    if isinstance(value, list):
        return [_mended(item, kind) for item in cast("list[Any]", value) if item is not None]
    return value


def _mended_model(value: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    mended = dict(value)
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, enum.EnumMeta) and name in mended:
            mended[name] = _nearest(mended[name], enum_values(field.annotation))
    return mended


def _nearest(value: Any, allowed: Any) -> Any:
    """The allowed text that `value` means: same but for case and punctuation, or one is a prefix of the other."""
    if value in allowed or not isinstance(value, str):
        return value
    wanted = _letters(value.rsplit(".", 1)[-1] if value.count(".") == 1 else value)
    same = [item for item in allowed if _letters(str(item)) == wanted]
    alike = [
        item
        for item in allowed
        if wanted and (wanted.startswith(_letters(str(item))) or _letters(str(item)).startswith(wanted))
    ]
    for found in (same, alike):
        if len(found) == 1:
            return found[0]
    raise ValueError(f"{value!r} is not one of {', '.join(map(str, allowed))}")


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).casefold()
