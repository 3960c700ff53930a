"""`python -m benchmarks.overhead`: measure, print the table, exit 1 when a promise is missed.

Durable steps (`steps.py`) are measured last, in a table of their own, unless `--only` asks for single cases.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from dataclasses import asdict, fields
from pathlib import Path

from rich.console import Console

from benchmarks.overhead import steps
from benchmarks.overhead.cases import CASES, ENGINES, Case, Engine, Measurement
from benchmarks.overhead.child import key_of
from benchmarks.overhead.measure import measure
from benchmarks.overhead.promises import Medians, Promise, judge
from benchmarks.overhead.step_costs import as_table as as_step_table
from benchmarks.overhead.table import as_table
from tests.scripted.client import Scripted, running_server

Measured = dict[tuple[Case, Engine], list[Measurement]]


def main() -> int:
    args = _arguments()
    cases = [case for case in CASES if args.only in key_of(case)]
    with running_server("--no-messages") as server:
        measured = _rounds(cases, args.engines, args.repeats, server)
    medians = {key: _median(runs) for key, runs in measured.items()}
    promises = judge(medians)
    # Wide enough for every column where the output is not a terminal.
    console = Console() if sys.stdout.isatty() else Console(width=170)
    console.print(as_table(medians, promises))
    costs = [] if args.only else steps.measured()
    if costs:
        console.print(as_step_table(costs))
    if args.json:
        data = _as_data(measured, medians, promises) | {"steps": steps.as_data(costs)}
        args.json.write_text(json.dumps(data, indent=1))
    return 0 if all(promise.kept for promise in promises) and all(cost.kept for cost in costs) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What roma_ray costs beyond the model calls.")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all measurements to this file")
    return parser.parse_args()


def _rounds(cases: list[Case], engines: list[Engine], repeats: int, server: Scripted) -> Measured:
    """Repeats are outermost, so that a slow minute of the machine hits every case alike."""
    measured: Measured = defaultdict(list)
    for round_number in range(repeats):
        for case in cases:
            if case.once and round_number:
                continue
            for engine in _engines_for(case, engines):
                print(f"round {round_number + 1}: {key_of(case)} on {engine}", file=sys.stderr, flush=True)
                measured[case, engine].append(_measured(case, engine, server))
    return measured


def _measured(case: Case, engine: Engine, server: Scripted) -> Measurement:
    """One measurement; a second try where Ray did not start, which happens on a machine that is busy."""
    try:
        return measure(case, engine, server)
    except RuntimeError as error:
        print(f"once more after: {error}", file=sys.stderr, flush=True)
        return measure(case, engine, server)


def _engines_for(case: Case, engines: list[Engine]) -> list[Engine]:
    # Only a cold start has a floor of its own on Ray: starting Ray is what it costs.
    return [*engines, "floor on ray"] if case.cold and "ray" in engines else engines


def _median(runs: list[Measurement]) -> Measurement:
    numbers = {
        field.name: statistics.median(getattr(run, field.name) for run in runs)
        for field in fields(Measurement)
        if field.name not in ("status", "calls")
    }
    # A wrong count of calls, or one run that did not complete, must not vanish in a median.
    odd = next((run for run in runs if run.status != "completed"), runs[-1])
    return Measurement(**numbers, calls=max(run.calls for run in runs), status=odd.status)


def _as_data(measured: Measured, medians: Medians, promises: list[Promise]) -> dict[str, object]:
    return {
        "cases": [
            {
                "case": key_of(case),
                "engine": engine,
                "ideal_calls": case.calls,
                "ideal_s": case.ideal_s,
                "median": asdict(medians[case, engine]),
                "runs": [asdict(run) for run in runs],
            }
            for (case, engine), runs in measured.items()
        ],
        "promises": [
            {
                "case": key_of(p.case),
                "engine": p.engine,
                "what": p.what,
                "measured": p.measured,
                "limit": p.limit,
                "kept": p.kept,
            }
            for p in promises
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
