"""`roma-ray diff RUN RUN`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roma_ray.cli.output import print_json, print_text
from roma_ray.cli.reading import read_events
from roma_ray.cli.render import cut
from roma_ray.engine.diff import Change, RunDiff, diff
from roma_ray.engine.tree import fold
from roma_ray.types import Json

_SHOWN_CHARS = 70


def print_diff(before: str, after: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print in which respects two runs differ. Raises RunNotFound."""
    found = diff(fold(read_events(overrides, before)), fold(read_events(overrides, after)))
    if as_json:
        print_json(found.to_plain())
    else:
        print_text("\n".join(_lines(found)))


def _lines(found: RunDiff) -> Iterator[str]:
    yield f"--- run {found.before}"
    yield f"+++ run {found.after}"
    for heading, changes in (("run", found.run), ("settings", found.settings)):
        if changes:
            yield f"\n{heading}"
            yield from map(_change_line, changes)
    for sign, names in (("-", found.only_before), ("+", found.only_after)):
        if names:
            yield f"\nonly in {sign}: {', '.join(names)}"
    for node in found.nodes:
        yield f"\n{node.id}"
        yield from map(_change_line, node.changes)
        if node.output:
            yield "    output"
            yield from (f"        {line}" for line in node.output)
    if not (found.run or found.settings or found.only_before or found.only_after or found.nodes):
        yield "\nnothing differs"


def _change_line(change: Change) -> str:
    return f"    {change.name}: {_shown(change.before)} → {_shown(change.after)}"


def _shown(value: Json) -> str:
    match value:
        case None:
            return "none"
        case float():
            return f"{value:.6g}"
        case list():
            return cut(f"[{', '.join(map(str, value))}]", _SHOWN_CHARS)
        case _:
            return cut(str(value), _SHOWN_CHARS)
