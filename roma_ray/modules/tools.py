"""Tools as DSPy takes them: from a list, tuple or mapping of callables, merged and without doubles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy

from roma_ray.errors import ConfigError

Tool = Callable[..., Any] | dspy.Tool
ToolsType = Sequence[Tool] | Mapping[str, Tool]


def as_tools(tools: ToolsType | None) -> tuple[dspy.Tool, ...]:
    """`tools` as DSPy tools, in order; a mapping's keys become the names, the same callable twice counts once.

    Raises ConfigError for another type, for something that cannot be called, and when two callables share a name.
    """
    found: dict[str, dspy.Tool] = {}
    for name, function in _named(tools):
        tool = _as_tool(name, function)
        known = found.setdefault(str(tool.name), tool)
        if not _same(known, tool):
            raise ConfigError(f"two tools are called {tool.name!r}", cure="give them by a mapping of different names")
    return tuple(found.values())


def merged(defaults: Sequence[dspy.Tool], given: Sequence[dspy.Tool]) -> tuple[dspy.Tool, ...]:
    """`defaults` and then what `given` adds; a given tool takes the place of a default of its name."""
    return tuple({str(tool.name): tool for tool in (*defaults, *given)}.values())


def _named(tools: ToolsType | None) -> list[tuple[str | None, Any]]:
    if tools is None:
        return []
    if isinstance(tools, Mapping):
        return list(tools.items())
    if isinstance(tools, list | tuple):
        return [(None, tool) for tool in tools]
    raise ConfigError(f"tools is a {type(tools).__name__}, not a list, tuple or mapping")


def _as_tool(name: str | None, function: Any) -> dspy.Tool:
    if isinstance(function, dspy.Tool):
        return function if name in (None, function.name) else function.model_copy(update={"name": name})
    if not callable(function):
        raise ConfigError(f"tool {name or function!r} cannot be called")
    return dspy.Tool(function, name=name)


def _same(one: dspy.Tool, other: dspy.Tool) -> bool:
    # Bound methods are made anew at each access, so identity is that of the method, which `==` compares.
    return one.func is other.func or one.func == other.func
