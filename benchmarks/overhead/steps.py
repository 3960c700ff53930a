"""`python -m benchmarks.overhead.steps [--repeats 3] [--json FILE]`: what a durable step costs, beside other engines.

A step yields 1 KiB that hardly compresses, and every engine flushes it to disk before it counts as done. Each engine
runs on each store in a process of its own, beside the floor of one bare commit (peers/work.py). Engines that
`scripts/bench-peers` has made no environment for are left out. Exits 1 when a promise is missed by more than 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.overhead.step_costs import StepCost, Store, as_table
from tests.postgres import PostgresServer

_ROOT = Path(__file__).parents[2]
_MEMORY = Path("/dev/shm")
_WITHIN_S = 600.0
_STORES: tuple[Store, ...] = ("memory disk", "disk", "PostgreSQL")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    """One engine: its script `peers/<script>_steps.py`, and its environment below .venv-peers, "" for our own."""

    name: str
    script: str
    environment: str = ""
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return _ROOT / ".venv-peers" / self.environment / "bin/python" if self.environment else Path(sys.executable)


_CANDIDATES = (
    _Candidate(name="roma_ray, inline task", script="roma_ray"),
    _Candidate(name="roma_ray, run log alone", script="roma_ray", settings={"PART": "log"}),
    _Candidate(name="LangGraph, last value kept", script="langgraph", environment="langgraph"),
    _Candidate(
        name="LangGraph, all values kept", script="langgraph", environment="langgraph", settings={"KEEP": "all"}
    ),
    _Candidate(name="DBOS", script="dbos", environment="dbos"),
    _Candidate(name="rootsflow", script="rootsflow", environment="rootsflow"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="What a durable step costs.")
    parser.add_argument("--repeats", type=int, default=2, help="how often everything is measured")
    parser.add_argument("--disk", type=Path, default=Path(), help="a folder on the disk to be measured")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    costs = measured(args.repeats, args.disk)
    console = Console() if sys.stdout.isatty() else Console(width=170)
    console.print(as_table(costs))
    if args.json:
        args.json.write_text(json.dumps(as_data(costs), indent=1))
    return 0 if all(cost.kept for cost in costs) else 1


def measured(repeats: int = 2, disk: Path = Path()) -> list[StepCost]:
    """Every engine that is there, on every store; `disk` is a folder on the disk to be measured.

    Of the repeats of a row the one with the fastest floor is kept: then the machine had the least else to do.
    """
    candidates = [candidate for candidate in _CANDIDATES if candidate.python.exists()]
    missing = {candidate.environment for candidate in _CANDIDATES} - {one.environment for one in candidates}
    if missing:
        print(f"left out, as scripts/bench-peers was not run: {', '.join(sorted(missing))}", file=sys.stderr)
    rows: list[tuple[_Candidate, Store]] = [(candidate, store) for store in _STORES for candidate in candidates]
    with closing(PostgresServer()) as server:
        # Outermost, so that a slow minute of the machine does not hit all repeats of a row.
        rounds = [[_measured(candidate, store, disk, server) for candidate, store in rows] for _ in range(repeats)]
    return [min(costs, key=lambda cost: cost.floor_ms) for costs in zip(*rounds, strict=True)]


def as_data(costs: Sequence[StepCost]) -> list[dict[str, Any]]:
    """The figures of each row and what was promised about it, as plain data."""
    return [asdict(cost) | {"promises": [str(promise) for promise in cost.promises]} for cost in costs]


def _measured(candidate: _Candidate, store: Store, disk: Path, server: PostgresServer) -> StepCost:
    print(f"{store}: {candidate.name}", file=sys.stderr, flush=True)
    with _folder_on(store, disk) as folder:
        command = [str(candidate.python), "-m", f"benchmarks.overhead.peers.{candidate.script}_steps", folder]
        if store == "PostgreSQL":
            command += ["--postgres", server.new_database()]
        done = subprocess.run(
            command,
            cwd=_ROOT,
            env=os.environ | candidate.settings,
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
        )
    if done.returncode:
        raise RuntimeError(f"{candidate.name} failed on {store}:\n{done.stderr[-3000:]}")
    figures = json.loads(done.stdout.splitlines()[-1])
    figures["stored_kib"] = {int(steps): kib for steps, kib in figures["stored_kib"].items()}
    return StepCost(store=store, engine=candidate.name, is_ours=not candidate.environment, **figures)


@contextmanager
def _folder_on(store: Store, disk: Path) -> Generator[str]:
    with tempfile.TemporaryDirectory(
        dir=_MEMORY if store == "memory disk" else disk.resolve(), prefix="steps-"
    ) as made:
        yield made


if __name__ == "__main__":
    sys.exit(main())
