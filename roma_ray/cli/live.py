"""What a run does while it does it, on stderr: a live tree on a terminal, a line for each change elsewhere."""

from __future__ import annotations

import re
import threading
import time
from types import TracebackType
from typing import Any, Protocol, Self, TextIO

from roma_ray.cli import render
from roma_ray.cli.exits import write_no_more
from roma_ray.cli.questions import answer_command, question
from roma_ray.engine.state import ROOT, Node, RunState
from roma_ray.engine.tree import apply
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import NodeStatus, StepKey

_STYLES = {
    NodeStatus.PENDING: "dim",
    NodeStatus.RUNNING: "cyan",
    NodeStatus.WAITING: "bold magenta",
    NodeStatus.COMPLETED: "green",
    NodeStatus.PARTIAL: "yellow",
    NodeStatus.FAILED: "red",
    NodeStatus.SKIPPED: "dim",
    NodeStatus.CANCELLED: "dim",
}


class View(Protocol):
    """Shows the events of one run as they come; a context, so that it always leaves the terminal in order."""

    @property
    def run_id(self) -> str:
        """The run that is shown; empty before its first event."""
        ...

    def on_event(self, event: Event) -> None: ...
    def say(self, line: str) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...


def open_view(stream: TextIO) -> View:
    """A live tree if `stream` is a terminal, else plain lines."""
    return TreeView(stream) if stream.isatty() else LinesView(stream)


class LinesView:
    """One line for each thing that happened: for logs, pipes and CI."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._state = RunState()
        self._began_s = time.time()
        self._last_wait = ""

    @property
    def run_id(self) -> str:
        return self._state.run_id

    def on_event(self, event: Event) -> None:
        apply(self._state, event)
        said = self._words(event)
        # A resumed run brings its past along, for the state alone.
        if said and event.time_s >= self._began_s:
            self.say(said)

    def say(self, line: str) -> None:
        try:
            print(f"[{time.time() - self._began_s:7.1f} s] {line}", file=self._stream, flush=True)
        except OSError:
            # Whoever reads it has gone, or the disk is full: no reason to stop a run.
            write_no_more(self._stream)

    def _words(self, event: Event) -> str:
        match event.type:
            case EventType.RUN_STARTED:
                return f"run {event.run_id}: {render.cut(self._state.goal, 100)}"
            case EventType.LEASE_TAKEN:
                return f"run {event.run_id} goes on"
            case EventType.STEP_DONE:
                return self._step_words(self._state.nodes[event.node_id])
            case EventType.WORKER_LOST:
                return f"{event.node_id} lost its worker: {render.cut(str(event.payload.get('reason', '')), 100)}"
            case EventType.WARNING:
                return f"warning: {render.cut(event.payload['text'], 300)}"
            case EventType.CALL_WAITING:
                return self._wait_words(event)
            case EventType.APPROVAL_ASKED:
                approval = self._state.approvals[StepKey.parse(event.payload["step"])]
                return f"{question(approval)}: {answer_command(event.run_id, approval)}"
            case EventType.APPROVAL_ANSWERED:
                words = render.cut(event.payload.get("words", ""), 100)
                return f"{event.node_id} was answered: {event.payload['verdict']}" + (f" ({words})" if words else "")
            case _:
                return ""

    def _wait_words(self, event: Event) -> str:
        # A pause of one provider holds up every node: it is said once, not once a node and second.
        reason = render.cut(event.payload["reason"], 100)
        what = re.split(r"[:(]", reason)[0]
        if what == self._last_wait:
            return ""
        self._last_wait = what
        return f"{event.node_id} waits for {reason}"

    def _step_words(self, node: Node) -> str:
        if node.status is NodeStatus.RUNNING:
            return f"{node.id} planned: {len(node.children)} subtasks"
        if node.fault and node.id == ROOT:
            # The root's reason is the run's: it is said once, at the end, with its cure.
            return ""
        reason = f": {render.cut(node.fault.message, 200)}" if node.fault else ""
        return f"{node.id} {node.status.value}{reason or '  ' + render.cut(node.goal, 70)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


class TreeView:
    """The tree, drawn again four times a second in place; what is printed meanwhile goes above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._state = RunState()
        # Rich draws from a thread of its own.
        self._lock = threading.Lock()
        self._console = Console(file=stream)
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=4,
            redirect_stdout=False,
            redirect_stderr=True,
            vertical_overflow="crop",
        )

    @property
    def run_id(self) -> str:
        return self._state.run_id

    def on_event(self, event: Event) -> None:
        with self._lock:
            apply(self._state, event)
        if event.type is EventType.WARNING:
            self.say(f"warning: {event.payload['text']}")

    def say(self, line: str) -> None:
        self._console.print(line, style="yellow", markup=False, highlight=False)

    def _draw(self) -> Any:
        from rich.text import Text

        with self._lock:
            most = max(4, self._console.height - 3)
            lines = render.tree_lines(self._state, width=self._console.width - 1, most=most, now_s=time.time())
            drawn = [
                Text(line.branch).append(line.text, _STYLES.get(line.node.status) if line.node else "dim")
                for line in lines
            ]
            if drawn:
                drawn.append(Text(render.usage_text(self._state.usage), "dim"))
        return Text("\n", no_wrap=True, overflow="ellipsis").join(drawn)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.__exit__(kind, error, at)
