"""What deaths cost: the model server's own list of requests against what the run log has, death by death.

Every request of the goals that are used here is told by its role and its goal, and is needed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from roma_ray.engine.tree import fold
from roma_ray.runlog.events import Event, EventType

Request = tuple[str, str]
"""The role that asked, and the goal that it asked about."""
Log = Sequence[Mapping[str, Any]]
"""The server's list of all requests since its last reset."""


class Books:
    """The deaths of the processes of one run."""

    def __init__(self) -> None:
        self.open = Counter[Request]()
        """How often a request had been sent by a process that died, and its answer was not in the run log."""
        self._seen_ids: set[int] = set()
        self._committed: list[tuple[int, set[Request]]] = []

    def died(self, log: Log, events: Sequence[Event]) -> None:
        """Note a death: what the server and the run log have when nothing of the process is left."""
        committed = committed_requests(events)
        fresh = {request_of(entry) for entry in log if entry["id"] not in self._seen_ids}
        self.open.update(fresh - committed)
        self._seen_ids.update(entry["id"] for entry in log)
        self._committed.append((len(log), committed))

    def check(self, log: Log, events: Sequence[Event]) -> None:
        """Nothing that was answered or finished was asked for or done again, and only what was open was repeated."""
        for seen, committed in self._committed:
            again = committed & {request_of(entry) for entry in log[seen:]}
            assert not again, f"answers that were in the log were asked for again: {again}"
        asked = Counter(request_of(entry) for entry in log)
        beyond = {request: n for request, n in asked.items() if n - 1 > self.open[request]}
        assert not beyond, f"asked more often than they were open at a death: {beyond}"
        assert not steps_done_again(events)


def committed_requests(events: Sequence[Event]) -> set[Request]:
    """The requests whose answer the log has."""
    nodes = fold(events).nodes
    answered = (event for event in events if event.type is EventType.CALL_ANSWERED)
    return {(str(event.payload["role"]), nodes[event.node_id].goal) for event in answered}


def steps_done_again(events: Iterable[Event]) -> list[str]:
    """The steps that were started or finished although the log had their outcome."""
    done: set[str] = set()
    again: list[str] = []
    for event in events:
        if event.type not in (EventType.STEP_STARTED, EventType.STEP_DONE):
            continue
        step = str(event.payload["step"])
        if step in done:
            again.append(step)
        if event.type is EventType.STEP_DONE:
            done.add(step)
    return again


def request_of(entry: Mapping[str, Any]) -> Request:
    """What an entry of the server's list asked."""
    return str(entry["role"]), str(entry["goal"])
