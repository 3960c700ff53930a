"""A run under every order of start, step, crash, resume, cancel, approve and fork that hypothesis thinks of.

The engine and its run log are the real ones; the workers are played by the machine, which decides which open step is
answered next. A crash keeps exactly what the database file holds at that moment.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from roma_ray.cluster.backend import Session, Task
from roma_ray.config import load_config, storable
from roma_ray.engine.coordinator import Coordinator
from roma_ray.engine.fork import Cut
from roma_ray.engine.result import Result
from roma_ray.engine.state import RunState
from roma_ray.engine.tree import fold
from roma_ray.errors import EndpointFailing
from roma_ray.lm.providers import resolve_models
from roma_ray.runlog.log import RunLog
from roma_ray.types import CallRecord, NodeStatus, NodeType, Outcome, Plan, PlannedTask, RunStatus, StepKey, Usage

pytestmark = pytest.mark.timeout(300)

Shape = list[Any]
"""A plan: one item per subtask, `(the shape of its own plan or None, the positions it needs)`."""


def shapes(levels: int) -> st.SearchStrategy[Shape]:
    below = st.none() if levels == 1 else st.one_of(st.none(), st.deferred(lambda: shapes(levels - 1)))

    def with_needs(plans: list[Any]) -> st.SearchStrategy[Shape]:
        needs = [st.sets(st.integers(0, i - 1), max_size=2) if i else st.just(set[int]()) for i in range(len(plans))]
        return st.tuples(*needs).map(lambda chosen: [(p, tuple(sorted(n))) for p, n in zip(plans, chosen, strict=True)])

    return st.lists(below, min_size=1, max_size=3).flatmap(with_needs)


def expected(goal: str, shape: Shape | None, inputs: Sequence[str] = ()) -> str:
    """The value of a goal, by the recursion as one would write it down."""
    if shape is None:
        return f"<{goal}|{','.join(inputs)}>"
    values: list[str] = []
    for i, (below, needs) in enumerate(shape):
        values.append(expected(f"{goal}.{i}", below, [*inputs, *(values[n] for n in needs)]))
    return f"({goal}:{','.join(values)})"


class OpenStep:
    """A task that the machine has not answered yet; a TaskStream."""

    def __init__(self, task: Task, inputs: Sequence[Any]) -> None:
        self.request = task.request
        self.inputs = [str(value) for value in inputs]
        self.worker = "the machine"
        self.calls = sum(len(records) for records in self.request.known.values())
        self.is_left = False
        self.outcome: Any = None
        self.value: Any = None
        self._batches: asyncio.Queue[Any] = asyncio.Queue()

    def call(self) -> None:
        """A model call that is answered and paid for."""
        usage = Usage(lm_calls=1)
        record = CallRecord(
            step=str(self.request.key),
            role="executor",
            model="m",
            request_key=f"k{self.calls}",
            usage=usage,
            response="r",
        )
        self.calls += 1
        self._batches.put_nowait([record])

    def end(self, outcome: Outcome) -> None:
        self.outcome, self.value = outcome, outcome.value
        self._batches.put_nowait(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_left = True

    async def __aiter__(self) -> AsyncIterator[list[Any]]:
        while (batch := await self._batches.get()) is not None:
            yield batch


class Workers:
    """The backend that the machine plays."""

    machines = workers = 1

    def __init__(self) -> None:
        self.steps: list[OpenStep] = []

    @property
    def open_steps(self) -> list[OpenStep]:
        still_open = [s for s in self.steps if s.outcome is None and not s.is_left]
        return sorted(still_open, key=lambda step: str(step.request.key))

    def submit(self, task: Task, inputs: Sequence[Any]) -> OpenStep:
        self.steps.append(OpenStep(task, inputs))
        return self.steps[-1]

    async def open(self) -> None: ...
    async def open_session(self, session: Session) -> None: ...
    def renew_session(self, session_id: str, ttl_s: float) -> None: ...
    async def close_session(self, session_id: str) -> None: ...
    async def close(self) -> None: ...

    async def fetch(self, reference: Any) -> Any:
        return reference


class RunMachine(RuleBasedStateMachine):
    """Its small model: the shape of the tree, the steps that are done for good, the answers that are paid for."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.driving: asyncio.Task[Result] | None = None
        self.run_id = ""
        self.done: set[StepKey] = set()
        self.paid: dict[StepKey, int] = {}

    def teardown(self) -> None:
        if self.run_id:
            self._bring_to_an_end()
            if self.driving is not None:
                self._leave()
            self.folder.cleanup()
        self.loop.close()

    # ---- the rules

    @initialize(shape=st.one_of(st.none(), shapes(2)), approve=st.sampled_from(["off", "plan", "final"]))
    def start(self, shape: Shape | None, approve: str) -> None:
        self.shape, self.approve = shape, approve
        self.folder = tempfile.TemporaryDirectory()
        self.file = Path(self.folder.name, "0.db")
        self._open()
        stored = storable(self.resolved.config)
        self._begin(self.coordinator.solve("g", self.resolved, answer_schema=None, stored=stored))

    @precondition(lambda self: self._steps())
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(self._steps()))
        step.call()
        step.end(self._outcome_of(step))
        self._settle()

    @precondition(lambda self: self._steps())
    @rule(data=st.data())
    def answer_one_call(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self._steps())).call()
        self._settle()

    @precondition(lambda self: self._steps())
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(self._steps()))
        step.end(Outcome(status=NodeStatus.FAILED, fault=EndpointFailing("503").fault))
        self._settle()

    @precondition(lambda self: self.driving is not None)
    @rule()
    def crash(self) -> None:
        copy = self.file.with_suffix(".next")
        with closing(sqlite3.connect(self.file)) as now, closing(sqlite3.connect(copy)) as then:
            now.backup(then)
            # The process that held it is "dead"; this one is not, so the lease has to be ended by hand.
            then.execute("UPDATE runs SET lease_until_s = 0")
            then.commit()
        self._leave()
        self.file = copy.rename(self.file.with_name(f"{int(self.file.stem) + 1}.db"))

    @precondition(lambda self: self.driving is None)
    @rule()
    def resume(self) -> None:
        state = self._state()
        if state.status is RunStatus.COMPLETED:
            return
        self._open()
        reopened: dict[str, Any] | None = {} if state.status.is_end else None
        self._drive(self.coordinator.resume(self.run_id, self.resolved, reopened=reopened))

    @precondition(lambda self: self.driving is not None and self._steps())
    @rule()
    def cancel(self) -> None:
        self._do(self.log.send(self.run_id, "cancel", {}))
        self._do(asyncio.wait((self._driven(),), timeout=5))
        assert self._state_of_end() is RunStatus.CANCELLED

    @precondition(lambda self: self._state().open_approvals)
    @rule(data=st.data(), verdict=st.sampled_from(["approve", "reject"]))
    def say(self, data: st.DataObject, verdict: str) -> None:
        approval = data.draw(st.sampled_from(self._state().open_approvals))
        self._say(approval.key, verdict)

    @precondition(lambda self: self.driving is None)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        state = self._state()
        node_id = data.draw(st.sampled_from([node.id for node in state.walk()]))
        self._open()
        cut = Cut(node_id=node_id)
        # What is kept is known; what is cut is done again.
        self.done, self.paid = set(), {}
        stored = storable(self.resolved.config)
        self._begin(self.coordinator.fork(self.run_id, self.resolved, stored=stored, cut=cut))

    # ---- how the machine does it

    def _open(self) -> None:
        environ = {"ROMA_RAY_HOME": self.folder.name}
        overrides = ["lm.model=openai/m", "lm.api_base=http://127.0.0.1:9/v1", "cluster=inline"]
        settings = [f"approve={self.approve}", f"runlog.url=sqlite:///{self.file}", "runlog.durability=process"]
        loaded = load_config([*overrides, *settings, "limits.max_recoveries=1000"], environ=environ)
        self.resolved = resolve_models(loaded.config, environ)
        self.workers = Workers()
        self.log = self._do(RunLog.open(loaded.config.runlog))
        self.coordinator = Coordinator(self.log, self.workers, print)

    def _drive(self, work: Coroutine[Any, Any, Result]) -> None:
        self.driving = self.loop.create_task(work)
        self._settle()

    def _begin(self, work: Coroutine[Any, Any, Result]) -> None:
        before = {row.run_id for row in self._do(self.log.runs())}
        self.driving = self.loop.create_task(work)
        while not (new := [row for row in self._do(self.log.runs()) if row.run_id not in before]):
            assert not self.driving.done(), self.driving.result()
        self.run_id = new[0].run_id
        self._settle()

    def _leave(self) -> None:
        assert self.driving is not None
        self.driving.cancel()
        self._do(asyncio.wait((self.driving,)))
        self._do(self.log.close())
        self.driving = None

    def _driven(self) -> asyncio.Task[Result]:
        assert self.driving is not None
        return self.driving

    def _state_of_end(self) -> RunStatus:
        status = self._driven().result().status
        self._do(self.log.close())
        self.driving = None
        return status

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def _settle(self) -> None:
        """Let the engine go on until nothing moves, then look whether it kept its promises."""
        self._do(self._still())
        for step in self.workers.steps:
            key = step.request.key
            assert key not in self.done, f"{key} was done and is done again"
            known = sum(len(records) for records in step.request.known.values())
            assert known >= self.paid.get(key, 0), f"{key} is not told what was paid for it"
        self.workers.steps = [step for step in self.workers.steps if step.outcome is None]
        if self.driving is not None and self.driving.done():
            self._state_of_end()
        state = self._state()
        good = {k for k, o in state.outcomes.items() if o.plan or o.status is NodeStatus.COMPLETED}
        # A reopened run forgets what was made from something that failed.
        self.done = good
        if self.driving is not None:
            return
        self.paid = {StepKey.parse(step): sum(map(len, by.values())) for step, by in state.answers.items()}

    async def _still(self) -> None:
        """Until nothing moves, and a step is open or the run was left: mail takes up to half a second to be read."""
        seen: tuple[Any, ...] = ()
        still, deadline = 0, self.loop.time() + 20
        while still < 4:
            assert self.loop.time() < deadline, "nothing is open, and the run goes on all the same"
            await asyncio.sleep(0.004)
            steps = self.workers.open_steps
            now = len(self.workers.steps), len(steps), self._driven().done(), self._size()
            still = still + 1 if now == seen and (steps or self._driven().done()) else 0
            seen = now

    def _size(self) -> int:
        with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM events").fetchone()[0]

    def _steps(self) -> list[OpenStep]:
        return self.workers.open_steps if self.driving is not None else []

    def _state(self) -> RunState:
        if self.driving is not None:
            return fold(self._do(self.log.read(self.run_id)))
        return fold(self._with_log(lambda log: log.read(self.run_id)))

    def _with_log(self, use: Callable[[RunLog], Coroutine[Any, Any, Any]]) -> Any:
        log = self._do(RunLog.open(self.resolved.config.runlog.model_copy(update={"url": f"sqlite:///{self.file}"})))
        try:
            return self._do(use(log))
        finally:
            self._do(log.close())

    def _outcome_of(self, step: OpenStep) -> Outcome:
        request = step.request
        if request.key.kind == "ascend":
            value = f"({request.goal}:{','.join(step.inputs)})"
            status = NodeStatus.PARTIAL if "None" in step.inputs else NodeStatus.COMPLETED
            return Outcome(status=status, node_type=NodeType.PLAN, value=value)
        shape = self.shape
        for position in request.goal.split(".")[1:]:
            assert shape is not None
            shape = shape[int(position)][0]
        if shape is None:
            return Outcome(status=NodeStatus.COMPLETED, value=f"<{request.goal}|{','.join(step.inputs)}>")
        tasks = tuple(PlannedTask(goal=f"{request.goal}.{i}", depends_on=needs) for i, (_, needs) in enumerate(shape))
        return Outcome(status=NodeStatus.RUNNING, node_type=NodeType.PLAN, plan=Plan(tasks=tasks))

    def _say(self, key: StepKey, verdict: str) -> None:
        said = {"step": str(key), "verdict": verdict, "words": "because"}
        if self.driving is None:
            self._with_log(lambda log: log.send(self.run_id, "approve", said))
            return
        self._do(self.log.send(self.run_id, "approve", said))
        self._do(self._taken())
        self._settle()

    async def _taken(self) -> None:
        for _ in range(300):
            if not await self.log.pending(self.run_id) or self._driven().done():
                return
            await asyncio.sleep(0.01)
        raise AssertionError("nobody took the answer")

    def _bring_to_an_end(self) -> None:
        for _ in range(400):
            if self.driving is None:
                state = self._state()
                if state.status is RunStatus.COMPLETED:
                    break
                for approval in state.open_approvals:
                    self._say(approval.key, "approve")
                self.resume()
            elif self._steps():
                step = self._steps()[0]
                step.end(self._outcome_of(step))
                self._settle()
        state = self._state()
        assert state.status is RunStatus.COMPLETED
        assert state.root is not None
        assert state.root.outcome is not None
        assert state.root.outcome.value == expected("g", self.shape)


TestRun = RunMachine.TestCase
TestRun.settings = settings(
    max_examples=8,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
