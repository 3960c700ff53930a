"""One durable run: what `step` adds to a node task, layer by layer.

    step                an outcome that a person has to approve counts once that was done
    _recorded           a step whose outcome is in the log is not done again
    _once_per_work      identical atomic work is done once
    _within_limits      budget, deadlines, a place among those in flight, and doing less before stopping
    _with_workers       a lost worker or input is replaced
    _attempt            one node task: its stream of events goes into the log as it comes

The solver above knows none of this; the backend below knows nothing of goals.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from roma_ray import clock, faults
from roma_ray.cluster.backend import Backend, InputLost, Task
from roma_ray.config import Config
from roma_ray.engine import brief, entry, outcomes
from roma_ray.engine.approvals import Approvals
from roma_ray.engine.budget import Pool, Reservation, WorstCase
from roma_ray.engine.context import CHARS_PER_TOKEN, in_groups
from roma_ray.engine.places import Places, places_per_worker
from roma_ray.engine.plan import same_goal
from roma_ray.engine.recording import Recording
from roma_ray.engine.request import StepRequest
from roma_ray.engine.state import ROOT, ApprovalKind, Node, RunState, Solved
from roma_ray.engine.tree import apply
from roma_ray.engine.values import Values
from roma_ray.errors import (
    BY_CODE,
    AllChildrenFailed,
    LimitReached,
    NodeTimeout,
    RomaError,
    StoreFull,
    UserError,
    ValueLost,
    WorkerLost,
    from_fault,
)
from roma_ray.runlog import inbox
from roma_ray.runlog.events import Event, EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import (
    CallRecord,
    CallWaiting,
    Json,
    NodeStatus,
    NodeType,
    Outcome,
    StepKey,
)

OnEvent = Callable[[Event], None]

_LOSSES_BEFORE_ALONE = 2
_ASCEND_GRACE = 0.1
"""Part of run_timeout_s that Aggregators may still use once it is over."""
_JOIN_S = 60.0
"""Time to join the children's results without a call, when nothing else is left."""


class Run:
    """One run in this process. `state` already holds the events that the log holds."""

    def __init__(
        self,
        *,
        config: Config,
        log: RunLog,
        lease: Lease,
        backend: Backend,
        places: Places,
        state: RunState,
        worst_case: WorstCase,
        on_event: OnEvent | None = None,
        recording: Recording | None = None,
    ) -> None:
        self.config = config
        self.recording = recording
        self.state = state
        self.run_id = state.run_id
        self.pool = Pool.of(config.limits, spent=state.usage)
        self.plan_only = config.dry_run
        self._log = log
        self._lease = lease
        self._backend = backend
        self._places = places
        self._places_per_worker = places_per_worker(config)
        self._worst_case = worst_case
        self._on_event = on_event
        self._started_s = clock.mono_s()
        self._deadline_s = self._started_s + max(0.0, config.limits.run_timeout_s - state.ran_s)
        self._work: dict[tuple[Any, ...], tuple[StepKey, asyncio.Future[Outcome | None]]] = {}
        said = recording.words if recording is not None else None
        self._values = Values(
            state=state, storage=config.storage, log=log, backend=backend, make_anew=self._make_value_anew
        )
        self.approvals = Approvals(state, self._append, self._has_mail, said)

    # ---- what the solver asks ----------------------------------------------------------------------------------

    def revisions(self, node: Node) -> Iterable[int]:
        """0, and as many more as limits.max_revisions allows; what a person sends back does not count."""
        revision = 0
        while revision <= self.config.limits.max_revisions + self.state.rejections(node.id):
            yield revision
            revision += 1

    def children(self, parent: Node, revision: int) -> list[Node]:
        """The nodes of a plan that a descend step of `parent` brought, in plan order."""
        return brief.children(self.state, parent.id, revision)

    def better(self, best: Solved | None, new: Solved) -> Solved:
        """The candidate to keep: a later one, unless it has no value and the earlier one has."""
        return new if best is None or new.outcome.has_value or not best.outcome.has_value else best

    async def step(self, key: StepKey, inputs: Sequence[Solved]) -> Outcome:
        """Do one step, or return what the log has of it. Raises only what ends the whole run."""
        with self.approvals.at_work():
            outcome = await self._recorded(key, inputs)
        kind = self._approval_kind(key, outcome)
        if kind is not None:
            return self._as_said(key, outcome, await self.approvals.word_on(key, kind))
        if key in self.state.approvals:
            await self._answer_unasked(key)
            return self._as_said(key, outcome, self.state.outcomes[key])
        return outcome

    async def hear(self, answer: Mapping[str, Json]) -> None:
        """Take what a person answered; what cannot be read is left aside with a warning."""
        try:
            await self.approvals.answer(answer)
        except (KeyError, ValueError) as error:
            self.warn(f"an answer that cannot be read was left aside: {error!r}")

    async def skip(self, node: Node, needed: Sequence[Solved]) -> Solved:
        """Record that nothing which `node` depends on came out; no call is made."""
        key = StepKey(node.id, "descend", 0)
        outcome = self.state.outcomes.get(key)
        if outcome is None:
            names = ", ".join(solved.node.id for solved in needed)
            fault = AllChildrenFailed(f"nothing it depends on came out ({names})").fault
            with self.approvals.at_work():
                outcome = await self._commit(key, Outcome(status=NodeStatus.SKIPPED, fault=fault))
        return Solved(node, key, outcome)

    async def value(self, solved: Solved) -> Json:
        """The value of a solved node. Raises ValueLost when it is neither in the log, nor stored, nor in memory."""
        return await self._values.get(solved)

    # ---- the layers of a step ----------------------------------------------------------------------------------

    def _approval_kind(self, key: StepKey, outcome: Outcome) -> ApprovalKind | None:
        """What a person has to say of this outcome, None where nobody is asked."""
        if self.plan_only or not (outcome.plan is not None or outcome.has_value):
            return None
        kind: ApprovalKind = "plan" if outcome.plan is not None else "final"
        # A replay has what people said, whatever `approve` was in the end.
        if self.recording is not None and str(key) in self.recording.words:
            return kind
        is_due = kind == "plan" or (key.node_id == ROOT and (outcome.accepted or self._is_last_candidate(key)))
        return kind if kind == self.config.approve and is_due else None

    def _is_last_candidate(self, key: StepKey) -> bool:
        """Whether no revision follows, unless a person sends it back."""
        return key.revision >= self.config.limits.max_revisions + self.state.rejections(key.node_id)

    async def _answer_unasked(self, key: StepKey) -> None:
        """Somebody was asked before the run was resumed with approve=off. What they said since counts all the same."""
        for message in await self._log.pending(self.run_id):
            if message.kind == inbox.APPROVE and message.payload.get("step") == str(key):
                await self.hear(message.payload)
        await self.approvals.answer({"step": str(key), "verdict": "approve", "words": "approve=off"})

    def _as_said(self, key: StepKey, outcome: Outcome, said: Outcome) -> Outcome:
        if said is not outcome:
            self._values.let_go(key)
            if said.plan is None:
                self.pool.take_held(key.node_id)
        return said

    async def _recorded(self, key: StepKey, inputs: Sequence[Solved]) -> Outcome:
        self._values.made_from(key, inputs)
        recorded = self.state.outcomes.get(key)
        if recorded is not None:
            self._remember_work(key, inputs, recorded)
            self._hold_for_aggregator(key, recorded)
            return recorded
        if key.kind == "ascend" and not any(solved.outcome.has_value for solved in inputs):
            self.pool.take_held(key.node_id)
            return await self._commit(key, self._nothing_came_out(key, inputs))
        return await self._once_per_work(key, inputs)

    async def _once_per_work(self, key: StepKey, inputs: Sequence[Solved]) -> Outcome:
        work = self._work_of(key, inputs)
        if work is None:
            return await self._within_limits(key, inputs)
        if work in self._work:
            first, done = self._work[work]
            outcome = await asyncio.shield(done)
            if outcome is not None and outcome.has_value and outcome.accepted:
                return await self._same_as(key, first, outcome)
            return await self._within_limits(key, inputs)
        done: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._work[work] = key, done
        try:
            outcome = await self._within_limits(key, inputs)
            done.set_result(outcome)
            return outcome
        finally:
            if not done.done():
                done.set_result(None)

    async def _within_limits(self, key: StepKey, inputs: Sequence[Solved]) -> Outcome:
        node = self.state.nodes[key.node_id]
        if key.kind == "descend" and clock.mono_s() >= self._deadline_s:
            return await self._commit(key, outcomes.stopped_by("run_timeout_s"))
        decided, limit = self._decide(key, node)
        try:
            reservation = await self._reserve(key, node, inputs, decided)
        except LimitReached as error:
            return await self._commit(key, outcomes.stopped_by(error.limit))
        if decided is None and reservation.short_of:
            decided, limit = NodeType.EXECUTE, reservation.short_of
        try:
            async with self._place(key):
                outcome = await self._with_workers(key, inputs, reservation, decided)
        finally:
            reservation.give_back()
        self._stop_on_user_fault(outcome)
        outcome = outcomes.fit_plan(outcome, node.id, self.config.limits.max_nodes - len(self.state.nodes))
        if limit and outcome.has_value:
            outcome = outcomes.degraded(outcome, limit)
        if key.kind == "ascend" and (cut := self.state.outcomes[key._replace(kind="descend")].limit_reached):
            outcome = outcomes.of_a_cut_plan(outcome, cut)
        if self._approval_kind(key, outcome) == "final":
            # Whatever the Verifier said of it: from here on it is for the person to say.
            outcome = replace(outcome, accepted=True)
        self._hold_for_aggregator(key, outcome)
        await self._commit(key, outcome)
        if key.kind == "ascend" and outcome.accepted:
            # Nobody needs the children's values any more: their siblings and their parent have had them.
            self._values.let_go(*(solved.key for solved in inputs))
        return outcome

    def _place(self, key: StepKey) -> contextlib.AbstractAsyncContextManager[None]:
        """An ascend step never waits for one: when it is done, what its children brought can be let go."""
        if key.kind == "ascend":
            return contextlib.nullcontext()
        return self._places.one(per_worker=self._places_per_worker)

    async def _with_workers(
        self, key: StepKey, inputs: Sequence[Solved], reservation: Reservation, decided: NodeType | None
    ) -> Outcome:
        lost = self.state.losses.get(str(key), 0)
        while True:
            alone = lost >= _LOSSES_BEFORE_ALONE or self._is_isolated(key)
            try:
                outcome = await self._attempt(key, inputs, reservation, decided, alone=alone)
            except InputLost:
                self._values.let_go(*(solved.key for solved in inputs))
                continue
            except WorkerLost as error:
                lost += 1
                payload: dict[str, Json] = {"step": str(key), "reason": error.message, "attempt": lost}
                await self._append(EventType.WORKER_LOST, key.node_id, payload)
                if lost - _LOSSES_BEFORE_ALONE < self.config.cluster.max_attempts:
                    continue
                return Outcome(status=NodeStatus.FAILED, fault=error.fault)
            except LimitReached as error:
                if key.kind == "ascend" and reservation.grant.calls != 0:
                    # Once more without a call: what the children brought is joined as it is.
                    reservation.forgo()
                    continue
                return Outcome(status=NodeStatus.FAILED, fault=error.fault, limit_reached=error.limit)
            if outcome.fault is None or outcome.fault.code != ValueLost.code or not await self._values.rebuild(inputs):
                return outcome

    async def _attempt(
        self,
        key: StepKey,
        inputs: Sequence[Solved],
        reservation: Reservation,
        decided: NodeType | None,
        *,
        alone: bool,
    ) -> Outcome:
        task = Task(
            name=f"{key.kind}:{key.node_id}@{self.run_id}",
            session_id=self.run_id,
            fn=entry.descend if key.kind == "descend" else entry.ascend,
            request=self._request(key, inputs, reservation, decided),
            isolate=alone,
        )
        faults.hit("step.before_submit")
        try:
            async with (
                asyncio.timeout(self._time_left_s(key) if reservation.grant.calls != 0 else _JOIN_S),
                self._backend.submit(task, [self._values.passed(solved) for solved in inputs]) as stream,
            ):
                payload: dict[str, Json] = {"step": str(key), "worker": stream.worker, "ran_s": self._ran_so_far_s()}
                self._append(EventType.STEP_STARTED, key.node_id, payload)
                async for batch in stream:
                    for record in batch:
                        self._record_call(key, record, reservation)
                outcome: Outcome = stream.outcome
                if outcome.has_value:
                    self._values.keep(key, stream.value)
        except TimeoutError:
            raise self._timed_out(key) from None
        return outcome

    async def _make_value_anew(self, key: StepKey, inputs: Sequence[Solved]) -> bool:
        """Do a step again for its value, by the answers in `state.answers` and without a single call."""
        self.warn(f"the stored value of {key.node_id} was lost or damaged; it is made anew from the recorded answers")
        nothing = self.pool.nothing()
        decided = NodeType.PLAN if key.kind == "ascend" else NodeType.EXECUTE
        try:
            outcome = await self._attempt(key, inputs, nothing, decided, alone=False)
        except (WorkerLost, InputLost, LimitReached):
            return False
        finally:
            nothing.give_back()
        return outcome.has_value

    # ---- the record --------------------------------------------------------------------------------------------

    async def _commit(self, key: StepKey, outcome: Outcome) -> Outcome:
        """Write the outcome down; only then may anything that depends on it start."""
        faults.hit("step.before_commit")
        payload: dict[str, Json] = {"step": str(key), "outcome": outcome.to_plain(), "ran_s": self._ran_so_far_s()}
        await self._append(EventType.STEP_DONE, key.node_id, payload)
        faults.hit("step.after_commit")
        return outcome

    def _record_call(self, key: StepKey, record: CallRecord | CallWaiting, reservation: Reservation) -> None:
        if isinstance(record, CallWaiting):
            self._append(EventType.CALL_WAITING, key.node_id, record.to_plain())
            return
        reservation.charge(record.usage)
        if record.cached:
            kind = EventType.CALL_CACHED
        else:
            kind = EventType.CALL_FAILED if record.fault else EventType.CALL_ANSWERED
        self._append(kind, key.node_id, record.to_plain())

    def warn(self, text: str) -> None:
        """Write down something that a person should know."""
        self._append(EventType.WARNING, "", {"text": text})

    def append(self, kind: EventType, payload: dict[str, Json]) -> asyncio.Future[int]:
        """Write an event of the run as a whole; the future is done when it is committed."""
        return self._append(kind, "", payload)

    async def _has_mail(self) -> bool:
        return bool(await self._log.pending(self.run_id))

    def ran_s(self) -> float:
        """Running time of this process so far."""
        return clock.mono_s() - self._started_s

    def _ran_so_far_s(self) -> float:
        return round(self.ran_s(), 3)

    def _append(self, kind: EventType, node_id: str, payload: dict[str, Json]) -> asyncio.Future[int]:
        committed = self._log.append(self._lease, NewEvent(type=kind, node_id=node_id, payload=payload))
        event = Event(
            run_id=self.run_id,
            seq=self.state.seq + 1,
            epoch=self._lease.epoch,
            time_s=clock.now_s(),
            type=kind,
            node_id=node_id,
            payload=payload,
        )
        apply(self.state, event)
        if self._on_event is not None:
            self._on_event(event)
        return committed

    # ---- what a node task is given -----------------------------------------------------------------------------

    def _request(
        self, key: StepKey, inputs: Sequence[Solved], reservation: Reservation, decided: NodeType | None
    ) -> StepRequest:
        node = self.state.nodes[key.node_id]
        return brief.placed(
            self.state,
            StepRequest(
                key=key,
                goal=node.goal,
                task_type=node.task_type,
                decided=decided,
                plan_only=self.plan_only,
                inputs=tuple(brief.input_spec(solved.node, solved.outcome) for solved in inputs),
                max_subtasks=self.config.limits.subtasks,
                verify=self._verifies(node),
                grant=reservation.grant,
                known=self.recording.known(str(key)) if self.recording else self.state.answers.get(str(key), {}),
            ),
        )

    def _verifies(self, node: Node) -> bool:
        return self.config.verify == "all" or (self.config.verify == "root" and not node.parent)

    def _is_isolated(self, key: StepKey) -> bool:
        cluster = self.config.cluster
        return cluster.isolation == "process" or self.state.nodes[key.node_id].task_type in cluster.process_types

    # ---- limits ------------------------------------------------------------------------------------------------

    def _decide(self, key: StepKey, node: Node) -> tuple[NodeType | None, str]:
        """The node type where it is known before asking, and the limit that decided it, if one did."""
        if key.kind == "ascend":
            return NodeType.PLAN, ""
        if key.revision > 0:
            earlier = self.state.outcomes[StepKey(key.node_id, "descend", key.revision - 1)]
            return earlier.node_type, earlier.limit_reached
        if node.depth >= self.config.limits.depth:
            return NodeType.EXECUTE, ""
        if len(self.state.nodes) >= self.config.limits.max_nodes:
            return NodeType.EXECUTE, "max_nodes"
        return None, ""

    async def _reserve(
        self, key: StepKey, node: Node, inputs: Sequence[Solved], decided: NodeType | None
    ) -> Reservation:
        sizes = [outcomes.size_chars(solved.outcome) for solved in inputs]
        share = self.config.agents.aggregator.lm.context_tokens
        worst, least = (
            self._worst_case.of_step(
                key.kind,
                task_type=node.task_type,
                decided=decided,
                verify=self._verifies(node),
                input_tokens=(sum(sizes) + len(node.goal)) // CHARS_PER_TOKEN,
                groups=len(in_groups(sizes, share_tokens=share)) if key.kind == "ascend" else 1,
                asks=asks,
            )
            for asks in (2, 1)
        )
        if key.kind == "descend":
            if decided is None:
                least += self._worst_case.of_aggregator(node.task_type)
            return await self.pool.reserve(worst, least)
        self.pool.take_held(node.id)
        if self._time_left_s(key) <= 0:
            return self.pool.nothing()
        try:
            return await self.pool.reserve(worst, least)
        except LimitReached:
            # Without a call the task still joins what the children brought: work done is never thrown away.
            return self.pool.nothing()

    def _hold_for_aggregator(self, key: StepKey, outcome: Outcome) -> None:
        """Keep one call for what the children of a plan will bring, until their ascend step reserves for itself."""
        if outcome.plan is not None and key._replace(kind="ascend") not in self.state.outcomes:
            task_type = self.state.nodes[key.node_id].task_type
            self.pool.hold(key.node_id, self._worst_case.of_aggregator(task_type))

    def _time_left_s(self, key: StepKey) -> float:
        grace = self.config.limits.run_timeout_s * _ASCEND_GRACE if key.kind == "ascend" else 0.0
        return min(self.config.limits.node_timeout_s, self._deadline_s + grace - clock.mono_s())

    def _timed_out(self, key: StepKey) -> RomaError:
        if self._time_left_s(key) <= 0:
            return LimitReached("limits.run_timeout_s is reached")
        return NodeTimeout(
            f"limits.node_timeout_s: {key.node_id} took longer than {self.config.limits.node_timeout_s:g} s"
        )

    def _stop_on_user_fault(self, outcome: Outcome) -> None:
        """What only people can mend stops the whole run; the step is not recorded, so that resume does it again."""
        if outcome.fault is not None and issubclass(BY_CODE.get(outcome.fault.code, RomaError), UserError | StoreFull):
            raise from_fault(outcome.fault)

    def _nothing_came_out(self, key: StepKey, children: Sequence[Solved]) -> Outcome:
        again = key.revision < self.config.limits.max_revisions
        return outcomes.nothing_came_out([(s.node.goal, s.outcome) for s in children], may_revise=again)

    # ---- identical work ----------------------------------------------------------------------------------------

    def _work_of(self, key: StepKey, inputs: Sequence[Solved]) -> tuple[Any, ...] | None:
        if key.kind != "descend" or key.revision > 0:
            return None
        node = self.state.nodes[key.node_id]
        given = tuple((s.outcome.same_as or s.node.id, s.key.revision) for s in inputs)
        return same_goal(node.goal), node.task_type, given

    def _remember_work(self, key: StepKey, inputs: Sequence[Solved], outcome: Outcome) -> None:
        work = self._work_of(key, inputs)
        if work is not None and work not in self._work:
            done: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
            done.set_result(outcome)
            self._work[work] = key, done

    async def _same_as(self, key: StepKey, first: StepKey, outcome: Outcome) -> Outcome:
        self._values.share(key, first)
        return await self._commit(key, replace(outcome, same_as=outcome.same_as or first.node_id, warnings=()))
