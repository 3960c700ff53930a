"""`roma-ray approve` and `roma-ray cancel`: a word to a run, whichever process drives it."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from roma_ray.cli.output import print_json, print_text
from roma_ray.cli.questions import answer_command, question, question_lines, resume_command
from roma_ray.cli.reading import opened_log
from roma_ray.cli.render import cut, value_text
from roma_ray.config import Config, load_config
from roma_ray.engine.approvals import find_open
from roma_ray.engine.result import approvals_document
from roma_ray.engine.state import Approval, RunState, Verdict
from roma_ray.errors import UsageError
from roma_ray.runlog.inbox import APPROVE, InboxMessage
from roma_ray.types import Json


def cancel_run(run: str, overrides: Sequence[str], *, reason: str, as_json: bool) -> None:
    """Cancel a run, and say whether that counts already."""
    from roma_ray import api

    delivery = asyncio.run(api.cancel(load_config(overrides).config, run, reason=reason))
    if as_json:
        print_json({"run_id": delivery.run_id, "taken": delivery.taken})
    elif delivery.taken:
        print_text(f"run {delivery.run_id} is cancelled")
    else:
        print_text(f"run {delivery.run_id} will be cancelled as soon as the process that drives it is heard again")


def list_approvals(run: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print what a run waits for a person to say, each with its plan or answer and the commands that answer it."""
    state = _state(load_config(overrides).config, run)
    if as_json:
        print_json(approvals_document(state))
    elif not state.open_approvals:
        print_text(f"run {state.run_id} waits for nobody: it is {state.status.value}")
    else:
        proposals = (f"{_heading(state, a)}\n{_indented(_proposal(state, a))}" for a in state.open_approvals)
        print_text("\n\n".join([*proposals, "\n".join(question_lines(state))]))


def show_approval(run: str, name: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print one plan, as YAML that `--edit` takes, or one final answer, whole."""
    from roma_ray import api

    config = load_config(overrides).config
    state = _state(config, run)
    approval = find_open(state, name)
    if as_json:
        print_json(_document(state, approval))
    elif approval.kind == "plan":
        print_text(_proposal(state, approval).rstrip("\n"))
    else:
        print_text(value_text(asyncio.run(api.load_result(config, state.run_id)).output))


def answer_approval(
    run: str, name: str, overrides: Sequence[str], *, reject: str | None, edit: str | None, as_json: bool
) -> None:
    """Approve what waits under `name`, or reject it with words, or put the content of the file `edit` in its place.

    `edit` is a path, or `-` for stdin. Raises UsageError when nothing waits there, or for what cannot be read.
    """
    from roma_ray import api

    if reject is not None and edit is not None:
        raise UsageError("both --reject and --edit are given", cure="give one of them")
    config = load_config(overrides).config
    state = _state(config, run)
    approval = find_open(state, name)
    _refuse_second(overrides, state, approval)
    verdict: Verdict = "edit" if edit is not None else "reject" if reject is not None else "approve"
    given = _edited(state, approval, edit) if edit is not None else {}
    said = api.approve(config, state.run_id, str(approval.key), verdict=verdict, words=reject or "", by=_who(), **given)
    delivery = asyncio.run(said)
    if as_json:
        print_json({"run_id": delivery.run_id, "taken": delivery.taken, "verdict": verdict})
        return
    done = {"approve": "approved", "edit": "edited", "reject": "rejected"}[verdict]
    print_text(f"{approval.key.node_id}: {done}" + (", and the run goes on" if delivery.taken else ""))
    if not delivery.taken:
        _say_how_to_go_on(state, approval)


def _refuse_second(overrides: Sequence[str], state: RunState, approval: Approval) -> None:
    """The first answer counts, though it may lie there until somebody goes on with the run."""

    async def pending() -> list[InboxMessage]:
        async with opened_log(overrides) as log:
            return await log.pending(state.run_id)

    for message in asyncio.run(pending()):
        if message.kind == APPROVE and message.payload.get("step") == str(approval.key):
            raise UsageError(
                f"{approval.key.node_id} was answered already: {message.payload['verdict']}",
                cure=f"go on with: {resume_command(state.run_id)}",
            )


def _say_how_to_go_on(state: RunState, answered: Approval) -> None:
    """No process drives the run, so that what else it waits for can be answered before somebody goes on with it."""
    for other in state.open_approvals:
        if other.key != answered.key:
            print_text(f"also, {question(other)}: {answer_command(state.run_id, other)}")
    print_text(f"go on with: {resume_command(state.run_id)}")


def _state(config: Config, run: str) -> RunState:
    from roma_ray import api

    return asyncio.run(api.load_state(config, run))


def _heading(state: RunState, approval: Approval) -> str:
    return f"{question(approval)}: {cut(state.nodes[approval.key.node_id].goal, 90)}"


def _document(state: RunState, approval: Approval) -> dict[str, Any]:
    return next(d for d in approvals_document(state) if d["id"] == str(approval.key))


def _proposal(state: RunState, approval: Approval) -> str:
    document = _document(state, approval)
    return _as_yaml(document["plan"]) if approval.kind == "plan" else value_text(document["output"])


def _as_yaml(plan: Sequence[dict[str, Json]]) -> str:
    import yaml

    numbered = (
        f"# {number}\n{yaml.safe_dump([task], sort_keys=False, allow_unicode=True, width=100)}"
        for number, task in enumerate(plan)
    )
    return "".join(numbered)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _edited(state: RunState, approval: Approval, source: str) -> dict[str, Any]:
    text = _text_of(source)
    if approval.kind == "plan":
        return {"plan": _plan_of(text, source)}
    if state.answer_schema is None:
        return {"value": text.rstrip("\n")}
    try:
        return {"value": orjson.loads(text)}
    except ValueError as error:
        raise UsageError(f"--edit {source} is not JSON, which the answer has to be: {error}") from error


def _plan_of(text: str, source: str) -> list[Any]:
    import yaml

    try:
        plan = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise UsageError(f"--edit {source} is neither YAML nor JSON: {where}", cure=_FORM) from error
    if not isinstance(plan, list):
        raise UsageError(f"--edit {source} holds no list of subtasks", cure=_FORM)
    return list(_whole(plan))


_FORM = "write a list of {goal: …, task_type: …, depends_on: [positions]}; --show prints one"


def _whole(plan: list[Any]) -> Iterator[Any]:
    """A goal alone is a subtask with the defaults."""
    for task in plan:
        yield {"goal": task} if isinstance(task, str) else task


def _text_of(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).expanduser().read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(
            f"--edit {source}: {error.strerror}", cure="give the path of a file, or - for stdin"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--edit {source} is not UTF-8 text", cure="save it as UTF-8") from error


def _who() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A user id without a name, as in some containers.
        return ""
