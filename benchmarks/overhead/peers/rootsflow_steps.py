"""rootsflow: `rootsflow_steps.py FOLDER`; agent nodes in a row, and as branches between a fork and a join."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from roots import PostgresBackend, Roots, SqliteBackend

from benchmarks.overhead.peers.work import measure, produce

_END = {"id": "end", "type": "end", "label": "end", "config": {"status": "completed"}}


class Rootsflow:
    def __init__(self, runner: asyncio.Runner, app: Roots, folder: Path) -> None:
        self._runner, self._app, self._folder = runner, app, folder

    def chain(self, steps: int) -> None:
        names = [f"step{number}" for number in range(steps)]
        edges = list(zip(names, [*names[1:], "end"], strict=True))
        self._runner.run(self._run([*map(_agent, names), _END], edges))

    def fan_out(self, steps: int) -> None:
        names = [f"step{number}" for number in range(steps)]
        around = [{"id": name, "type": name, "label": name, "config": {}} for name in ("fork", "join")]
        edges = [pair for name in names for pair in (("fork", name), (name, "join"))]
        self._runner.run(self._run([around[0], *map(_agent, names), around[1], _END], [*edges, ("join", "end")]))

    async def _run(self, nodes: list[dict[str, Any]], edges: list[tuple[str, str]]) -> None:
        name = f"process{uuid4().hex}"
        process = {
            "id": name,
            "name": name,
            "version": "1.0.0",
            "entry_point": nodes[0]["id"],
            "nodes": nodes,
            "edges": [{"from": start, "to": end} for start, end in edges],
        }
        file = self._folder / f"{name}.yaml"
        await asyncio.to_thread(file.write_text, yaml.safe_dump(process))
        await self._app.load_process(str(file))
        _, ended = await self._app.start_and_wait(name, {}, timeout=600)
        assert "completed" in str(ended.event).lower(), ended


def _agent(name: str) -> dict[str, Any]:
    return {"id": name, "type": "agent", "label": name, "config": {"agent": "step", "output_key": name}}


async def _step(state: Any) -> dict[str, Any]:
    return {"output": {"value": produce()}}


async def _open(postgres: str, folder: Path) -> Roots:
    file = folder / "rootsflow.db"
    if not postgres:
        # rootsflow leaves the journal as it finds it; the write-ahead log flushes once a commit, not several times.
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    backend = PostgresBackend(postgres) if postgres else SqliteBackend(str(file))
    await backend.initialize()
    app = await Roots(storage=backend).__aenter__()
    await app.register_agent("step", _step)
    return app


@contextmanager
def opened(postgres: str, folder: Path) -> Generator[Rootsflow]:
    with asyncio.Runner() as runner:
        app = runner.run(_open(postgres, folder))
        yield Rootsflow(runner, app, folder)
        runner.run(app.__aexit__(None, None, None))


if __name__ == "__main__":
    measure(opened)
