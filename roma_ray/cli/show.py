"""`roma-ray show RUN` and `show RUN NODE`: a run's tree, a node's prompts and answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from roma_ray.cli import render
from roma_ray.cli.output import print_json
from roma_ray.cli.questions import question_lines, resume_command
from roma_ray.cli.reading import opened_log
from roma_ray.engine.result import approvals_document, fault_document, tree_document
from roma_ray.engine.standing import read_run
from roma_ray.engine.state import Node, RunState
from roma_ray.errors import UsageError
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import CallRecord, Fault, Json, RunStatus

_CALLS = (EventType.CALL_ANSWERED, EventType.CALL_CACHED, EventType.CALL_FAILED)


def show_run(run: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print how the run that `run`, an id or a unique beginning of one, names stands: goal, tree, answer, faults."""
    state, _ = read_standing(overrides, run)
    if as_json:
        print_json(run_document(state))
        return
    print(f"run {state.run_id}: {state.status.value}, {render.usage_text(state.usage)}")
    print(f"goal: {state.goal}\n")
    if state.forked_from:
        part = f", anew from {state.forked_from['node_id']}" if state.forked_from.get("node_id") else ""
        print(f"begun as run {state.forked_from['run_id']}{part}\n")
    for line in render.tree_lines(state):
        print(line.branch + line.text)
    root = state.root
    answer = _answer(root) if root else ""
    if answer:
        print(f"\n{answer}")
    for warning in state.warnings:
        print(f"\nwarning: {warning}")
    if state.fault:
        print(f"\n{_fault_line(state.fault)}")
    for line in question_lines(state):
        print(line)
    if state.status not in (RunStatus.COMPLETED, RunStatus.RUNNING):
        print(f"\nresume: {resume_command(state.run_id)}")


def show_node(run: str, node_id: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print one node of a run with every model call it made. Raises UsageError when the run has no such node."""
    state, events = read_standing(overrides, run)
    node = state.nodes.get(node_id)
    if node is None:
        names = render.cut(", ".join(state.nodes), 200)
        raise UsageError(f"run {state.run_id} has no node {node_id}", cure=f"one of {names}")
    calls = [CallRecord.from_plain(e.payload) for e in events if e.node_id == node_id and e.type in _CALLS]
    if as_json:
        print_json({**_node_document(node), "calls": [call.to_plain() for call in calls]})
        return
    print(f"{node.id}: {node.status.value}, {render.usage_text(node.usage)}")
    print(f"goal: {node.goal}")
    if node.depends_on:
        print(f"needs: {', '.join(node.depends_on)}")
    if _answer(node):
        print(f"output:\n{_indented(_answer(node))}")
    if node.fault:
        print(_fault_line(node.fault))
    for number, call in enumerate(calls, start=1):
        print("\n" + "\n".join(_call_lines(number, call)))


def read_standing(overrides: Sequence[str], run: str) -> tuple[RunState, list[Event]]:
    """How the run that `run`, an id or a unique beginning of one, names stands, and its events. Raises RunNotFound."""

    async def read() -> tuple[RunState, list[Event]]:
        async with opened_log(overrides) as log:
            return await read_run(log, run)

    return asyncio.run(read())


def run_document(state: RunState) -> dict[str, Json]:
    """How a run stands, as `show --json` and `tree --json` print it."""
    return {
        "run_id": state.run_id,
        "status": state.status.value,
        "goal": state.goal,
        "warnings": list(state.warnings),
        "limit_reached": state.limit_reached or None,
        "error": fault_document(state.fault),
        "approvals": approvals_document(state),
        "forked_from": state.forked_from,
        "usage": state.usage.as_dict(),
        "tree": tree_document(state),
    }


def _node_document(node: Node) -> dict[str, Json]:
    return {
        "id": node.id,
        "goal": node.goal,
        "status": node.status.value,
        "depends_on": list(node.depends_on),
        "children": list(node.children),
        "output": node.outcome.value if node.outcome else None,
        "error": fault_document(node.fault),
        "usage": node.usage.as_dict(),
    }


def _answer(node: Node) -> str:
    outcome = node.outcome
    if outcome is None:
        return ""
    if outcome.handle is not None:
        return f"{outcome.handle.preview}\n[{outcome.handle.size_bytes} bytes are stored as {outcome.handle.path}]"
    return render.value_text(outcome.value)


def _fault_line(fault: Fault) -> str:
    return f"{fault.code} {fault.message}" + (f" - {fault.cure}" if fault.cure else "")


def _call_lines(number: int, call: CallRecord) -> Iterator[str]:
    tokens = f"{call.usage.prompt_tokens} + {call.usage.completion_tokens} tokens"
    facts = [call.model, tokens, render.seconds(call.latency_s)]
    facts += ["known already"] if call.cached else []
    facts += [call.finish_reason] if call.finish_reason else []
    yield f"── call {number}: {call.role}, {', '.join(facts)}"
    if call.request is None and not call.cached:
        yield "  (the prompt was not kept: runlog.prompts=hash)"
    for who, text in _messages(call.request):
        yield f"  {who}:"
        yield _indented(text)
    if call.response is not None:
        yield "  answer:"
        yield _indented(_parts_text(call.response.get("message")))
    if call.fault is not None:
        yield f"  {_fault_line(call.fault)}"


def _messages(request: Json) -> Iterator[tuple[str, str]]:
    """Who said what in a canonical request."""
    if not isinstance(request, Mapping):
        return
    system = request.get("system")
    if system:
        yield "system", system if isinstance(system, str) else _parts_text({"parts": system})
    for message in request.get("messages", ()):
        yield message["role"], _parts_text(message)


def _parts_text(message: Any) -> str:
    parts = message.get("parts", ()) if isinstance(message, Mapping) else ()
    return "\n".join(part["text"] if "text" in part else render.value_text(part) for part in parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
