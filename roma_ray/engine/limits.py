"""The limits of a run that depend on its models: their prices, and what holds where none is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from roma_ray.config import ROLES, Config, Price, Role
from roma_ray.engine.budget import WorstCase
from roma_ray.engine.request import DEFAULT_MAX_TOKENS
from roma_ray.errors import PriceUnknown
from roma_ray.lm.cost import price_of
from roma_ray.lm.providers import ResolvedModels
from roma_ray.types import TaskType

_DEFAULT_MAX_COST_USD = 5.0


def prices_of(config: Config) -> Mapping[tuple[Role, TaskType | None], Price | None]:
    """The price of every role's model, and of those that differ by task type; None where it is not known."""
    prices: dict[tuple[Role, TaskType | None], Price | None] = {
        (role, None): price_of(config.agents.of(role).lm) for role in ROLES
    }
    for task_type, agent in config.agents.executor.by_type.items():
        prices["executor", task_type] = price_of(agent.lm)
    return prices


def worst_case(config: Config) -> WorstCase:
    """What steps take at most, by the models and prices of `config`."""
    return WorstCase(config, prices_of(config), DEFAULT_MAX_TOKENS)


def with_limits(resolved: ResolvedModels) -> ResolvedModels:
    """Put the limits that depend on the models where none are given. Raises PriceUnknown."""
    limits = resolved.config.limits
    put: dict[str, object] = {}
    if resolved.uses_local_model:
        put["max_depth"] = 1 if limits.max_depth is None else limits.max_depth
        put["max_subtasks"] = 4 if limits.max_subtasks is None else limits.max_subtasks
    put["max_cost_usd"] = _cost_limit(resolved.config)
    limits = limits.model_copy(update=put)
    return replace(resolved, config=resolved.config.model_copy(update={"limits": limits}))


def _cost_limit(config: Config) -> float | None:
    """The money limit: the one given, checked against the prices; else the default where all prices are known."""
    prices, given = prices_of(config), config.limits.max_cost_usd
    unknown = sorted({config.agents.of(role, kind).lm.model for (role, kind), price in prices.items() if price is None})
    if given is not None and unknown:
        raise PriceUnknown(f"limits.max_cost_usd is set, but the price of {', '.join(unknown)} is not known")
    free = all(price is not None and price.prompt == price.completion == 0 for price in prices.values())
    return given if given is not None or unknown or free else _DEFAULT_MAX_COST_USD
