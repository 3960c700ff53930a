"""The coordinator: one loop, one log writer, one pool of workers, any number of runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from roma_ray import clock, faults
from roma_ray.cluster import create_backend, garbage
from roma_ray.cluster.backend import Backend, Session
from roma_ray.config import Config
from roma_ray.engine import entry, estimate
from roma_ray.engine.definition import fingerprint
from roma_ray.engine.files import BroughtFile, bring_back, bring_in
from roma_ray.engine.fork import Cut, forked, with_copied_values
from roma_ray.engine.limits import prices_of, with_limits, worst_case
from roma_ray.engine.places import Places
from roma_ray.engine.recording import Recording, check_recordable, read_recording, write_recording
from roma_ray.engine.request import SessionArgument
from roma_ray.engine.result import Result, all_warnings
from roma_ray.engine.run import OnEvent, Run
from roma_ray.engine.solver import solve_node
from roma_ray.engine.state import ROOT, Node, RunState, Solved
from roma_ray.engine.stored import value_store
from roma_ray.engine.tree import fold, restore_answers
from roma_ray.engine.watch import Leave, watch
from roma_ray.errors import (
    DeadLettered,
    Fenced,
    ModelUnavailable,
    RomaError,
    StoreFull,
    StoreUnavailable,
    UserError,
)
from roma_ray.lm import local_model
from roma_ray.lm.local_server import LocalServer
from roma_ray.lm.providers import ResolvedModels, with_local_endpoint
from roma_ray.runlog import inbox
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import LEASE_TTL_S, RunLog
from roma_ray.types import Fault, Json, NodeStatus, Outcome, RunStatus, StepKey

_log = logging.getLogger(__name__)

Say = Callable[[str], None]
"""Takes a line for a person: what is being waited for."""


class Coordinator:
    """Hosts runs. Open it with `async with Coordinator.opened(config)`; all runs share its cluster and run log."""

    def __init__(self, log: RunLog, backend: Backend, say: Say) -> None:
        self._log = log
        self._backend = backend
        self._places = Places(backend)
        self._say = say
        self._exit = contextlib.AsyncExitStack()
        self._local: dict[str, str] = {}
        self._starting_local = asyncio.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, config: Config, *, say: Say = lambda line: None) -> AsyncGenerator[Coordinator]:
        """Open the run log, then the cluster. Raises ConfigError, FolderUnusable, StoreUnavailable, NothingPlaced."""
        log = await RunLog.open(config.runlog)
        try:
            backend = create_backend(config.cluster)
            if config.cluster.mode != "inline":
                say("starting Ray, or joining it; this takes some seconds")
            await backend.open()
            self = cls(log, backend, say)
            try:
                async with self._exit:
                    with garbage.relaxed():
                        yield self
            finally:
                await backend.close()
        finally:
            await log.close()

    async def solve(
        self,
        goal: str,
        resolved: ResolvedModels,
        *,
        answer_schema: Json,
        stored: dict[str, Json],
        files: Sequence[Path] = (),
        recording: Recording | None = None,
        on_event: OnEvent | None = None,
    ) -> Result:
        """Start a run and bring it to an end. `stored` is the config as the run log keeps it, without secrets.

        With a `recording` the run has its day and files, and every call is answered from it.
        Raises UserError for what is wrong before the first call; Fenced, StoreUnavailable and StoreFull when the run
        has to be left; CancelledError leaves it interrupted. Everything else is in the result.
        """
        resolved = with_limits(resolved)
        run_id = clock.new_run_id()
        await self._check_modules(run_id, goal, resolved)
        storage = resolved.config.storage
        brought = await asyncio.to_thread(bring_in, files, storage, run_id)
        if recording is not None:
            brought = await asyncio.to_thread(bring_back, recording.files, storage, run_id)
        await _check_record(resolved.config, brought)
        started: dict[str, Json] = {
            "goal": goal,
            "day": recording.day if recording is not None else clock.today(),
            "answer_schema": answer_schema,
            "files": [file.to_plain() for file in brought],
            **_definition(resolved.config, stored),
        }
        lease = await self._log.create(run_id, goal=goal, started=started)
        return await self._drive(lease, resolved, on_event, recording=recording, notes=resolved.notes)

    async def fork(
        self,
        run_id: str,
        resolved: ResolvedModels,
        *,
        stored: dict[str, Json],
        cut: Cut | None,
        anew: dict[str, Json] | None = None,
        on_event: OnEvent | None = None,
    ) -> Result:
        """Start a run with all of `run_id` but what `cut` names and what was made from it, and bring it to an end.

        `anew` takes the place of what the first run's first event says. The first run stays as it is, whoever holds it.
        Raises UsageError for a node that it has not, and what `solve` raises.
        """
        resolved = with_limits(resolved)
        await _check_record(resolved.config)
        new_id = clock.new_run_id()
        events = forked(await self._log.read(run_id), {**_definition(resolved.config, stored), **(anew or {})}, cut)
        goal = str(events[0].payload["goal"])
        await self._check_modules(new_id, goal, resolved)
        await asyncio.to_thread(bring_in, (), resolved.config.storage, new_id)
        events = await with_copied_values(events, resolved.config.storage, run_id, new_id)
        recording = await _recording_of(resolved.config)
        lease = await self._log.import_run(new_id, goal=goal, events=events)
        faults.hit("fork.imported")
        if cut is None:
            await self._forward_answers(run_id, new_id)
        return await self._drive(lease, resolved, on_event, recording=recording, notes=resolved.notes)

    async def _forward_answers(self, run_id: str, new_id: str) -> None:
        """What people said to the first run and nobody has read is meant for the one that goes on."""
        for message in await self._log.pending(run_id):
            if message.kind == inbox.APPROVE:
                await self._log.send(new_id, message.kind, message.payload)

    async def _check_modules(self, run_id: str, goal: str, resolved: ResolvedModels) -> None:
        somewhere = with_local_endpoint(resolved, "http://127.0.0.1/v1")
        argument = SessionArgument(
            run_id=run_id, goal=goal, day=clock.today(), config=somewhere.config, keys=somewhere.keys
        )
        await entry.check_modules(argument)

    async def resume(
        self,
        run_id: str,
        resolved: ResolvedModels,
        *,
        reopened: dict[str, Json] | None,
        on_event: OnEvent | None = None,
    ) -> Result:
        """Go on with a run that nobody holds. `reopened` is the payload of `run.reopened`, where it has to be that.

        Raises RunHeld, RunNotFound, and what `solve` raises.
        """
        resolved = with_limits(resolved)
        await _check_record(resolved.config)
        recording = await _recording_of(resolved.config)
        # In one commit: whoever is stopped between the two would leave a run that seems to be at work on its failures.
        then = [] if reopened is None else [NewEvent(type=EventType.RUN_REOPENED, payload=reopened)]
        lease = await self._log.take(run_id, then=then)
        return await self._drive(lease, resolved, on_event, recording=recording)

    async def _drive(
        self,
        lease: Lease,
        resolved: ResolvedModels,
        on_event: OnEvent | None,
        *,
        recording: Recording | None = None,
        notes: Sequence[str] = (),
    ) -> Result:
        status = RunStatus.INTERRUPTED
        try:
            past = await self._log.read(lease.run_id)
            if on_event is not None:
                # A view folds the same events as we do, so it is given those from before it looked.
                for event in past:
                    on_event(event)
            state = fold(past)
            restore_answers(state, past)
            if recording is None:
                resolved = await self._with_local_server(resolved)
            run = Run(
                config=resolved.config,
                log=self._log,
                lease=lease,
                backend=self._backend,
                places=self._places,
                state=state,
                worst_case=worst_case(resolved.config),
                on_event=on_event,
                recording=recording,
            )
            for text in notes:
                run.warn(text)
            async with self._session(run, resolved):
                result = await self._to_an_end(run, lease)
            status = result.status
            return result
        finally:
            # A second Ctrl-C must not leave the lease behind: others would have to wait for it to lapse.
            await asyncio.shield(self._release(lease, status))
            await asyncio.shield(self._record(lease.run_id, resolved.config))

    async def _record(self, run_id: str, config: Config) -> None:
        if config.record is None:
            return
        try:
            events = await self._log.read(run_id)
            await asyncio.to_thread(write_recording, config.record, events, config.storage)
        except RomaError as error:
            # The run has an end already, which a recording cannot take back.
            self._say(f"the run was not recorded: {error.line}; later: roma-ray export {run_id} --traffic FILE")

    async def _release(self, lease: Lease, status: RunStatus) -> None:
        with contextlib.suppress(Fenced, StoreUnavailable, StoreFull):
            await self._log.release(lease, status)

    async def _to_an_end(self, run: Run, lease: Lease) -> Result:
        if run.state.recoveries > run.config.limits.max_recoveries:
            await _ended(run, RunStatus.DEAD_LETTER, _dead_letter(run.state).fault)
            return _result(run.state, None)
        solving = asyncio.create_task(self._solve_root(run), name=f"solve {run.run_id}")
        left: list[Leave] = []
        watching = asyncio.create_task(
            watch(run, lease, self._log, self._backend, solving, left), name=f"watch {run.run_id}"
        )
        value: Json = None
        try:
            solved = await solving
            await self._tell_unused(run)
            value, status = await run.value(solved), _status_of(solved.outcome)
            fault = None if status is RunStatus.COMPLETED else solved.outcome.fault
        except asyncio.CancelledError:
            if not left:
                await asyncio.shield(_ended(run, RunStatus.INTERRUPTED, None))
                raise
            if left[0].error is not None:
                raise left[0].error from None
            status, fault = left[0].status, left[0].fault
        except (Fenced, StoreUnavailable, StoreFull):
            raise
        except RomaError as error:
            status, fault = RunStatus.FAILED, error.fault
        except Exception as error:
            _log.exception("run %s failed by a bug", run.run_id)
            status, fault = RunStatus.FAILED, RomaError(f"{type(error).__name__}: {error}").fault
        finally:
            watching.cancel()
        await _ended(run, status, fault)
        return _result(run.state, value)

    async def _tell_unused(self, run: Run) -> None:
        unused = run.recording.unused(await self._log.read(run.run_id)) if run.recording is not None else 0
        if unused:
            run.warn(f"the replay did not make {unused} of the recorded calls")

    async def _solve_root(self, run: Run) -> Solved:
        try:
            return await self._solve_or_plan(run)
        except BaseExceptionGroup as group:
            # A task group wraps what stopped it, once per level of the tree.
            raise _first(group) from group

    async def _solve_or_plan(self, run: Run) -> Solved:
        root = run.state.nodes[ROOT]
        inputs = [_solved_file(BroughtFile.from_plain(file)) for file in run.state.files]
        if not run.plan_only:
            return await solve_node(run, root, inputs)
        key = StepKey(ROOT, "descend", 0)
        planned = await run.step(key, inputs)
        if planned.status is NodeStatus.FAILED:
            return Solved(root, key, planned)
        report = estimate.report(planned, run.config, prices_of(run.config))
        return Solved(root, key, Outcome(status=NodeStatus.COMPLETED, value=report, warnings=planned.warnings))

    @contextlib.asynccontextmanager
    async def _session(self, run: Run, resolved: ResolvedModels) -> AsyncGenerator[None]:
        # The url may hold a password, and a worker writes no log.
        runlog = resolved.config.runlog.model_copy(update={"url": ""})
        argument = SessionArgument(
            run_id=run.run_id,
            goal=run.state.goal,
            day=run.state.day,
            config=resolved.config.model_copy(update={"runlog": runlog}),
            keys=resolved.keys,
            answer_schema=run.state.answer_schema,
        )
        session = Session(
            id=run.run_id,
            setup=entry.open_session,
            argument=argument,
            teardown=entry.close_session,
            renew=entry.renew_session,
            ttl_s=LEASE_TTL_S,
        )
        await self._backend.open_session(session)
        try:
            yield
        finally:
            await self._backend.close_session(run.run_id)

    async def _with_local_server(self, resolved: ResolvedModels) -> ResolvedModels:
        if not resolved.uses_local_model:
            return resolved
        if self._backend.machines > 1:
            raise ModelUnavailable(
                f"the embedded model serves one machine, and this cluster has {self._backend.machines}",
                cure="set a key or lm.api_base, or use cluster=local",
            )
        async with self._starting_local:
            name = resolved.local_model
            if name not in self._local:
                path = await asyncio.to_thread(local_model.get, name, progress=self._say)
                self._say("starting the embedded model")
                server = await self._exit.enter_async_context(LocalServer(path))
                self._local[name] = server.base_url
        return with_local_endpoint(resolved, self._local[name])


def _definition(config: Config, stored: dict[str, Json]) -> dict[str, Json]:
    """What a run's first event says of how it is done."""
    shaped_by = fingerprint(config)
    return {"version": shaped_by["version"], "config": stored, "fingerprint": shaped_by}


async def _check_record(config: Config, files: Sequence[BroughtFile] = ()) -> None:
    if config.record is not None:
        await asyncio.to_thread(check_recordable, config.record, files)


async def _recording_of(config: Config) -> Recording | None:
    return await asyncio.to_thread(read_recording, config.replay) if config.replay is not None else None


def _dead_letter(state: RunState) -> DeadLettered:
    """The fault of a run that is given up, with the steps that were open when its process died."""
    steps = ", ".join(
        node.id for node in state.nodes.values() if node.status is NodeStatus.RUNNING and not node.children
    )
    return DeadLettered(
        f"the process of run {state.run_id} died {state.recoveries} times in a row without getting further"
        + (f"; at work were: {steps}" if steps else "")
    )


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that says most: one that a person can act on, else the first that is not just a cancellation."""
    leaves: list[BaseException] = []
    queue: list[BaseException] = [group]
    while queue:
        error = queue.pop(0)
        if isinstance(error, BaseExceptionGroup):
            queue.extend(error.exceptions)
        else:
            leaves.append(error)
    rank = {True: 0, False: 1}
    return min(leaves, key=lambda e: (rank[isinstance(e, UserError)], rank[isinstance(e, Exception)]))


async def _ended(run: Run, status: RunStatus, fault: Fault | None) -> None:
    limit = next((n.outcome.limit_reached for n in run.state.walk() if n.outcome and n.outcome.limit_reached), "")
    payload: dict[str, Json] = {
        "status": status.value,
        "fault": fault.to_plain() if fault else None,
        "limit_reached": limit,
        "wall_s": run.ran_s(),
    }
    faults.hit("run.before_end")
    await run.append(EventType.RUN_ENDED, payload)
    faults.hit("run.after_end")


def _status_of(outcome: Outcome) -> RunStatus:
    if outcome.status is NodeStatus.COMPLETED:
        return RunStatus.COMPLETED
    return RunStatus.PARTIAL if outcome.has_value else RunStatus.FAILED


def _result(state: RunState, value: Json) -> Result:
    root = state.root
    assert root is not None
    return Result(
        run_id=state.run_id,
        status=state.status,
        goal=state.goal,
        output=value,
        sources=root.outcome.sources if root.outcome else (),
        warnings=all_warnings(state),
        limit_reached=state.limit_reached,
        fault=state.fault,
        usage=state.usage,
        wall_s=state.ran_s,
        state=state,
    )


async def stored_result(state: RunState, config: Config) -> Result:
    """The result of a run as the log has it, ended or not. Raises ValueLost when its value is gone."""
    outcome = state.root.outcome if state.root else None
    if outcome is None or outcome.handle is None:
        return _result(state, outcome.value if outcome else None)
    store = value_store(config.storage, state.run_id)
    return _result(state, await asyncio.to_thread(store.get, outcome.handle))


def _solved_file(file: BroughtFile) -> Solved:
    node_id = f"file:{file.name}"
    outcome = Outcome(status=NodeStatus.COMPLETED, value=file.text, handle=file.handle)
    return Solved(Node(id=node_id, goal=f"the file {file.name}"), StepKey(node_id, "descend"), outcome)
