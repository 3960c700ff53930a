"""Checking a Planner's answer in code before any subtask starts, and mending what the model did not mend itself.

`read_plan` gives a plan together with everything that is wrong with it. The Planner is told once (`PlanFaulty`); what
is still wrong then is repaired deterministically, each repair with a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roma_ray.errors import PlanFaulty
from roma_ray.types import Plan, PlannedTask, SubTask, TaskType


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRules:
    """What a plan of one node must keep to. `ancestors` are the goals from the root to the node itself."""

    max_subtasks: int
    task_types: tuple[TaskType, ...]
    ancestors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """A plan as repaired (None where nothing was left: treat the node as atomic) and what had to be repaired."""

    plan: Plan | None
    repairs: tuple[str, ...] = ()


def check_plan(subtasks: Sequence[SubTask] | None, graph: Mapping[str, Any] | None, rules: PlanRules) -> Plan:
    """The plan when nothing is wrong with it. Raises PlanFaulty that names every fault, for the model to read."""
    read = read_plan(subtasks, graph, rules)
    if read.repairs or read.plan is None:
        raise PlanFaulty("; ".join(read.repairs))
    return read.plan


def read_plan(subtasks: Sequence[SubTask] | None, graph: Mapping[str, Any] | None, rules: PlanRules) -> ReadPlan:
    """The best plan that can be made of the model's answer.

    A dependency `3`, `"3"` or `"root.0.3"` means position 3 (0-based), null means none; `graph[dependent]` lists what
    it needs and is united with `SubTask.dependencies`.
    """
    repairs: list[str] = []
    tasks = [_Draft(task, i) for i, task in enumerate(subtasks or ())]
    _unite(tasks, graph or {}, repairs)
    tasks = _without_repeated_goals(tasks, rules, repairs)
    tasks = _cut_to_length(tasks, rules, repairs)
    _keep_to_task_types(tasks, rules, repairs)
    if not tasks:
        return ReadPlan(plan=None, repairs=(*repairs, "the plan has no subtask left, so the goal is done at once"))
    _without_cycles(tasks, repairs)
    return ReadPlan(plan=_renumbered(tasks), repairs=tuple(repairs))


def same_goal(text: str) -> str:
    """The form in which goals are compared: case folded, white space collapsed."""
    return re.sub(r"\s+", " ", text).strip().casefold()


class _Draft:
    """A subtask while it is being checked; `needs` holds original positions."""

    __slots__ = ("goal", "needs", "position", "task_type")

    def __init__(self, task: SubTask, position: int) -> None:
        self.goal = task.goal.strip()
        self.task_type = task.task_type
        self.position = position
        self.needs: dict[int | str, None] = dict.fromkeys(map(_position, task.dependencies))


def _position(name: Any) -> int | str:
    """The position that a dependency names, or its text when it names none."""
    text = str(name).strip()
    match = re.fullmatch(r"(?:.*\.)?(\d+)", text)
    return int(match.group(1)) if match else text


def _unite(tasks: list[_Draft], graph: Mapping[str, Any], repairs: list[str]) -> None:
    last = len(tasks) - 1
    for key, needed in graph.items():
        position = _position(key)
        if not isinstance(position, int) or position >= len(tasks):
            repairs.append(f"dependencies_graph names subtask {key!r}, but positions go from 0 to {last}")
            continue
        names = needed if isinstance(needed, list | tuple) else [needed]
        tasks[position].needs |= dict.fromkeys(_position(name) for name in names if name is not None)
    for task in tasks:
        for need in list(task.needs):
            if need == task.position:
                repairs.append(f"subtask {task.position} depends on itself")
            elif isinstance(need, str) or need >= len(tasks):
                repairs.append(f"subtask {task.position} depends on {need!r}, which is not a position from 0 to {last}")
            else:
                continue
            del task.needs[need]


def _without_repeated_goals(tasks: list[_Draft], rules: PlanRules, repairs: list[str]) -> list[_Draft]:
    above = {same_goal(goal) for goal in rules.ancestors}
    first: dict[str, _Draft] = {}
    moved: dict[int | str, int] = {}
    kept: list[_Draft] = []
    dropped: set[int | str] = set()
    for task in tasks:
        goal = same_goal(task.goal)
        if not goal:
            repairs.append(f"subtask {task.position} has an empty goal")
            dropped.add(task.position)
        elif goal in above:
            repairs.append(f"subtask {task.position} repeats a goal that is being solved already: {task.goal[:80]!r}")
            dropped.add(task.position)
        elif goal in first:
            repairs.append(f"subtask {task.position} has the same goal as subtask {first[goal].position}")
            moved[task.position] = first[goal].position
            first[goal].needs |= task.needs
        else:
            first[goal] = task
            kept.append(task)
    for task in kept:
        needs = (moved.get(need, need) for need in task.needs if need not in dropped)
        task.needs = {need: None for need in needs if need != task.position}
    return kept


def _cut_to_length(tasks: list[_Draft], rules: PlanRules, repairs: list[str]) -> list[_Draft]:
    if len(tasks) <= rules.max_subtasks:
        return tasks
    repairs.append(f"{len(tasks)} subtasks are more than the allowed {rules.max_subtasks}; the rest is left out")
    kept = tasks[: rules.max_subtasks]
    positions = {task.position for task in kept}
    for task in kept:
        task.needs = {need: None for need in task.needs if need in positions}
    return kept


def _keep_to_task_types(tasks: list[_Draft], rules: PlanRules, repairs: list[str]) -> None:
    for task in tasks:
        if task.task_type not in rules.task_types:
            offered = ", ".join(rules.task_types)
            repairs.append(
                f"subtask {task.position} is of type {task.task_type}, which nobody can do; one of {offered}"
            )
            task.task_type = TaskType.THINK if TaskType.THINK in rules.task_types else rules.task_types[0]


def _without_cycles(tasks: list[_Draft], repairs: list[str]) -> None:
    """Drop the edge that closes each cycle, found depth first in plan order (iterative: plans can be long chains)."""
    by_position: dict[int | str, _Draft] = {task.position: task for task in tasks}
    done: set[int | str] = set()
    for start in tasks:
        if start.position in done:
            continue
        path: list[_Draft] = [start]
        on_path: set[int | str] = {start.position}
        pending: list[list[int | str]] = [list(start.needs)]
        while path:
            if not pending[-1]:
                pending.pop()
                finished = path.pop()
                on_path.discard(finished.position)
                done.add(finished.position)
                continue
            need = pending[-1].pop(0)
            if need in on_path:
                cycle = [t.position for t in path[[t.position for t in path].index(int(need)) :]]
                edges = " -> ".join(str(p) for p in (*cycle, need))
                repairs.append(f"the dependencies go in a circle: {edges}")
                del path[-1].needs[need]
            elif need not in done:
                path.append(by_position[need])
                on_path.add(need)
                pending.append(list(by_position[need].needs))


def _renumbered(tasks: list[_Draft]) -> Plan:
    """Positions 0 … n-1 again, after some were left out."""
    number = {task.position: i for i, task in enumerate(tasks)}
    return Plan(
        tasks=tuple(
            PlannedTask(
                goal=task.goal,
                task_type=task.task_type,
                depends_on=tuple(sorted(number[int(need)] for need in task.needs)),
            )
            for task in tasks
        )
    )
