"""The node task by name: what the coordinator submits, without loading DSPy into a process that runs no nodes."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roma_ray.cluster.backend import Emit
from roma_ray.config import ROLES, AgentConfig
from roma_ray.engine import limiting
from roma_ray.engine.request import SessionArgument, StepRequest
from roma_ray.types import Json, Outcome

if TYPE_CHECKING:
    from roma_ray.engine.node import NodeSession


async def check_modules(argument: SessionArgument) -> None:
    """`node.check_modules`; without effect, and without loading DSPy, where every agent asks in the plain way."""
    agents = argument.config.agents
    own = [agents.of(role) for role in ROLES] + list(agents.executor.by_type.values())
    if all(map(_asks_plainly, own)):
        return
    node = await asyncio.to_thread(importlib.import_module, "roma_ray.engine.node")
    await node.check_modules(argument)


def _asks_plainly(agent: AgentConfig) -> bool:
    plain = agent.strategy in ("Predict", "ChainOfThought")
    return plain and not agent.strategy_config and agent.instructions is None and agent.demos is None


async def open_session(argument: SessionArgument) -> NodeSession:
    """`node.open_session`, with DSPy loaded in a thread: the loop of a worker must not stand still for a second."""
    node, _ = await asyncio.gather(
        asyncio.to_thread(importlib.import_module, "roma_ray.engine.node"), limiting.start_ledgers(argument)
    )
    return await node.open_session(argument)


def renew_session(session: NodeSession, ttl_s: float) -> None:
    """The run's coordinator is alive and will be heard again within `ttl_s`: until then calls may be started."""
    session.hearing.renew(ttl_s)


async def close_session(session: NodeSession) -> None:
    """`node.close_session`."""
    from roma_ray.engine import node

    await node.close_session(session)


async def descend(
    session: NodeSession, request: StepRequest, inputs: Sequence[Any], emit: Emit
) -> tuple[Outcome, Json]:
    """`node.descend`."""
    from roma_ray.engine import node

    return await node.descend(session, request, inputs, emit)


async def ascend(session: NodeSession, request: StepRequest, inputs: Sequence[Any], emit: Emit) -> tuple[Outcome, Json]:
    """`node.ascend`."""
    from roma_ray.engine import node

    return await node.ascend(session, request, inputs, emit)
