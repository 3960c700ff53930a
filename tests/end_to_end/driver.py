"""`python -m roma_ray.solve` as a process that tests can watch, stop and kill."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import psutil

from roma_ray.api import list_runs, load_events, load_state
from roma_ray.config import Config, load_config
from roma_ray.engine.state import RunState
from roma_ray.runlog.events import Event, EventType
from roma_ray.types import NodeStatus
from tests.scripted.client import Scripted

_ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 120.0


class Driver:
    """One `python -m roma_ray.solve`, its state under `home`. `started` holds all of the running test."""

    started: ClassVar[list[Driver]] = []

    def __init__(
        self, home: Path, scripted: Scripted, *arguments: str, backend: str = "inline", **environ: str
    ) -> None:
        self.home = home
        self._environ = {"ROMA_RAY_HOME": str(home), **environ}
        self.started.append(self)
        reached = [] if any(a.startswith("resume=") for a in arguments) else ["lm.model=openai/scripted"]
        reached += [f"lm.api_base={scripted.base_url}"] if reached else []
        command = [sys.executable, "-m", "roma_ray.solve", *arguments, *reached, f"cluster={backend}", "output=json"]
        # Files, not pipes: Ray's processes outlive a killed driver for a moment and would keep a pipe open.
        self._out, self._err = (Path(tempfile.mkstemp(suffix=name, dir=_folder(home))[1]) for name in (".out", ".err"))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=os.environ | self._environ,
                start_new_session=True,
            )

    @property
    def config(self) -> Config:
        """The config that finds this home's run log."""
        return load_config([], environ=self._environ).config

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8")

    def run_id(self) -> str:
        """The id of the newest run in the home, as soon as there is one."""
        return self._soon(lambda: (asyncio.run(list_runs(self.config)) or [None])[0]).run_id

    def events(self) -> list[Event]:
        """What the run log has by now."""
        return asyncio.run(load_events(self.config, self.run_id()))

    def state(self) -> RunState:
        return asyncio.run(load_state(self.config, self.run_id()))

    def committed(self) -> list[dict[str, Any]]:
        """The answered calls that are in the run log by now."""
        return [event.payload for event in self.events() if event.type is EventType.CALL_ANSWERED]

    def wait_committed(self, scripted: Scripted, *, answered: int, open_now: int) -> None:
        """Until so many answers are in the run log, none is on its way there, and so many requests are open."""

        def settled() -> bool:
            stats = scripted.stats()
            calm = stats["answered"] == len(self.committed())
            return calm and stats["answered"] >= answered and stats["open"] >= open_now

        self._soon(settled)

    def wait_completed(self, node_id: str) -> None:
        """Until the run log has the outcome of a node."""

        def completed() -> bool:
            node = self.state().nodes.get(node_id)
            return node is not None and node.status is NodeStatus.COMPLETED

        self._soon(completed)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Until that is so, while the driver lives."""
        self._soon(is_so)

    def workers(self) -> list[psutil.Process]:
        """Ray's worker processes that run node tasks for this driver."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in children if any("ray::Worker" in part for part in _cmdline(p))]

    def kill(self) -> None:
        """SIGKILL, as a crash does it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_S)

    def finish(self) -> tuple[int, dict[str, Any]]:
        """Wait for the end: the exit code and the document on stdout, which holds nothing else."""
        code = self.process.wait(PATIENCE_S)
        out = self._out.read_text(encoding="utf-8")
        assert out.strip(), f"nothing on stdout (exit {code}); stderr:\n{self.stderr}"
        return code, json.loads(out)

    def _soon(self, ask: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if answer := ask():
                return answer
            if self.process.poll() is not None:
                raise AssertionError(f"the driver ended ({self.process.returncode}); stderr:\n{self.stderr}")
            time.sleep(0.05)
        raise AssertionError(f"waited {PATIENCE_S} s in vain; stderr:\n{self.stderr}")


def _folder(home: Path) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    return home


def held_by(text: str) -> int:
    """The pid that a RunHeld line names."""
    match = re.search(r"pid (\d+)", text)
    assert match, text
    return int(match.group(1))


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []
