"""The measured process: `python -m benchmarks.overhead.child ENGINE CASE API_BASE` prints one JSON line.

A warm case is solved once before it counts, so that imports, workers and connections are there. A cold case is measured
from outside, at the moment its first model call is open.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable

from benchmarks.overhead import floor
from benchmarks.overhead.cases import CASES, Case, Engine
from benchmarks.overhead.meter import cpu_seconds
from tests.scripted.client import Scripted

_SETTLED = 0.2
"""CPU seconds per second of a process family that has nothing to do."""
_SETTLE_WITHIN_S = 60.0

Solver = Callable[[Case], str]
"""Does all the calls of a case and returns how it ended."""


def main(engine: Engine, case_key: str, api_base: str) -> None:
    case = next(case for case in CASES if key_of(case) == case_key)
    with tempfile.TemporaryDirectory(prefix="overhead-") as home:
        os.environ["ROMA_RAY_HOME"] = home
        if case.cold:
            _start_cold(engine, case, api_base)
        else:
            print(json.dumps(_solve_warm(engine, case, api_base)), flush=True)


def key_of(case: Case) -> str:
    """Names a case on the command line and in the results."""
    return f"{case.name}, {case.latency_s:g} s"


def _start_cold(engine: Engine, case: Case, api_base: str) -> None:
    match engine:
        case "floor":
            asyncio.run(floor.first_call(api_base, case.goal))
        case "floor on ray":
            floor.first_call_on_ray(api_base, case.goal)
        case "inline" | "ray":
            _ours(engine, api_base)(case)


def _solve_warm(engine: Engine, case: Case, api_base: str) -> dict[str, float | int | str]:
    server = Scripted(api_base, 0)
    solve = _floor(api_base) if engine == "floor" else _ours(engine, api_base)
    _warm_up(engine, solve, case.warm_up or case)
    server.reset(case.latency_s, keep_messages=False)
    cpu_before_s, started_s = cpu_seconds(os.getpid()), time.perf_counter()
    status = solve(case)
    wall_s = time.perf_counter() - started_s
    cpu_s = cpu_seconds(os.getpid()) - cpu_before_s
    return {"wall_s": wall_s, "cpu_s": cpu_s, "calls": server.stats()["requests"], "status": status}


def _warm_up(engine: Engine, solve: Solver, case: Case) -> None:
    """Solve `case` while the server answers at once: waiting for a model warms nothing.

    On Ray twice: the first starts the workers, which are ready only after a while; the second gives each of them work.
    """
    for _ in range(2 if engine == "ray" else 1):
        solve(case)
        deadline_s = time.monotonic() + _SETTLE_WITHIN_S
        while time.monotonic() < deadline_s:
            before_s = cpu_seconds(os.getpid())
            time.sleep(1)
            if cpu_seconds(os.getpid()) - before_s < _SETTLED:
                break


def _floor(api_base: str) -> Solver:
    calls = floor.Floor(api_base)

    def solve(case: Case) -> str:
        calls.call_in_stages(case.stages)
        return "completed"

    return solve


def _ours(engine: Engine, api_base: str) -> Solver:
    cluster = "inline" if engine == "inline" else "local"
    reached = (f"cluster={cluster}", "lm.model=openai/scripted", f"lm.api_base={api_base}")

    def solve(case: Case) -> str:
        from roma_ray import solve as solve_goal

        return str(solve_goal(case.goal, overrides=[*reached, *case.overrides]).status)

    return solve


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])  # type: ignore[arg-type]
