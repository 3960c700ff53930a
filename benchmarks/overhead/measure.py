"""Runs one case in a process of its own and reads what it cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.overhead.cases import Case, Engine, Measurement
from benchmarks.overhead.child import key_of
from benchmarks.overhead.meter import cpu_seconds, kill_family, watched_memory
from tests.scripted.client import Scripted

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 600.0


def measure(case: Case, engine: Engine, server: Scripted) -> Measurement:
    """Run `case` on `engine`. Raises RuntimeError with the child's last words when it fails or takes too long."""
    server.reset(0.0, keep_messages=False)
    load = os.getloadavg()[0]
    command = [sys.executable, "-m", "benchmarks.overhead.child", engine, key_of(case), server.base_url]
    # DSPy would fetch its price list from the internet at first use.
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=_ROOT, env=environment, **pipes) as process:
        try:
            with watched_memory(process.pid) as peak:
                cold = _until_first_call(process, server) if case.cold else None
                answer, errors = process.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            kill_family(process.pid)
            raise RuntimeError(f"{key_of(case)} on {engine} took longer than {_TIMEOUT_S:g} s") from error
        except BaseException:
            kill_family(process.pid)
            raise
    if process.returncode != 0:
        raise RuntimeError(f"{key_of(case)} on {engine} ended with {process.returncode}:\n{errors[-2000:]}")
    if cold is not None:
        return Measurement(wall_s=cold[0], cpu_s=cold[1], calls=1, peak_mb=peak.mb, load=load)
    return Measurement(**json.loads(answer.splitlines()[-1]), peak_mb=peak.mb, load=load)


def _until_first_call(process: subprocess.Popen[str], server: Scripted) -> tuple[float, float]:
    """Wall and CPU seconds from the start of the process to its first model call, which the server holds meanwhile."""
    started_s = time.perf_counter()
    while server.stats()["open"] == 0:
        if process.poll() is not None or time.perf_counter() - started_s > _TIMEOUT_S:
            raise RuntimeError(f"no model call was made: {process.stderr.read()[-2000:] if process.stderr else ''}")
        time.sleep(0.02)
    spent = time.perf_counter() - started_s, cpu_seconds(process.pid)
    server.release()
    return spent
