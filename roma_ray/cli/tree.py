"""`roma-ray tree RUN`: a run's tree as it stands, or as it grows in whatever process drives it."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Sequence

import orjson

from roma_ray import clock
from roma_ray.cli import render
from roma_ray.cli.live import open_view
from roma_ray.cli.output import print_json, print_text
from roma_ray.cli.questions import question_lines, resume_command
from roma_ray.cli.reading import opened_log
from roma_ray.cli.show import read_standing, run_document
from roma_ray.engine.standing import interrupt
from roma_ray.engine.state import RunState
from roma_ray.engine.tree import apply
from roma_ray.runlog.events import Event
from roma_ray.types import RunStatus

_EVERY_S = 0.5
_QUIET_LOOKS = 6
"""After so many looks without news it is asked whether anybody still drives the run."""


def print_tree(run: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Print the tree of the run that `run`, an id or a unique beginning of one, names, with what it waits for."""
    state, _ = read_standing(overrides, run)
    if as_json:
        print_json(run_document(state))
        return
    print_text("\n".join(_tree_text(state)))


def watch_tree(run: str, overrides: Sequence[str], *, as_json: bool) -> None:
    """Show the tree of a run that another process drives until nobody drives it any more.

    On a terminal it is drawn in place; elsewhere it is printed once, then a line for each thing that happens. With
    `as_json` every event, past ones included, is a line of JSON.
    """
    if as_json:
        asyncio.run(_follow(run, overrides, _print_event))
        return
    with open_view(sys.stdout) as view:
        state = asyncio.run(_follow(run, overrides, view.on_event, None if sys.stdout.isatty() else _print_first))
    print_text("\n".join(_end_lines(state)))


def _tree_text(state: RunState) -> list[str]:
    # A tree that is piped somewhere is not cut more than it has to be.
    width = max(100, shutil.get_terminal_size((100, 24)).columns)
    lines = render.tree_lines(state, width=width, now_s=time.time() if state.status is RunStatus.RUNNING else 0.0)
    return [line.branch + line.text for line in lines] + _end_lines(state)


def _end_lines(state: RunState) -> list[str]:
    ended = f"run {state.run_id}: {state.status.value}, {render.usage_text(state.usage)}"
    go_on = [f"resume: {resume_command(state.run_id)}"] if _can_go_on(state) else []
    return ["", ended, *question_lines(state), *go_on]


def _can_go_on(state: RunState) -> bool:
    return state.status not in (RunStatus.RUNNING, RunStatus.COMPLETED)


async def _follow(
    run: str,
    overrides: Sequence[str],
    on_event: Callable[[Event], None],
    on_past: Callable[[RunState], None] | None = None,
) -> RunState:
    """Give every event of a run to `on_event`, as it comes, until nobody drives the run; returns its last state.

    `on_past` is called once, with the state after all that had happened before.
    """
    state, quiet = RunState(), 0
    async with opened_log(overrides) as log:
        run_id = await log.find(run)
        while True:
            # Asked before the events are read: who leaves in between has written its last one.
            is_driven = quiet < _QUIET_LOOKS or (await log.run(run_id)).status is RunStatus.RUNNING
            events = await log.read(run_id, after=state.seq)
            for event in events:
                apply(state, event)
                on_event(event)
            if on_past is not None:
                on_past(state)
                on_past = None
            quiet = 0 if events or quiet >= _QUIET_LOOKS else quiet + 1
            if state.status is not RunStatus.RUNNING:
                return state
            if not is_driven and not events:
                interrupt(state)
                return state
            await asyncio.sleep(_EVERY_S)


def _print_first(state: RunState) -> None:
    print_text("\n".join(line.branch + line.text for line in render.tree_lines(state, now_s=time.time())))


def _print_event(event: Event) -> None:
    document = {
        "seq": event.seq,
        "time": clock.iso(event.time_s),
        "type": event.type.value,
        "node_id": event.node_id,
        "payload": event.payload,
    }
    print_text(orjson.dumps(document).decode())
