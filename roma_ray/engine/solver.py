"""The recursion: a goal is done at once, or planned into subtasks that are solved the same way and put together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from roma_ray.engine.run import Run
from roma_ray.engine.state import Node, Solved
from roma_ray.types import StepKey


async def solve_node(run: Run, node: Node, inputs: Sequence[Solved]) -> Solved:
    """Solve one node; `inputs` are the results that it depends on and those handed down to it."""
    best: Solved | None = None
    for revision in run.revisions(node):
        key = StepKey(node.id, "descend", revision)
        outcome = await run.step(key, inputs)
        if outcome.plan:
            children = await solve_plan(run, node, revision, inputs)
            key = StepKey(node.id, "ascend", revision)
            outcome = await run.step(key, children)
        best = run.better(best, Solved(node, key, outcome))
        if outcome.accepted:
            break
    assert best is not None
    return best


async def solve_plan(run: Run, parent: Node, revision: int, inputs: Sequence[Solved]) -> list[Solved]:
    """Solve the subtasks of a plan, each as soon as what it depends on is there; the results are in plan order."""
    tasks: dict[str, asyncio.Task[Solved]] = {}

    async def solve_child(child: Node) -> Solved:
        needed = [await asyncio.shield(tasks[node_id]) for node_id in child.depends_on]
        if needed and not any(solved.outcome.has_value for solved in needed):
            return await run.skip(child, needed)
        return await solve_node(run, child, [*inputs, *needed])

    async with asyncio.TaskGroup() as group:
        # The plan's edges may point forwards: every task exists before the first one runs.
        for child in run.children(parent, revision):
            tasks[child.id] = group.create_task(solve_child(child), name=child.id)
    return [task.result() for task in tasks.values()]
