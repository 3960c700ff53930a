"""What a plan is likely to cost, for `dry_run`: the ideal number of calls, and tokens and money at most."""

from __future__ import annotations

from collections.abc import Mapping

from roma_ray.config import Config, Price, Role
from roma_ray.engine.budget import WorstCase, calls_per_ask
from roma_ray.engine.request import DEFAULT_MAX_TOKENS
from roma_ray.types import Json, NodeType, Outcome, PlannedTask, TaskType


def report(
    planned: Outcome, config: Config, prices: Mapping[tuple[Role, TaskType | None], Price | None]
) -> dict[str, Json]:
    """The plan of the root and an estimate, assuming that no subtask is planned again.

    `calls` is what is still to be made after the dry run; `max_tokens` and `max_cost_usd` (None: a price is unknown)
    assume that every answer is as long as it may be.
    """
    tasks = planned.plan.tasks if planned.plan else ()
    calls = sum(_calls(config, task) for task in tasks) + _root_calls(config, planned)
    worst = WorstCase(config, prices, DEFAULT_MAX_TOKENS)
    at_most = [
        worst.of_step("descend", task_type=task.task_type, decided=_decided(config), verify=False, input_tokens=1_000)
        for task in tasks
    ]
    at_most.append(
        worst.of_step(
            "ascend" if tasks else "descend",
            task_type=TaskType.THINK,
            decided=NodeType.EXECUTE,
            verify=config.verify != "off",
            input_tokens=1_000 * len(tasks),
        )
    )
    known = all(price is not None for price in prices.values())
    return {
        "decision": "PLAN" if tasks else "EXECUTE",
        "plan": [task.to_plain() for task in tasks],
        "calls": calls,
        "max_tokens": int(sum(amount.tokens for amount in at_most)),
        "max_cost_usd": round(sum(amount.cost_usd for amount in at_most), 4) if known else None,
    }


def _decided(config: Config) -> NodeType | None:
    return NodeType.EXECUTE if config.limits.depth <= 1 else None


def _calls(config: Config, task: PlannedTask) -> int:
    atomizer = 0 if config.limits.depth <= 1 else 1
    verifier = 1 if config.verify == "all" else 0
    return atomizer + calls_per_ask(config.agents.of("executor", task.task_type)) + verifier


def _root_calls(config: Config, planned: Outcome) -> int:
    last: Role = "aggregator" if planned.plan else "executor"
    return calls_per_ask(config.agents.of(last)) + (1 if config.verify != "off" else 0)
