"""What a model is told besides the goal. Pure: the same work gives the same text, byte for byte.

Order matters for providers that cache prompt prefixes: what is stable in a run first (the goals above and beside this
one), then the day, then the values that this node was given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roma_ray.engine.request import InputSpec, StepRequest
from roma_ray.types import SubTask

CHARS_PER_TOKEN = 4
"""A rough mean for English prose and code, good enough to share a window out."""

NEAREST_SIBLINGS = 20
_LONGEST_GOAL_CHARS = 6_000
_LONGEST_SIBLING_CHARS = 300
_SMALLEST_SHARE_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """An input with its value as text; `text` is None where there is no value."""

    spec: InputSpec
    text: str | None


def build_context(
    request: StepRequest, materials: Sequence[Material], *, day: str, share_tokens: int, notes: Sequence[str] = ()
) -> str:
    """The `context` input of Atomizer, Planner, Executor and Verifier; `share_tokens` is for all values together."""
    parts = [*_position(request), f"Today is {day}.", *_values(materials, share_tokens), *notes]
    if request.feedback:
        parts.append(f"An earlier attempt was not accepted. Do better on this: {request.feedback}")
    return "\n\n".join(parts)


def build_results(materials: Sequence[Material], *, share_tokens: int) -> list[SubTask]:
    """The `subtasks_results` input of the Aggregator, in plan order; what is missing says why in its place."""
    budget = _share_chars(materials, share_tokens)
    return [
        SubTask(
            goal=_cut(m.spec.goal, _LONGEST_GOAL_CHARS),
            task_type=m.spec.task_type,
            dependencies=list(m.spec.depends_on),
            result=_shown(m, budget) if m.text is not None else f"[no result: {_reason(m.spec)}]",
        )
        for m in materials
    ]


def in_groups(sizes_chars: Sequence[int], *, share_tokens: int) -> list[range]:
    """How an Aggregator with too much input folds it: index ranges, each of which leaves every result a fair share.

    One range where everything fits, or where a share of at least 500 tokens is left for each.
    """
    total = share_tokens * CHARS_PER_TOKEN
    count = len(sizes_chars)
    if sum(min(size, _SMALLEST_SHARE_CHARS) for size in sizes_chars) <= total:
        return [range(count)]
    per_group = max(2, total // _SMALLEST_SHARE_CHARS)
    return [range(start, min(start + per_group, count)) for start in range(0, count, per_group)]


def _position(request: StepRequest) -> list[str]:
    if request.is_root:
        return []
    root, *between = request.ancestors
    parts = [f"Overall goal: {_cut(root, _LONGEST_GOAL_CHARS)}"]
    if between:
        steps = "\n".join(f"- {_cut(goal, _LONGEST_GOAL_CHARS)}" for goal in between)
        parts.append(f"This goal is a part of:\n{steps}")
    if request.siblings:
        shown, count = len(request.siblings), request.sibling_count
        heading = "Other parts of the same plan" + (f" (the nearest {shown} of {count})" if count > shown else "")
        goals = "\n".join(f"- {_cut(goal, _LONGEST_SIBLING_CHARS)}" for goal in request.siblings)
        parts.append(f"{heading}, done elsewhere:\n{goals}")
    return parts


def _values(materials: Sequence[Material], share_tokens: int) -> list[str]:
    budget = _share_chars(materials, share_tokens)
    parts: list[str] = []
    for m in materials:
        goal = _cut(m.spec.goal, _LONGEST_SIBLING_CHARS)
        if m.text is None:
            parts.append(f"Missing: {goal} ({_reason(m.spec)})")
        else:
            parts.append(f"Result of: {goal}\n<result>\n{_shown(m, budget)}\n</result>")
    return parts


def _reason(spec: InputSpec) -> str:
    return f"{spec.status}: {spec.fault.message}" if spec.fault else str(spec.status)


def _share_chars(materials: Sequence[Material], share_tokens: int) -> int:
    """The longest text that each value may have, so that all fit: short ones leave their rest to the long ones."""
    left = share_tokens * CHARS_PER_TOKEN
    sizes = sorted(len(m.text) for m in materials if m.text is not None)
    for i, size in enumerate(sizes):
        fair = left // (len(sizes) - i)
        if size > fair:
            return max(fair, 1)
        left -= size
    return sizes[-1] if sizes else left


def _shown(material: Material, budget: int) -> str:
    text = material.text or ""
    if len(text) <= budget:
        return text
    where = f"; the whole is stored as {material.spec.where}" if material.spec.where else ""
    return f"{text[:budget]}\n[cut: the first {budget} of {len(text)} characters{where}]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [cut: {len(text)} characters]"
