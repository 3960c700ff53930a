"""The answer to an ask, by rule: the same ask gets the same answer, and what it was built from can be read off it.

The Executor says `OUT-<digest of the goal>(<goal's head>; from <answers in its context>)`, the Aggregator
`SYN-<digest>(<head>; from <answers in subtasks_results>)`, so that a test sees which values reached which node.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from tests.scripted.directives import Directives, out_token, plan_of, read_directives, syn_token
from tests.scripted.prompts import Ask, Field

_HEAD_CHARS = 40
_TOKEN = re.compile(r"\b((?:OUT|SYN)-[0-9a-f]{8})\(")
_TOOL = re.compile(r"^\s*(?:\(\d+\) )?(\w+), whose description is .*?It takes arguments (\{.*?\})\.?$", re.M | re.S)
_LAST_TOOLS = ("finish", "submit")


def values_for(ask: Ask, ask_number: int, verdict: bool) -> dict[str, Any]:
    """The right values of all fields of `ask`, which is the `ask_number`-th (from 1) of its role and goal."""
    directives = read_directives(ask.goal)
    return {field.name: _value(field, ask, directives, ask_number, verdict) for field in ask.fields}


def _value(field: Field, ask: Ask, directives: Directives, ask_number: int, verdict: bool) -> Any:
    match field.name:
        case "is_atomic" | "node_type":
            return _decision(field.name, directives)
        case "subtasks":
            return plan_of(ask.goal, ask_number)[0]
        case "dependencies_graph":
            return plan_of(ask.goal, ask_number)[1]
        case "output" if field.kind in ("", "str") and _takes_text(field.schema):
            return executor_text(ask, directives)
        case "synthesized_result":
            return aggregator_text(ask, directives)
        case "sources":
            return directives.words["SRC"].split(",") if "SRC" in directives.words else []
        case "verdict":
            return verdict
        case "feedback":
            return "Good as it is." if verdict else f"Rejected: say more about {_head(directives)}"
        case "next_tool_name" | "next_tool_args" | "tool_calls":
            return _tool_step(field.name, ask, directives)
        case _:
            return _filler(field, ask, directives)


def _decision(name: str, directives: Directives) -> Any:
    if "ASAYS" in directives.words:
        is_atomic, _, node_type = directives.words["ASAYS"].partition(":")
        return is_atomic == "true" if name == "is_atomic" else node_type
    if name == "is_atomic":
        return not directives.plans
    return "PLAN" if directives.plans else "EXECUTE"


def aggregator_text(ask: Ask, directives: Directives) -> str:
    """What the Aggregator says; it is built from the results it was given, never from other context."""
    return directives.blocks.get("GSAY") or _built(syn_token(ask.goal), directives, ask.given("subtasks_results"))


def executor_text(ask: Ask, directives: Directives) -> str:
    """What the Executor says, as one text."""
    text = directives.blocks.get("ESAY") or _built(out_token(ask.goal), directives, ask.without_goal)
    missing = int(directives.words.get("SIZE", 0)) - len(text)
    return text if missing <= 0 else text + (" filler" * (missing // 7 + 1))[:missing]


def _built(token: str, directives: Directives, seen_in: str) -> str:
    seen = ", ".join(dict.fromkeys(_TOKEN.findall(seen_in)))
    return f"{token}({_head(directives)}; from {seen or 'nothing'})"


def _head(directives: Directives) -> str:
    return re.sub(r"[()\[\]{}\"\\\s]+", " ", directives.text).strip()[:_HEAD_CHARS]


def _takes_text(schema: dict[str, Any] | None) -> bool:
    return schema is None or "string" in json.dumps(schema.get("type") or schema.get("anyOf") or "string")


def _tool_step(name: str, ask: Ask, directives: Directives) -> Any:
    """Calls the first tool once, then ends the loop."""
    tool, args = _next_tool(ask, directives, _tools(ask))
    if name == "tool_calls":
        return {"tool_calls": [{"name": tool, "args": args}]}
    return tool if name == "next_tool_name" else args


def _tools(ask: Ask) -> dict[str, str]:
    """The tools that the prompt describes, each with its arguments as they are shown."""
    listed = ask.given("tools")
    return dict(_TOOL.findall("\n".join(json.loads(listed)) if listed else ask.system))


def _next_tool(ask: Ask, directives: Directives, tools: dict[str, str]) -> tuple[str, dict[str, Any]]:
    wanted = directives.words.get("TOOL") or next((tool for tool in tools if tool not in _LAST_TOOLS), None)
    if wanted is None or ask.tool_called:
        last = next((tool for tool in tools if tool in _LAST_TOOLS), "finish")
        arguments = _arguments(tools.get(last, "{}"))
        return last, {n: _value(Field(n, "", schema), ask, directives, 1, True) for n, schema in arguments.items()}
    if "TOOLARGS" in directives.blocks:
        return wanted, json.loads(directives.blocks["TOOLARGS"])
    arguments = _arguments(tools.get(wanted, "{}"))
    return wanted, {n: instance_of(schema) for n, schema in arguments.items() if "default" not in schema}


def _arguments(shown: str) -> dict[str, Any]:
    return ast.literal_eval(shown)


def _filler(field: Field, ask: Ask, directives: Directives) -> Any:
    """A plausible value for a field that no rule knows, such as `reasoning`."""
    if field.schema is not None:
        return instance_of(field.schema)
    kind = field.kind
    if literal := re.match(r"Literal\[(.*)\]", kind):
        return ast.literal_eval(f"[{literal[1]}]")[0]
    if ask.role == "other" and kind == "str":
        return executor_text(ask, directives)
    thought = f"Thinking about {_head(directives)}."
    by_kind = {"bool": True, "int": 1, "float": 0.5, "list": [], "dict": {}, "str": thought}
    return by_kind.get(re.split(r"\W", kind)[0])


def instance_of(schema: dict[str, Any]) -> Any:
    """A small value that fits a JSON schema (types, enum, const, anyOf, $ref, required properties, bounds)."""
    definitions = schema.get("$defs", {})
    if "$ref" in schema:
        return instance_of({**definitions[schema["$ref"].rsplit("/", 1)[-1]], "$defs": definitions})
    if "const" in schema or "enum" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return instance_of({**choices[0], "$defs": definitions})
    match schema.get("type", "string"):
        case "object":
            properties = {n: s for n, s in schema.get("properties", {}).items() if n in schema.get("required", ())}
            return {name: instance_of({**inner, "$defs": definitions}) for name, inner in properties.items()}
        case "array":
            item = {**schema.get("items", {}), "$defs": definitions}
            return [instance_of(item) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "some text"[: schema.get("maxLength")]


def render(values: dict[str, Any], ask: Ask) -> str:
    """The values in the form that the ask wants."""
    if ask.form == "json":
        return json.dumps(values, ensure_ascii=False)
    sections = [f"[[ ## {name} ## ]]\n{_chat_text(value)}" for name, value in values.items()]
    return "\n\n".join([*sections, "[[ ## completed ## ]]"])


def _chat_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def wrapped_in_thoughts(content: str, ask: Ask) -> str:
    """The right answer, with what reasoning models put around it."""
    thought = '<think>\nLet me see. Maybe {"draft": true}? No.\n</think>\n\n'
    return f"{thought}```json\n{content}\n```" if ask.form == "json" else f"{thought}{content}"


def echo_of(ask: Ask) -> str:
    """The asked form itself instead of values in it, copied from the prompt where it stands there."""
    if ask.form == "chat":
        first, last = f"[[ ## {ask.fields[0].name} ## ]]", "[[ ## completed ## ]]"
        shown = ask.system.rpartition(first)[2].partition(last)[0]
        return f"{first}{shown}{last}" if shown else render({f.name: f"{{{f.name}}}" for f in ask.fields}, ask)
    names = {field.name: {"type": "string"} for field in ask.fields}
    return json.dumps(ask.schema or {"type": "object", "properties": names, "required": list(names)})


def with_wrong_types(values: dict[str, Any]) -> dict[str, Any]:
    """The values, each typed field replaced by something that does not fit it."""
    wrong = {"is_atomic": "maybe", "node_type": "PERHAPS", "subtasks": "first this, then that", "verdict": "perhaps"}
    wrong |= {"dependencies_graph": "none at all", "sources": 7, "output": {"nested": [1]}, "synthesized_result": [1]}
    return {name: wrong.get(name, value) for name, value in values.items()}
