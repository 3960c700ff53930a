"""A person's word on what a step brought: asked for durably, waited for, answered by the name of the step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from roma_ray import faults
from roma_ray.config import Config
from roma_ray.engine.plan import PlanRules, check_plan
from roma_ray.engine.state import Approval, ApprovalKind, RunState, Verdict
from roma_ray.errors import PlanFaulty, UsageError
from roma_ray.runlog.events import EventType
from roma_ray.types import Json, Outcome, Plan, StepKey, SubTask, TaskType

_QUIET_S = 0.2
"""How long nothing but people may be waited for before the run is left: what ends one step begins the next."""

_SUBTASKS = TypeAdapter(list[SubTask])

Append = Callable[[EventType, str, dict[str, Json]], Awaitable[int]]


class Approvals:
    """What one run asks people. `append` writes an event of a node; `has_mail` tells whether an answer is on its way.

    `said` holds answers that are known beforehand, by step: those of a recording that is replayed. Belongs to one
    event loop.
    """

    def __init__(
        self,
        state: RunState,
        append: Append,
        has_mail: Callable[[], Awaitable[bool]],
        said: Mapping[str, Mapping[str, Json]] | None = None,
    ) -> None:
        self._state = state
        self._append = append
        self._has_mail = has_mail
        self._said = said or {}
        self._waiting: dict[StepKey, asyncio.Future[None]] = {}
        self._at_work = 0
        self._only_people = asyncio.Event()

    @contextmanager
    def at_work(self) -> Generator[None]:
        """Something that goes on without a person is inside."""
        self._at_work += 1
        self._note()
        try:
            yield
        finally:
            self._at_work -= 1
            self._note()

    async def word_on(self, key: StepKey, kind: ApprovalKind) -> Outcome:
        """The outcome of a step after a person's answer, which may have changed it; waits until it was given."""
        if key not in self._state.approvals:
            with self.at_work():
                await self._append(EventType.APPROVAL_ASKED, key.node_id, {"step": str(key), "kind": kind})
                faults.hit("approval.asked")
        if str(key) in self._said:
            await self.answer(self._said[str(key)])
        if self._state.approvals[key].is_open:
            self._waiting[key] = asyncio.get_running_loop().create_future()
            self._note()
            try:
                await self._waiting[key]
            finally:
                del self._waiting[key]
                self._note()
        return self._state.outcomes[key]

    async def answer(self, payload: Mapping[str, Json]) -> None:
        """Take an answer, durably. One that nothing waits for any more, such as a second one, changes nothing.

        Raises ValueError or KeyError for what is no answer.
        """
        if payload["verdict"] not in get_args(Verdict):
            raise ValueError(f"{payload['verdict']!r} is no verdict")
        approval = self._state.approvals.get(StepKey.parse(payload["step"]))
        if approval is None or not approval.is_open:
            return
        with self.at_work():
            await self._append(EventType.APPROVAL_ANSWERED, approval.key.node_id, dict(payload))
            faults.hit("approval.answered")
            waiting = self._waiting.get(approval.key)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
                # The step goes on before we may say that nothing but people is waited for.
                await asyncio.sleep(0)

    async def only_people(self) -> None:
        """Returns once the run can go on only with an answer that nobody has given yet."""
        while True:
            await self._only_people.wait()
            await asyncio.sleep(_QUIET_S)
            # Asked first: an answer that is taken meanwhile clears the flag.
            if not await self._has_mail() and self._only_people.is_set():
                return

    def _note(self) -> None:
        if self._waiting and not self._at_work:
            self._only_people.set()
        else:
            self._only_people.clear()


def find_open(state: RunState, name: str) -> Approval:
    """The open approval that `name` means: a step such as `root.1/descend~0`, or a node with just one open.

    Raises UsageError that names those that are open.
    """
    found = [a for a in state.open_approvals if name in (str(a.key), a.key.node_id)]
    if len(found) == 1:
        return found[0]
    there = ", ".join(str(a.key) for a in state.open_approvals)
    cure = f"open are: {there}" if there else f"run {state.run_id} waits for nobody"
    raise UsageError(f"nothing waits for approval under {name!r}", cure=cure)


def edited_plan(state: RunState, key: StepKey, tasks: Sequence[Mapping[str, Any]], config: Config) -> Plan:
    """The plan that a person gives in the place of a Planner's: tasks with `goal`, `task_type`, and `depends_on`
    (positions, 0-based).

    Raises UsageError with everything that is wrong with it.
    """
    plain = [_as_subtask(task) for task in tasks]
    try:
        subtasks = _SUBTASKS.validate_python(plain)
        return check_plan(subtasks, None, _rules(state, key, config))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise UsageError(f"the plan cannot be read: {'; '.join(faults)}", cure=_FORM) from error
    except PlanFaulty as error:
        raise UsageError(f"the plan cannot be carried out: {error.message}", cure="correct it, then send it") from error


_FORM = "a plan is a list of {goal: …, task_type: …, depends_on: [positions]}"


def _as_subtask(task: Any) -> dict[str, Any]:
    if not isinstance(task, Mapping):
        raise UsageError(f"the plan cannot be read: {task!r} is no subtask", cure=_FORM)
    given: dict[str, Any] = dict(task)
    unknown = sorted(map(str, given.keys() - {"goal", "task_type", "depends_on"}))
    if unknown:
        raise UsageError(f"the plan cannot be read: a subtask has no {', '.join(unknown)}", cure=_FORM)
    return {
        "goal": given.get("goal", ""),
        "task_type": given.get("task_type", TaskType.THINK),
        "dependencies": given.get("depends_on"),
    }


def _rules(state: RunState, key: StepKey, config: Config) -> PlanRules:
    goals: list[str] = []
    node_id = key.node_id
    while node_id:
        node = state.nodes[node_id]
        goals.append(node.goal)
        node_id = node.parent
    nodes_left = config.limits.max_nodes - len(state.nodes) + len(state.nodes[key.node_id].children)
    most = min(config.limits.subtasks, nodes_left)
    return PlanRules(max_subtasks=most, task_types=tuple(TaskType), ancestors=tuple(reversed(goals)))
