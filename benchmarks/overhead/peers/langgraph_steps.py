"""LangGraph: `langgraph_steps.py FOLDER`; one node that leads back to itself, and one node sent to many times.

The state keeps the last value only, which is the least that it can write; KEEP=all keeps every value, as a later step
that needs them has to.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from benchmarks.overhead.peers.work import measure, produce


class LastKept(TypedDict):
    left: int
    value: str


class AllKept(TypedDict):
    left: int
    value: Annotated[list[str], operator.add]


class Fan(TypedDict):
    steps: int
    values: Annotated[list[str], operator.add]


class LangGraph:
    def __init__(self, saver: Any, *, state: type) -> None:
        saver.setup()
        self._chain = _chain_of(state).compile(checkpointer=saver)
        self._fan_out = _fan_out().compile(checkpointer=saver)
        self._first: Any = "" if state is LastKept else []

    def chain(self, steps: int) -> None:
        _invoke(self._chain, {"left": steps, "value": self._first}, steps)

    def fan_out(self, steps: int) -> None:
        done = _invoke(self._fan_out, {"steps": steps, "values": []}, steps)
        assert len(done["values"]) == steps


def _invoke(graph: Any, state: dict[str, Any], steps: int) -> dict[str, Any]:
    config = {"configurable": {"thread_id": uuid4().hex}, "recursion_limit": steps + 10}
    # "sync": a step begins once the checkpoint before it is committed.
    return graph.invoke(state, config, durability="sync")


def _chain_of(state: type) -> StateGraph[Any]:
    def step(given: dict[str, Any]) -> dict[str, Any]:
        value = produce()
        return {"left": given["left"] - 1, "value": value if state is LastKept else [value]}

    graph = StateGraph(state)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda given: "step" if given["left"] else END, ["step", END])
    return graph


def _fan_out() -> StateGraph[Any]:
    graph = StateGraph(Fan)
    graph.add_node("step", lambda _: {"values": [produce()]})
    graph.add_conditional_edges(START, lambda given: [Send("step", {}) for _ in range(given["steps"])], ["step"])
    graph.add_edge("step", END)
    return graph


@contextmanager
def opened(postgres: str, folder: Path) -> Generator[LangGraph]:
    # Both commit each write by itself; SqliteSaver.setup switches to the write-ahead log, flushed at each commit.
    saver = (
        PostgresSaver.from_conn_string(postgres) if postgres else SqliteSaver.from_conn_string(f"{folder}/langgraph.db")
    )
    with saver as open_saver:
        yield LangGraph(open_saver, state=AllKept if os.environ.get("KEEP") == "all" else LastKept)


if __name__ == "__main__":
    measure(opened)
