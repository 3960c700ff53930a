"""What a chat request asks for: the role, the goal, the output fields and the form of the answer.

It reads DSPy's chat format (`[[ ## field ## ]]`), DSPy's JSON format, and a `response_format` with a JSON schema, whose
properties are then the fields. Demos and earlier turns may stand in between: what counts is the last user message that
states a goal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

Role = Literal["atomizer", "planner", "executor", "aggregator", "verifier", "other"]
Form = Literal["chat", "json"]

_ROLE_OF_FIELD: dict[str, Role] = {
    "is_atomic": "atomizer",
    "node_type": "atomizer",
    "subtasks": "planner",
    "synthesized_result": "aggregator",
    "verdict": "verifier",
    "output": "executor",
}
_GOAL_FIELDS = ("goal", "original_goal")
_RESPOND = "Respond with "
_TOOL_FIELDS = ("next_tool_name", "tool_calls")


@dataclass(frozen=True, slots=True)
class Field:
    """One output field; `kind` is the Python type that the prompt names, `schema` its JSON schema if one was sent."""

    name: str
    kind: str = "str"
    schema: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ask:
    """A request, understood.

    `user` is the message that states the goal and `last_user` the last one, which in a tool loop is another; `turns`
    counts the tool calls before; `schema` is the whole answer's JSON schema.
    """

    role: Role
    goal: str
    fields: tuple[Field, ...]
    form: Form
    system: str
    user: str
    last_user: str
    turns: int
    schema: dict[str, Any] | None = None

    def given(self, name: str) -> str:
        """The text of an input field; empty when it is not there."""
        return _input_field(self.user, name) or _input_field(self.last_user, name)

    @property
    def tool_called(self) -> bool:
        """Whether the trajectory of a tool loop already holds a call."""
        return self.turns > 0 or "[[ ## tool_name_0 ## ]]" in self.user

    @cached_property
    def without_goal(self) -> str:
        """The message that states the goal, the goal itself left out."""
        return self.user.replace(self.goal, "", 1) if self.goal else self.user


def read_ask(body: dict[str, Any]) -> Ask:
    """Understand the body of a chat completion request; what cannot be recognised gets the role `other`."""
    texts = [(message["role"], text_of(message)) for message in body["messages"]]
    system = "\n".join(text for role, text in texts if role in ("system", "developer"))
    users = [text for role, text in texts if role == "user"] or [""]
    user, goal = _stated_goal(users)
    schema = _schema(body.get("response_format"))
    fields, form = _fields(schema, users[-1] if _RESPOND in users[-1] else user, system)
    turns = sum(role == "assistant" and "tool_calls" in text for role, text in texts)
    return Ask(_role(fields, system), goal, fields, form, system, user, users[-1], turns, schema)


def text_of(message: dict[str, Any]) -> str:
    """The text of a message, whose content may be a string or a list of parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))


def _stated_goal(users: list[str]) -> tuple[str, str]:
    for text in reversed(users):
        for name in _GOAL_FIELDS:
            if goal := _input_field(text, name):
                return text, goal
    return users[-1], users[-1].strip()


def _input_field(text: str, name: str) -> str:
    match = _input_pattern(name).search(text)
    return match[1].strip() if match else ""


@lru_cache(maxsize=64)
def _input_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"\[\[ ## {name} ## \]\]\n(.*?)(?=\n\n\[\[ ## \w+ ## \]\]|\n\nRespond with |\Z)", re.S)


def _schema(response_format: Any) -> dict[str, Any] | None:
    if not isinstance(response_format, dict):
        return None
    wrapped = response_format.get("json_schema") or response_format
    return wrapped.get("schema")


def _fields(schema: dict[str, Any] | None, user: str, system: str) -> tuple[tuple[Field, ...], Form]:
    if schema and schema.get("properties"):
        definitions = schema.get("$defs", {})
        return tuple(Field(n, "", {**s, "$defs": definitions}) for n, s in schema["properties"].items()), "json"
    at = user.rfind(_RESPOND)
    if at >= 0:
        return _listed_fields(user[at:])
    listed = re.search(r"Your output fields are:\n(.*?)\nAll interactions", system, re.S)
    names = re.findall(r"^\d+\. `(\w+)` \((.*?)\)", listed[1], re.M) if listed else []
    return tuple(Field(*pair) for pair in names), "json" if "Outputs will be a JSON" in system else "chat"


_LISTED = re.compile(
    r"`(?:\[\[ ## )?(\w+)(?: ## \]\])?`"
    r"(?: \(must be (?:formatted as a valid Python )?(.*?)\)(?=, then `|, and then|\.|$))?"
)


@lru_cache(maxsize=256)
def _listed_fields(requirement: str) -> tuple[tuple[Field, ...], Form]:
    found = _LISTED.findall(requirement)
    fields = tuple(Field(name, kind or "str") for name, kind in found if name != "completed")
    return fields, "json" if "JSON object in the following" in requirement else "chat"


def _role(fields: tuple[Field, ...], system: str) -> Role:
    names = [field.name for field in fields]
    if any(name in _TOOL_FIELDS for name in names):
        # A step of a tool loop asks for the next call only; its instructions say what comes out in the end.
        names = re.findall(r"`(\w+)`", system.partition("objective is:")[2]) or ["output"]
    for name in names:
        if name in _ROLE_OF_FIELD:
            return _ROLE_OF_FIELD[name]
    return "other"
