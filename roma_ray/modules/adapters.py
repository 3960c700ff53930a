"""How fields are asked for and read: marked text, or JSON with a bounded schema. One bad answer costs one call.

Both adapters differ from DSPy's own in four ways: nothing is asked a second time behind one's back, answers are read by
`reading.py`, prompts are short and put together once per signature, and an input that is None is left out.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import dspy
from dspy.adapters.types.base_type import Type as DspyType
from dspy.adapters.utils import (
    format_field_value,
    get_field_description_string,
    serialize_for_json,
    translate_field_type,
)
from dspy.utils.exceptions import AdapterParseError

from roma_ray.errors import ConfigError
from roma_ray.modules.memo import Memo
from roma_ray.modules.reading import Unreadable, enum_values, read_answer, visible, without_none
from roma_ray.modules.schemas import Bounds, Schema, response_format
from roma_ray.types import SubTask

Signature = type[dspy.Signature]

_KEPT_SIGNATURES = 64
_KEPT_DEMOS = 8


@dataclass(slots=True)
class Heard:
    """The raw text of the last answer, thinking left out; the adapters write it for whoever set `heard`."""

    text: str = ""


heard: ContextVar[Heard | None] = ContextVar("roma_ray_heard", default=None)


class UnreadableAnswer(AdapterParseError):
    """DSPy's parse error with our one-line `reason`."""

    def __init__(self, *, adapter: str, signature: Signature, text: str, reason: str) -> None:
        # DSPy declares an instance here and means the class.
        super().__init__(adapter_name=adapter, signature=signature, lm_response=text, message=reason)  # type: ignore[arg-type]
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _FormattedDemos:
    demos: list[Any]
    messages: list[dict[str, Any]]


class _Reading:
    """What both adapters share: putting prompts together and reading answers."""

    def __init__(self, bounds: Bounds | None, **options: Any) -> None:
        super().__init__(**options)
        self.bounds = bounds or Bounds()
        self._systems: Memo[Signature, str] = Memo(_KEPT_SIGNATURES)
        self._demos: Memo[tuple[Any, ...], _FormattedDemos] = Memo(_KEPT_DEMOS)

    def format_system_message(self, signature: Signature) -> str:
        return self._systems.get(signature, lambda: self._system_message(signature))

    def _system_message(self, signature: Signature) -> str:
        inputs = _described(signature.input_fields)
        return f"{signature.instructions.strip()}\n\nInput fields:\n{inputs}\n\n{self._answer_form(signature)}"

    def _answer_form(self, signature: Signature) -> str:
        raise NotImplementedError

    def format_user_message_content(
        self,
        signature: Signature,
        inputs: Mapping[str, Any],
        prefix: str = "",
        suffix: str = "",
        main_request: bool = False,
    ) -> str:
        parts = [prefix] if prefix else []
        for name, field in signature.input_fields.items():
            if inputs.get(name) is not None:
                parts.append(f"[[ ## {name} ## ]]\n{_shown(field, inputs[name])}")
        if main_request:
            parts.append(self._reminder(signature))
        if suffix:
            parts.append(suffix)
        return "\n\n".join(parts)

    def _reminder(self, signature: Signature) -> str:
        raise NotImplementedError

    def format_demos(self, signature: Signature, demos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Each demo as a question and its answer; what a demo leaves out stays out, without a word about it."""
        key = (signature, *map(id, demos))
        # The demos are kept with their messages, so that an id in a key never means another object.
        kept = self._demos.get(key, lambda: _FormattedDemos(list(demos), self._demo_messages(signature, demos)))
        return list(kept.messages)

    def _demo_messages(self, signature: Signature, demos: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for demo in demos:
            values = dict(demo)
            question = self.format_user_message_content(signature, values)
            answer = self.format_assistant_message_content(signature, values)  # type: ignore[attr-defined]
            if question and values.keys() & signature.output_fields.keys():
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return messages

    def _call_postprocess(
        self, processed_signature: Signature, original_signature: Signature, outputs: list[Any], lm: Any, lm_kwargs: Any
    ) -> list[dict[str, Any]]:
        last = outputs[-1] if outputs else ""
        text = visible((last.get("text") if isinstance(last, dict) else last) or "")
        listener = heard.get()
        if listener is not None:
            listener.text = text
        calls_tool = isinstance(last, dict) and last.get("tool_calls")
        if not text and not calls_tool:
            raise UnreadableAnswer(
                adapter=type(self).__name__, signature=original_signature, text="", reason="it is empty"
            )
        return super()._call_postprocess(  # type: ignore[misc]
            processed_signature, original_signature, outputs, lm, lm_kwargs
        )

    def parse(self, signature: Signature, completion: str) -> dict[str, Any]:
        try:
            return read_answer(signature, visible(completion))
        except Unreadable as fault:
            raise UnreadableAnswer(
                adapter=type(self).__name__, signature=signature, text=completion, reason=str(fault)
            ) from fault


class ChatAdapter(_Reading, dspy.ChatAdapter):
    """Fields as marked sections of text: for every model."""

    def __init__(self, bounds: Bounds | None = None, **options: Any) -> None:
        super().__init__(bounds, use_json_adapter_fallback=False, **options)

    def _answer_form(self, signature: Signature) -> str:
        notes = _notes(signature.output_fields, self.bounds)
        sections = "\n\n".join(f"[[ ## {name} ## ]]\n{{{note}}}" for name, note in notes.items())
        return f"Answer in exactly this form:\n\n{sections}\n\n[[ ## completed ## ]]"

    def format_assistant_message_content(
        self, signature: Signature, outputs: Mapping[str, Any], missing_field_message: str | None = None
    ) -> str:
        filled = {name: value for name, value in outputs.items() if value is not None}
        return super().format_assistant_message_content(signature, filled, missing_field_message or "null")

    def _reminder(self, signature: Signature) -> str:
        headings = ", then ".join(f"`[[ ## {name} ## ]]`" for name in signature.output_fields)
        return f"Respond with {headings}, and then `[[ ## completed ## ]]`."


class JSONAdapter(_Reading, dspy.JSONAdapter):
    """Fields as one JSON object, with a bounded schema where the endpoint obeys one."""

    def __init__(self, bounds: Bounds | None = None, **options: Any) -> None:
        options.setdefault("use_native_function_calling", False)
        super().__init__(bounds, **options)
        self.use_json_adapter_fallback = False
        self._formats: Memo[Signature, Schema] = Memo(_KEPT_SIGNATURES)

    def _prepare_response_format(self, lm: dspy.BaseLM, lm_kwargs: dict[str, Any], signature: Signature) -> None:
        if "response_format" not in lm.supported_params:
            return
        lm_kwargs["response_format"] = {"type": "json_object"}
        if lm.supports_response_schema:
            schema = self._formats.get(signature, lambda: response_format(signature, self.bounds))
            lm_kwargs["response_format"] = schema

    def _answer_form(self, signature: Signature) -> str:
        notes = _notes(_without_open_mappings(signature), self.bounds)
        fields = ",\n".join(f'  "{name}": {note}' for name, note in notes.items())
        return f"Answer with one JSON object and nothing else:\n{{\n{fields}\n}}"

    def format_assistant_message_content(
        self, signature: Signature, outputs: Mapping[str, Any], missing_field_message: str | None = None
    ) -> str:
        asked = {name: outputs.get(name, missing_field_message) for name in _without_open_mappings(signature)}
        return json.dumps(serialize_for_json(asked), ensure_ascii=False)

    def _reminder(self, signature: Signature) -> str:
        names = ", then ".join(f"`{name}`" for name in _without_open_mappings(signature))
        return f"Respond with a JSON object in the following order of fields: {names}."


def make_adapter(adapter: str | dspy.Adapter | None, bounds: Bounds | None = None) -> dspy.Adapter:
    """The adapter that `adapter` names: `chat` (also None), `json`, or an adapter object, which is taken as it is.

    Raises ConfigError for another name.
    """
    if isinstance(adapter, dspy.Adapter):
        return adapter
    match (adapter or "chat").lower().removesuffix("adapter").rstrip("_"):
        case "chat":
            return ChatAdapter(bounds)
        case "json":
            return JSONAdapter(bounds)
        case _:
            raise ConfigError(f"unknown adapter {adapter!r}; one of: chat, json")


def _described(fields: Mapping[str, Any]) -> str:
    if any(_is_dspy_type(field.annotation) for field in fields.values()):
        return get_field_description_string(dict(fields))
    return "\n".join(f"- {name}: {_description(name, field)}" for name, field in fields.items())


def _without_open_mappings(signature: Signature) -> dict[str, Any]:
    """The output fields without optional open mappings, for which a strict schema has no form."""
    fields: Mapping[str, Any] = signature.output_fields
    return {
        name: field
        for name, field in fields.items()
        if field.is_required() or get_origin(without_none(field.annotation)[0]) is not dict
    }


def _notes(fields: Mapping[str, Any], bounds: Bounds) -> dict[str, str]:
    """What to write for each output field."""
    return {name: _note(name, field, bounds) for name, field in fields.items()}


def _note(name: str, field: Any, bounds: Bounds) -> str:
    kind, optional = without_none(field.annotation)
    if _is_dspy_type(kind):
        return f"{translate_field_type(name, field)}\n{get_field_description_string({name: field})}"
    description = _description(name, field)
    text = f"{_form(kind, name, field, bounds)}; {description}" if kind is not str else description
    return f"{text}, or null" if optional else text


def _form(kind: Any, name: str, field: Any, bounds: Bounds) -> str:
    if kind is bool:
        return "true or false"
    if isinstance(kind, enum.EnumMeta):
        return " or ".join(map(str, enum_values(kind)))
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if kind == list[SubTask]:
        return _subtasks_form(bounds)
    if kind == list[str]:
        return "a JSON list of texts"
    if get_origin(kind) is dict or kind is dict:
        return "a JSON object"
    if kind in (int, float):
        return "a number"
    return "any text or JSON value" if kind is Any else translate_field_type(name, field)


def _subtasks_form(bounds: Bounds) -> str:
    kinds = " or ".join(kind.value for kind in bounds.task_types)
    return (
        f'a JSON list of at most {bounds.max_subtasks} objects {{"goal": text, "task_type": {kinds}, '
        '"dependencies": list of numbers as text, like ["0"] or []}'
    )


def _description(name: str, field: Any) -> str:
    description = (field.json_schema_extra or {}).get("desc") or ""
    # DSPy's own stand-in for a field without a description.
    return name.replace("_", " ") if description in ("", f"${{{name}}}") else description


def _shown(field: Any, value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value and all(isinstance(item, SubTask) for item in value):
        return "\n\n".join(_shown_subtask(index, task) for index, task in enumerate(value))
    return format_field_value(field_info=field, value=value)


def _shown_subtask(index: int, task: SubTask) -> str:
    lines = [f"({index}) {task.goal}"]
    if task.context_input:
        lines.append(f"given: {task.context_input}")
    lines.append(f"result: {task.result}" if task.result else "result: (none)")
    return "\n".join(lines)


def _is_dspy_type(kind: Any) -> bool:
    return any(isinstance(part, type) and issubclass(part, DspyType) for part in (kind, *get_args(kind)))
