"""From the config of a role to its module."""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from roma_ray.config.schema import AgentConfig, LimitsConfig, Role
from roma_ray.modules.adapters import make_adapter
from roma_ray.modules.base import BaseModule
from roma_ray.modules.roles import Aggregator, Atomizer, Executor, Planner, Verifier
from roma_ray.modules.schemas import Bounds
from roma_ray.modules.tools import ToolsType
from roma_ray.types import TaskType

_MODULES: dict[Role, type[BaseModule]] = {
    "atomizer": Atomizer,
    "planner": Planner,
    "executor": Executor,
    "aggregator": Aggregator,
    "verifier": Verifier,
}


def build_module(
    role: Role,
    agent: AgentConfig,
    lm: dspy.LM,
    *,
    limits: LimitsConfig,
    task_types: Sequence[TaskType],
    tools: ToolsType | None = None,
) -> BaseModule:
    """The module of `role` on `lm`; the Planner is offered only `task_types`, and `limits.max_subtasks` of them.

    Raises ConfigError when the strategy cannot be used, or instructions, demos or options are not there.
    """
    bounds = Bounds(
        max_subtasks=limits.subtasks,
        task_types=tuple(task_types),
        enforced=_obeys_lengths(agent),
    )
    kind = agent.lm.adapter
    if kind == "auto":
        kind = "json" if lm.supports_response_schema else "chat"
    return _MODULES[role](
        agent.strategy,
        lm=lm,
        tools=tools,
        adapter=make_adapter(kind, bounds),
        instructions=agent.instructions,
        demos=agent.demos,
        **agent.strategy_config,
    )


def _obeys_lengths(agent: AgentConfig) -> bool:
    """Whether the endpoint turns lengths in a schema into a grammar: the embedded model and self-hosted ones do.

    Hosted providers differ, and some refuse the request; there the prompt says the numbers.
    """
    return agent.lm.api_base is not None
