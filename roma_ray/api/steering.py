"""Tell a run something: cancel it, answer what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from roma_ray import clock
from roma_ray.api.runs import load_state
from roma_ray.api.shared import run_log
from roma_ray.config import Config, load_config
from roma_ray.engine.approvals import edited_plan, find_open
from roma_ray.engine.standing import read_run
from roma_ray.engine.state import Approval, Verdict
from roma_ray.engine.tree import fold
from roma_ray.errors import Cancelled, RunHeld, UsageError
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.inbox import APPROVE, CANCEL
from roma_ray.runlog.log import RunLog
from roma_ray.types import Json, RunStatus

_TAKEN_WITHIN_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """What became of a word to a run: `taken` says whether it counts already.

    Otherwise it lies there for the next process that goes on with the run.
    """

    run_id: str
    taken: bool


async def cancel(config: Config, run_id: str, *, reason: str = "") -> Delivery:
    """Cancel a run, through the process that holds it or, where none does, at once.

    Raises RunNotFound, and UsageError for a run that has ended, or ends otherwise before the word reaches it.
    """
    async with run_log(config.runlog) as log:
        run_id = await log.find(run_id)
        _refuse_ended(run_id, fold(await log.read(run_id)).status)
        try:
            lease = await log.take(run_id)
        except RunHeld:
            await _delivered(log, run_id, CANCEL, {"reason": reason}, is_held=True)
            status = fold(await log.read(run_id)).status
            if status is not RunStatus.CANCELLED:
                _refuse_ended(run_id, status)
            return Delivery(run_id=run_id, taken=status is RunStatus.CANCELLED)
        past = [event for event in await log.read(run_id) if event.epoch < lease.epoch]
        ended = _cancelled(reason)
        if (status := fold(past).status).is_end:
            # Its holder brought it to an end since we looked; taking it over has opened it again.
            (*_, last) = (event.payload for event in past if event.type is EventType.RUN_ENDED)
            ended = {**last, "wall_s": 0.0}
        await log.append(lease, NewEvent(type=EventType.RUN_ENDED, payload=ended))
        await log.release(lease, RunStatus(ended["status"]))
        _refuse_ended(run_id, status)
        return Delivery(run_id=run_id, taken=True)


def _refuse_ended(run_id: str, status: RunStatus) -> None:
    if status.is_end:
        raise UsageError(f"run {run_id} has ended: {status.value}", cure="there is nothing to cancel")


def _cancelled(reason: str) -> dict[str, Json]:
    fault = Cancelled(reason or "the run was cancelled").fault
    return {"status": RunStatus.CANCELLED.value, "fault": fault.to_plain()}


async def open_approvals(config: Config, run_id: str) -> list[Approval]:
    """What a run waits for a person to say, in the order of asking. Raises RunNotFound."""
    return (await load_state(config, run_id)).open_approvals


async def approve(
    config: Config,
    run_id: str,
    approval_id: str,
    *,
    verdict: Verdict,
    words: str = "",
    plan: Sequence[Mapping[str, Any]] | None = None,
    value: Json = None,
    by: str = "",
) -> Delivery:
    """Answer what a run waits for: `approval_id` is its step, such as `root.1/descend~0`, or its node.

    `reject` sends `words` back to the Planner; `edit` puts `plan` (a list of `{goal, task_type, depends_on}`) or, for a
    final answer, `value` in the place of what was proposed. The first answer counts. Raises RunNotFound, and UsageError
    that names what is open when nothing waits under that id, or says what is wrong with the answer.
    """
    if verdict not in get_args(Verdict):
        raise UsageError(f"{verdict!r} is no verdict", cure=f"say one of {', '.join(get_args(Verdict))}")
    async with run_log(config.runlog) as log:
        state, _ = await read_run(log, run_id)
        run_id = state.run_id
        approval = find_open(state, approval_id)
        answer: dict[str, Json] = {"step": str(approval.key), "verdict": verdict, "words": words, "by": by}
        if verdict == "reject" and not words.strip():
            raise UsageError("a rejection says nothing", cure="say in words what has to be different")
        if verdict == "edit" and approval.kind == "plan":
            stored = load_config([], base=state.config).config
            answer["plan"] = edited_plan(state, approval.key, plan or (), stored).to_plain()
        elif verdict == "edit":
            if value is None:
                raise UsageError("an edited answer is missing", cure="give it as value")
            _refuse_unfit(value, state.answer_schema)
            answer["value"] = value
        return await _delivered(log, run_id, APPROVE, answer, is_held=state.status is RunStatus.RUNNING)


def _refuse_unfit(value: Json, schema: Json) -> None:
    if schema is None:
        return
    # Imported here: only an answer with a schema pays for it.
    import jsonschema

    try:
        jsonschema.validate(value, schema)
    except jsonschema.ValidationError as error:
        raise UsageError(
            f"the answer does not fit its schema: {error.json_path}: {error.message}", cure="correct it, then send it"
        ) from error


async def _delivered(log: RunLog, run_id: str, kind: str, payload: dict[str, Json], *, is_held: bool) -> Delivery:
    await log.send(run_id, kind, payload)
    deadline_s = clock.mono_s() + _TAKEN_WITHIN_S
    while await log.pending(run_id):
        if not is_held or clock.mono_s() > deadline_s:
            return Delivery(run_id=run_id, taken=False)
        await asyncio.sleep(0.1)
    return Delivery(run_id=run_id, taken=True)
