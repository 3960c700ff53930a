"""A place where runs are begun, killed and resumed: a home, a run log, the scripted server."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from roma_ray.api import list_runs, load_events, load_state
from roma_ray.config import Config, load_config
from roma_ray.engine.state import RunState
from roma_ray.runlog.events import Event
from roma_ray.runlog.inbox import InboxMessage
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus
from tests.end_to_end.driver import PATIENCE_S, Driver
from tests.faults.books import Books
from tests.scripted.client import Scripted

KILLED = 137


class Site:
    """Drivers that are started here share everything but their process."""

    def __init__(self, home: Path, scripted: Scripted, url: str) -> None:
        self.home = home
        self.scripted = scripted
        self.environ = {"ROMA_RAY_HOME": str(home), "ROMA_RAY_RUNLOG__URL": url}

    @property
    def config(self) -> Config:
        return load_config([], environ=self.environ).config

    def events(self, run_id: str) -> list[Event]:
        return asyncio.run(load_events(self.config, run_id))

    def state(self, run_id: str) -> RunState:
        return asyncio.run(load_state(self.config, run_id))

    def status(self, run_id: str) -> RunStatus:
        """The state of a run as lists show it."""
        return next(row.status for row in asyncio.run(list_runs(self.config)) if row.run_id == run_id)

    def pending(self, run_id: str) -> list[InboxMessage]:
        """The messages to a run that nobody has handled."""

        async def ask() -> list[InboxMessage]:
            log = await RunLog.open(self.config.runlog)
            try:
                return await log.pending(run_id)
            finally:
                await log.close()

        return asyncio.run(ask())

    def run_ids(self) -> list[str]:
        """The runs that there are, newest first."""
        return [row.run_id for row in asyncio.run(list_runs(self.config))]

    def start(self, *arguments: str, backend: str = "inline", **environ: str) -> Driver:
        """`python -m roma_ray.solve` with these arguments, on its way."""
        return Driver(self.home, self.scripted, *arguments, backend=backend, **{**self.environ, **environ})

    def command(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`roma-ray` with these arguments, ended."""
        code = "import sys; from roma_ray.cli.main import main; sys.exit(main())"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env=os.environ | self.environ | environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def unfaulted(self, goal: str, *arguments: str) -> Any:
        """The answer to a goal when nothing goes wrong; the server forgets that it was asked."""
        other = Site(self.home / "unfaulted", self.scripted, f"sqlite:///{self.home / 'unfaulted' / 'runs.db'}")
        self.scripted.release()
        code, document = other.start(f"goal={goal}", *arguments).finish()
        assert code == 0, document
        self.scripted.reset()
        return document["output"]

    def until_it_ends(
        self, *arguments: str, backend: str = "inline", on_death: Callable[[], None] = lambda: None, **environ: str
    ) -> tuple[int, dict[str, Any]]:
        """Start with these arguments, and resume the run as long as its process is killed: deaths and the document."""
        deaths = 0
        while True:
            begun = self.run_ids()
            given = (f"resume={begun[0]}",) if begun else arguments
            driver = self.start(*given, backend=backend, **environ)
            code = driver.process.wait(PATIENCE_S)
            if code != KILLED:
                code, document = driver.finish()
                assert code == 0, (document, driver.stderr)
                return deaths, document
            deaths += 1
            on_death()

    def note_death(self, books: Books) -> None:
        """Write down that the process of the newest run, if there is one, is dead."""
        for run_id in self.run_ids()[:1]:
            # What the server was just sent counts too.
            self._until_all_are_gone()
            books.died(self.scripted.log(), self.events(run_id))

    def _until_all_are_gone(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.scripted.stats()["open"] and time.monotonic() < deadline:
            time.sleep(0.02)
