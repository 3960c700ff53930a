"""What a node task does, whichever process it runs in: `descend` (atomize, then plan or execute) and `ascend`.

Both return an envelope and a value; they raise only for bugs of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from roma_ray.cluster.backend import Emit
from roma_ray.config import ROLES, Role
from roma_ray.engine import roles
from roma_ray.engine.context import Material
from roma_ray.engine.limiting import limiters_of
from roma_ray.engine.request import DEFAULT_MAX_TOKENS, SessionArgument, StepRequest
from roma_ray.engine.roles import Candidate, Desk
from roma_ray.engine.stored import value_store
from roma_ray.errors import LimitReached, RomaError
from roma_ray.lm.hub import LmHub
from roma_ray.lm.scope import Allowance, CallScope, Hearing, entered
from roma_ray.modules import BaseModule, build_module
from roma_ray.storage.size import size_of
from roma_ray.types import Json, NodeStatus, NodeType, Outcome, TaskType, ValueHandle

if TYPE_CHECKING:
    from roma_ray.storage.values import ValueStore


class NodeSession:
    """What the steps of one run share in one process: the LMs, the modules over them, the value store."""

    def __init__(self, argument: SessionArgument) -> None:
        self.argument = argument
        self.config = argument.config
        self.hub = LmHub(argument.keys, limiters=limiters_of(argument.config))
        self.hearing = Hearing()
        self._modules: dict[tuple[Role, TaskType | None], BaseModule] = {}

    @property
    def store(self) -> ValueStore:
        """The values of this run."""
        return value_store(self.config.storage, self.argument.run_id)

    def module(self, role: Role, task_type: TaskType | None = None) -> BaseModule:
        """The module of a role, for the executor that of the task type."""
        key = (role, task_type if role == "executor" else None)
        if key not in self._modules:
            agent = self.config.agents.of(role, task_type)
            lm = self.hub.lm(role, agent.lm, default_max_tokens=DEFAULT_MAX_TOKENS[role])
            self._modules[key] = build_module(
                role, agent, lm, limits=self.config.limits, task_types=roles.offered_task_types(self.config)
            )
        return self._modules[key]


async def check_modules(argument: SessionArgument) -> None:
    """Build every module once, so that a wrong strategy, instruction or demo is said before the first call is paid.

    Raises ConfigError.
    """
    session = NodeSession(argument)
    try:
        for role in ROLES:
            session.module(role)
        for task_type in argument.config.agents.executor.by_type:
            session.module("executor", task_type)
    finally:
        await close_session(session)


async def open_session(argument: SessionArgument) -> NodeSession:
    """Set a run up in this process; the modules are built when they are first needed."""
    return NodeSession(argument)


async def close_session(session: NodeSession) -> None:
    """Close the connections of this run's LMs."""
    await session.hub.aclose()


async def descend(
    session: NodeSession, request: StepRequest, inputs: Sequence[Any], emit: Emit
) -> tuple[Outcome, Json]:
    """Decide, then plan or execute. Inputs: the values that this node depends on, in the order of `request.inputs`."""
    return await _in_envelope(session, request, emit, _descend(session, request, inputs))


async def ascend(session: NodeSession, request: StepRequest, inputs: Sequence[Any], emit: Emit) -> tuple[Outcome, Json]:
    """Put the children's results together. Inputs: the children's values, in plan order."""
    return await _in_envelope(session, request, emit, _ascend(session, request, inputs))


@dataclass(slots=True)
class _Done:
    """An outcome whose value is not packed yet."""

    outcome: Outcome
    value: Json = None


async def _in_envelope(
    session: NodeSession, request: StepRequest, emit: Emit, work: Awaitable[_Done]
) -> tuple[Outcome, Json]:
    scope = CallScope(
        step=str(request.key),
        known=request.known,
        allowance=Allowance(request.grant),
        emit=emit,
        hearing=session.hearing,
        keep_prompts=session.config.runlog.prompts == "full",
        sealed=session.config.replay is not None,
    )
    with entered(scope):
        try:
            done = await work
            done.outcome = _told(done.outcome, scope)
            return await _packed(session, done)
        except RomaError as error:
            return _told(_failed(error), scope), None
        except asyncio.CancelledError:
            scope.cancelled = True
            raise


def _told(outcome: Outcome, scope: CallScope) -> Outcome:
    """`outcome` with what the call gate wants people to know, such as a fallback that answered."""
    return replace(outcome, warnings=(*outcome.warnings, *dict.fromkeys(scope.warnings)))


async def _descend(session: NodeSession, request: StepRequest, inputs: Sequence[Any]) -> _Done:
    desk = Desk(session, request, await _materials(session, request, inputs))
    decided, warnings = await roles.atomize(desk)
    if decided.is_plan:
        plan, repairs = await roles.plan(desk)
        warnings += repairs
        if plan is not None:
            return _Done(
                Outcome(status=NodeStatus.RUNNING, node_type=NodeType.PLAN, plan=plan, warnings=tuple(warnings))
            )
    if request.plan_only:
        return _Done(Outcome(status=NodeStatus.COMPLETED, warnings=tuple(warnings)))
    candidate = await roles.execute(desk)
    candidate.warnings[:0] = warnings
    return await _verified(desk, candidate, NodeType.EXECUTE)


async def _ascend(session: NodeSession, request: StepRequest, inputs: Sequence[Any]) -> _Done:
    desk = Desk(session, request, await _materials(session, request, inputs))
    candidate = await roles.aggregate(desk)
    return await _verified(desk, candidate, NodeType.PLAN)


async def _verified(desk: Desk, candidate: Candidate, node_type: NodeType) -> _Done:
    verdict, feedback = None, ""
    if desk.request.verify and candidate.status.has_value:
        verdict, feedback = await roles.verify(desk, candidate)
    outcome = Outcome(
        status=candidate.status if verdict is not False else NodeStatus.PARTIAL,
        node_type=node_type,
        sources=tuple(dict.fromkeys(candidate.sources)),
        warnings=tuple(candidate.warnings),
        fault=candidate.fault,
        limit_reached=candidate.limit_reached,
        verdict=verdict,
        accepted=verdict is not False,
        feedback=feedback,
    )
    return _Done(outcome, candidate.value)


async def _packed(session: NodeSession, done: _Done) -> tuple[Outcome, Json]:
    """Keep a small value in the envelope; store a larger one before the envelope is given out."""
    if not done.outcome.has_value:
        return done.outcome, None
    if size_of(done.value) <= session.config.storage.inline_kb * 1024:
        return replace(done.outcome, value=done.value), done.value
    handle = await asyncio.to_thread(session.store.put, done.value)
    return replace(done.outcome, handle=handle), done.value


async def _materials(session: NodeSession, request: StepRequest, inputs: Sequence[Any]) -> list[Material]:
    texts = [await _as_text(session, value) for value in inputs]
    return [
        Material(spec=spec, text=text if spec.status.has_value else None)
        for spec, text in zip(request.inputs, texts, strict=True)
    ]


async def _as_text(session: NodeSession, value: Any) -> str:
    if isinstance(value, ValueHandle):
        value = await asyncio.to_thread(session.store.get, value)
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _failed(error: RomaError) -> Outcome:
    limit = error.limit if isinstance(error, LimitReached) else ""
    return Outcome(status=NodeStatus.FAILED, fault=error.fault, limit_reached=limit)
