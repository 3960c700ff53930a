"""A run as text: the tree with one line a node, a result for people, durations and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

import orjson

from roma_ray.cli.oneline import one_line
from roma_ray.engine.result import Result
from roma_ray.engine.state import ROOT, Node, RunState
from roma_ray.types import Json, NodeStatus, Usage

MARKS = {
    NodeStatus.PENDING: "·",
    NodeStatus.RUNNING: "▸",
    NodeStatus.WAITING: "?",
    NodeStatus.COMPLETED: "✓",
    NodeStatus.PARTIAL: "~",
    NodeStatus.FAILED: "✗",
    NodeStatus.SKIPPED: "-",
    NodeStatus.CANCELLED: "-",
}
"""One letter for each state; the word always stands beside it."""

_LIVELY = (NodeStatus.RUNNING, NodeStatus.FAILED, NodeStatus.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One line of the drawn tree; `node` is None where lines were left out."""

    branch: str
    text: str
    node: Node | None = None


def tree_lines(state: RunState, *, width: int = 100, most: int | None = None, now_s: float = 0.0) -> list[TreeLine]:
    """The tree of a run, one line of `width` characters a node.

    With `most`, a larger tree shows what runs or failed and the way to it, and counts the rest. `now_s` is the
    wall-clock time for what still runs; 0 leaves it out.
    """
    if ROOT not in state.nodes:
        return []
    kept = _kept(state, most) if most is not None and len(state.nodes) > most else None
    lines = [_line(node, branch, width, now_s) for node, branch in _drawn(state, kept)]
    if kept is None:
        return lines
    left_out = sum(1 for _ in state.walk()) - len(lines)
    return [*lines, TreeLine(branch="", text=f"… and {left_out} more nodes")] if left_out else lines


def answer_text(result: Result) -> str:
    """The answer alone, as `output=text` prints it; empty when there is none."""
    return value_text(result.output)


def answer_markdown(result: Result) -> str:
    """The answer under its goal, with its sources and what is missing, as `output=markdown` prints it."""
    output = result.output
    body = output if isinstance(output, str) else f"```json\n{value_text(output)}\n```" if output is not None else ""
    parts = [f"# {' '.join(result.goal.split())}", body or "*No answer.*"]
    if result.sources:
        parts.append("## Sources\n\n" + "\n".join(f"- {source}" for source in result.sources))
    notes = [*result.warnings, *([f"{result.fault.message}"] if result.fault else [])]
    if notes:
        parts.append("## Notes\n\n" + "\n".join(f"- {note}" for note in notes))
    parts.append(f"---\nrun `{result.run_id}`, {summary(result)}")
    return "\n\n".join(parts)


def summary(result: Result) -> str:
    """How it ended, how long it took and what it cost, on one line."""
    limit = f" at {result.limit_reached}" if result.limit_reached else ""
    return f"{result.status.value}{limit}, {seconds(result.wall_s)}, {usage_text(result.usage)}"


def usage_text(usage: Usage) -> str:
    """`12 calls (1 failed, 2 known), 3,400 tokens, $0.0123`."""
    extra = [f"{usage.failed_calls} failed"] if usage.failed_calls else []
    extra += [f"{usage.cached_calls} known"] if usage.cached_calls else []
    calls = f"{usage.lm_calls} {'call' if usage.lm_calls == 1 else 'calls'}" + (
        f" ({', '.join(extra)})" if extra else ""
    )
    cost = "price unknown" if usage.cost_usd is None else f"${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return ", ".join(filter(None, [calls, f"{usage.tokens:,} tokens", cost]))


def seconds(value_s: float) -> str:
    """A duration for people: `0.4 s`, `12 s`, `3 min 05 s`, `2 h 10 min`."""
    if value_s < 10:
        return f"{value_s:.1f} s"
    whole = round(value_s)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def value_text(value: Json) -> str:
    """Text as it is, anything else as indented JSON, None as nothing."""
    if value is None or isinstance(value, str):
        return value or ""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def cut(text: str, width: int) -> str:
    """`text` on one line of at most `width` characters."""
    flat = one_line(text)
    return flat if len(flat) <= width else flat[: max(0, width - 1)] + "…"


def _drawn(state: RunState, kept: Set[str] | None) -> Iterator[tuple[Node, str]]:
    """Nodes with the branch before them, parents before children."""
    stack = [(ROOT, "", "")]
    while stack:
        node_id, branch, below = stack.pop()
        node = state.nodes[node_id]
        yield node, branch
        children = [child for child in node.children if kept is None or child in kept]
        for child in reversed(children):
            is_last = child == children[-1]
            stack.append((child, below + ("└─ " if is_last else "├─ "), below + ("   " if is_last else "│  ")))


def _kept(state: RunState, most: int) -> set[str]:
    """At most `most` nodes: the root, what is lively with its ancestors, then the rest in order."""
    kept = {ROOT}
    in_order = list(state.walk())
    for node in sorted(in_order, key=lambda n: n.status not in _LIVELY):
        if len(kept) >= most:
            break
        path = {node.id}
        while node.parent and node.parent not in kept:
            node = state.nodes[node.parent]
            path.add(node.id)
        if len(kept | path) <= most:
            kept |= path
    return kept


def _line(node: Node, branch: str, width: int, now_s: float) -> TreeLine:
    kind = node.task_type.value if node.parent else ""
    name = " ".join(filter(None, [MARKS[node.status], node.id, kind]))
    facts = "  ".join(_facts(node, now_s))
    room = max(12, width - len(branch) - len(name) - len(facts) - 4)
    return TreeLine(branch=branch, text=f"{name}  {cut(node.goal, room)}  {facts}", node=node)


def _facts(node: Node, now_s: float) -> Iterator[str]:
    yield "waits for approval" if node.status is NodeStatus.WAITING else node.status.value
    if node.waits_for and node.status is NodeStatus.RUNNING:
        yield f"waits for {node.waits_for}"
    end_s = node.ended_at or now_s
    if node.started_at and end_s:
        yield seconds(max(0.0, end_s - node.started_at))
    if node.usage.lm_calls:
        yield f"{node.usage.lm_calls} {'call' if node.usage.lm_calls == 1 else 'calls'}"
    if node.same_as:
        yield f"same as {node.same_as}"
    elif node.depends_on and node.status is NodeStatus.PENDING:
        yield "after " + ", ".join(node.depends_on)
