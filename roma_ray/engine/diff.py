"""In which respects two runs differ. Pure: two states in, what differs out."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from roma_ray.engine.definition import flat
from roma_ray.engine.state import Node, RunState
from roma_ray.redact import Redactor
from roma_ray.types import Json, Outcome, Usage

_OF_NO_WEIGHT = ("goal", "goal_file", "log", "output", "record", "replay", "resume", "traceback")
"""Settings that have no part in what comes out, and the goal, which is compared as such."""
_SHOWN_LINES = 40
_CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value that is not the same; None where the run has none."""

    name: str
    before: Json
    after: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What differs in one node that both runs have. `output` is a unified diff, cut after 40 lines."""

    id: str
    changes: tuple[Change, ...] = ()
    output: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.changes and not self.output


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """What differs between two runs; everything is empty where they came out alike.

    `only_before` and `only_after` are the nodes, by id, that only one of the present trees has.
    """

    before: str
    after: str
    run: tuple[Change, ...]
    settings: tuple[Change, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    nodes: tuple[NodeChange, ...]

    def to_plain(self) -> dict[str, Json]:
        """The document that `roma-ray diff --json` prints."""
        return {
            "before": self.before,
            "after": self.after,
            "run": _document(self.run),
            "settings": _document(self.settings),
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "nodes": [{"id": n.id, "changes": _document(n.changes), "output": list(n.output)} for n in self.nodes],
        }


def diff(before: RunState, after: RunState) -> RunDiff:
    """What differs between the runs with these states; `run` has goal, status, fault and what each run spent."""
    old, new = {n.id: n for n in before.walk()}, {n.id: n for n in after.walk()}
    nodes = (_node_change(old[node_id], new[node_id]) for node_id in old if node_id in new)
    return RunDiff(
        before=before.run_id,
        after=after.run_id,
        run=tuple(_changes(_facts_of_run(before), _facts_of_run(after))),
        settings=tuple(map(_without_secrets, _changes(_settings(before), _settings(after)))),
        only_before=tuple(node_id for node_id in old if node_id not in new),
        only_after=tuple(node_id for node_id in new if node_id not in old),
        nodes=tuple(change for change in nodes if not change.is_empty),
    )


def _settings(state: RunState) -> dict[str, Json]:
    return {key: value for key, value in flat(state.config) if key.partition(".")[0] not in _OF_NO_WEIGHT}


def _without_secrets(change: Change) -> Change:
    clean = Redactor().data
    return Change(name=change.name, before=clean(change.before), after=clean(change.after))


def _facts_of_run(state: RunState) -> dict[str, Json]:
    fault = state.fault.message if state.fault else None
    return {
        "goal": state.goal,
        "status": state.status.value,
        "limit_reached": state.limit_reached or None,
        "fault": fault,
        "version": state.version,
        **_usage(state.usage),
    }


def _node_change(before: Node, after: Node) -> NodeChange:
    old, new = _text(before.outcome), _text(after.outcome)
    return NodeChange(
        id=before.id,
        changes=tuple(_changes(_facts_of_node(before), _facts_of_node(after))),
        output=() if old == new else tuple(_text_diff(old, new)),
    )


def _facts_of_node(node: Node) -> dict[str, Json]:
    return {
        "goal": node.goal,
        "task_type": node.task_type.value,
        "node_type": node.node_type.value if node.node_type else None,
        "depends_on": list(node.depends_on),
        "status": node.status.value,
        "fault": node.fault.message if node.fault else None,
        **_usage(node.usage),
    }


def _usage(usage: Usage) -> dict[str, Json]:
    return {f"usage.{name}": value for name, value in usage.as_dict().items()}


def _changes(before: Mapping[str, Json], after: Mapping[str, Json]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield Change(name=name, before=old, after=new)


def _text(outcome: Outcome | None) -> str:
    """An output as text; a stored one by its beginning and its hash."""
    if outcome is None or not outcome.has_value:
        return ""
    if outcome.handle is not None:
        return f"{outcome.handle.preview}\n[{outcome.handle.size_bytes} bytes, sha256 {outcome.handle.sha256}]"
    if isinstance(outcome.value, str):
        return outcome.value
    return orjson.dumps(outcome.value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()


def _text_diff(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=_CONTEXT_LINES, lineterm="")
    # The names of the two sides say nothing here.
    found = list(lines)[2:]
    more = len(found) - _SHOWN_LINES
    return found[:_SHOWN_LINES] + ([f"… and {more} more lines"] if more > 0 else [])


def _document(changes: tuple[Change, ...]) -> list[dict[str, Json]]:
    return [{"name": c.name, "before": c.before, "after": c.after} for c in changes]
