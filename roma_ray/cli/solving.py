"""What `python -m roma_ray.solve` does once there is something to solve; `resume` and `rerun` do the same."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from roma_ray.cli import render
from roma_ray.cli.exits import INTERRUPTED, ended, print_fault
from roma_ray.cli.live import View, open_view
from roma_ray.cli.logs import start_logging
from roma_ray.cli.output import print_json, print_text
from roma_ray.cli.questions import question_lines, resume_command
from roma_ray.config import Config, load_config
from roma_ray.engine.result import Result, fault_document
from roma_ray.errors import RomaError, UsageError
from roma_ray.runlog.events import Event
from roma_ray.types import RunStatus, Usage

OnEvent = Callable[[Event], None]
Say = Callable[[str], None]
Work = Callable[[Config, OnEvent, Say], Coroutine[Any, Any, Result]]
"""Drives a run to its end."""


def solve_command(args: Sequence[str]) -> int:
    """Solve, resume or replay what the overrides in `args` say, print the answer, and return the exit code.

    Every error is told here: on one line, as a document too where `output=json` was asked for. A run that was begun and
    did not complete says last how it is resumed.
    """

    def work(config: Config, on_event: OnEvent, say: Say) -> Coroutine[Any, Any, Result]:
        if config.resume:
            return _resume(config.resume, args, on_event, say)
        if config.replay:
            return _replay(config, args, on_event, say)
        return _begin(_goal(config), config, on_event, say)

    return _driven(args, work)


def rerun_command(run: str, *, node: str, goal: str | None, overrides: Sequence[str]) -> int:
    """Do the run `run` anew from `node`, as `solve_command` does a goal."""

    def work(config: Config, on_event: OnEvent, say: Say) -> Coroutine[Any, Any, Result]:
        return _rerun(run, node, goal, overrides, on_event, say)

    return _driven(overrides, work)


def _driven(args: Sequence[str], work: Work) -> int:
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        # Closed by whoever started us (`2>&-`).
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    view = open_view(sys.stderr)

    def also(error: RomaError) -> None:
        if "output=json" in args:
            print_json(_error_document(view.run_id, error))

    errors = "traceback" if "traceback=true" in args else "line"
    code = ended(lambda: _to_its_end(args, work, view), errors=errors, also=also)
    if code and view.run_id:
        print(f"resume: {resume_command(view.run_id)}", file=sys.stderr)
    return code


def _to_its_end(args: Sequence[str], work: Work, view: View) -> int:
    loaded = load_config(args)
    # What .env adds counts for the whole process: keys of providers, ROMA_RAY_HOME.
    os.environ.update({name: text for name, text in loaded.environ.items() if name not in os.environ})
    config = loaded.config
    start_logging(config.log)
    signals = _StopSignals()

    def on_event(event: Event) -> None:
        if not view.run_id:
            # The first event of a run comes when Ray has started.
            signals.listen()
        view.on_event(event)

    running = work(config, on_event, view.say)
    with view:
        result = asyncio.run(_until_stopped(running, signals))
    if result is None:
        if config.output == "json" and view.run_id:
            print_json(asyncio.run(_as_it_stands(config, view.run_id)).to_plain())
        print("R0501 interrupted", file=sys.stderr)
        return INTERRUPTED
    _print_result(result, config)
    return result.exit_code


# The api brings DSPy and the database along, which a mistake on the command line should not have to wait for.


async def _begin(goal: str, config: Config, on_event: OnEvent, say: Say) -> Result:
    from roma_ray import api

    return await api.asolve(goal, config=config, on_event=on_event, say=say)


async def _resume(run_id: str, args: Sequence[str], on_event: OnEvent, say: Say) -> Result:
    from roma_ray import api

    return await api.aresume(run_id, overrides=args, on_event=on_event, say=say)


async def _replay(config: Config, args: Sequence[str], on_event: OnEvent, say: Say) -> Result:
    from roma_ray import api

    assert config.replay is not None
    goal = _goal(config) if config.goal is not None or config.goal_file is not None else None
    return await api.areplay(config.replay, goal=goal, overrides=args, on_event=on_event, say=say)


async def _rerun(
    run: str, node: str, goal: str | None, overrides: Sequence[str], on_event: OnEvent, say: Say
) -> Result:
    from roma_ray import api

    return await api.rerun(run, node=node, goal=goal, overrides=overrides, on_event=on_event, say=say)


async def _as_it_stands(config: Config, run_id: str) -> Result:
    from roma_ray import api

    return await api.load_result(config, run_id)


async def _until_stopped(work: Coroutine[Any, Any, Result], signals: _StopSignals) -> Result | None:
    """The result of `work`; None when Ctrl-C or a stop signal ended it."""
    task = asyncio.get_running_loop().create_task(work)
    signals.cancel(task)
    try:
        return await task
    except asyncio.CancelledError:
        if not signals.received:
            raise
        return None


class _StopSignals:
    """Lets the first Ctrl-C or stop signal cancel a task, so that it winds up; a second one does not wait any more."""

    def __init__(self) -> None:
        self.received = False
        self._task: asyncio.Task[Any] | None = None

    def cancel(self, task: asyncio.Task[Any]) -> None:
        """Let signals cancel `task`."""
        self._task = task
        self.listen()

    def listen(self) -> None:
        """Take the signals, also from whoever took them since: Ray's own handlers end the process at once."""
        if not self.received:
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        assert self._task is not None
        self.received = True
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
        self._task.cancel()


def _goal(config: Config) -> str:
    """The goal from `goal`, `goal_file` or a pipe. Raises UsageError when there is none, or more than one."""
    if config.goal is not None and config.goal_file is not None:
        raise UsageError("both goal and goal_file are given", cure="give one of them")
    if config.goal is not None:
        return config.goal
    if config.goal_file is not None:
        return _read(config.goal_file)
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()  # pyright: ignore[reportUnnecessaryComparison]
    if not piped.strip():
        raise UsageError("there is no goal", cure='give one: goal="…", goal_file=PATH, or through a pipe')
    return piped.strip()


def _read(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8-sig").strip()
    except OSError as error:
        raise UsageError(f"goal_file={path}: {error.strerror}", cure="give the path of a text file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"goal_file={path} is not UTF-8 text", cure="save it as UTF-8") from error


def _print_result(result: Result, config: Config) -> None:
    if config.output == "json":
        print_json(result.to_plain())
    else:
        text = render.answer_markdown(result) if config.output == "markdown" else render.answer_text(result)
        if text:
            print_text(text)
    if result.fault is not None:
        print_fault(result.fault)
    for line in question_lines(result.state):
        print(line, file=sys.stderr)
    if result.status is not RunStatus.FAILED:
        print(render.summary(result), file=sys.stderr)


def _error_document(run_id: str, error: RomaError) -> dict[str, Any]:
    """The document of `output=json` for a run that came to no result."""
    return {
        "run_id": run_id or None,
        "status": RunStatus.FAILED.value,
        "goal": None,
        "output": None,
        "sources": [],
        "warnings": [],
        "limit_reached": None,
        "error": fault_document(error.fault),
        "approvals": [],
        "usage": Usage().as_dict(),
        "wall_s": 0.0,
        "tree": None,
    }
