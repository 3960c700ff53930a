"""Runs that are killed and resumed until they end, and the count of what that cost.

What a kill may cost is decided by two lists that nobody can talk round: the requests that the model server saw, and the
answers that the run log had when the process died. The difference was open, and only that may be asked again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.chaos.cluster import ENVIRON, TwoNodes
from roma_ray.api import list_runs, load_events
from roma_ray.config import Config, load_config
from roma_ray.runlog.events import Event, EventType
from tests.scripted.client import Scripted

Victim = Literal["driver", "driver on ray", "worker", "raylet"]

GOAL = "the whole TREE=4:3"
"""85 nodes, 64 of them leaves at depth 3; 127 model calls."""
CALLS = 127
_PATIENCE_S = 240.0
_KILLS_A_RUN = {"driver": 8, "driver on ray": 2, "worker": 3, "raylet": 1}
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Tally:
    """What all kills of one kind of victim came to."""

    kills: int = 0
    runs: int = 0
    open_calls: int = 0
    """Calls that the killed processes had sent and the run log had no answer for."""
    repeats: int = 0
    """Requests beyond one for each call."""
    lost: int = 0
    """Nodes that are missing in the end, or runs without the unfaulted run's answer."""
    done_again: int = 0
    """Outcomes of steps that were in the log and were written once more."""
    asked_again: int = 0
    """Answers that were in the log and were asked for once more."""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.done_again or self.asked_again) and self.repeats <= self.open_calls


@dataclass(slots=True)
class Campaign:
    """Kills until each victim was hit as often as `plan` says. The server is `scripted`, with its latency set."""

    scripted: Scripted
    database_url: str | None
    plan: Mapping[Victim, int]
    seed: int
    nodes: TwoNodes | None = None
    expected: str = ""
    tallies: dict[Victim, Tally] = field(default_factory=dict)

    def run(self) -> dict[Victim, Tally]:
        """The whole campaign; prints a line a run on stderr."""
        rng = random.Random(self.seed)
        self.expected = unfaulted(self.scripted)
        for victim, kills in self.plan.items():
            tally = self.tallies[victim] = Tally()
            while tally.kills < kills:
                wanted = min(kills - tally.kills, rng.randint(1, _KILLS_A_RUN[victim]))
                started = time.monotonic()
                with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as home:
                    _Run(self, victim, Path(home), rng).go(wanted, tally)
                tally.seconds += time.monotonic() - started
                print(f"{victim}: {tally.kills} of {kills} kills, {tally.runs} runs", file=sys.stderr, flush=True)
        return self.tallies


class _Run:
    """One run, through all its processes."""

    def __init__(self, campaign: Campaign, victim: Victim, home: Path, rng: random.Random) -> None:
        self._campaign, self._victim, self._home, self._rng = campaign, victim, home, rng
        self._scripted = campaign.scripted
        url = campaign.database_url
        self._environ = {"ROMA_RAY_HOME": str(home), **({"ROMA_RAY_RUNLOG__URL": url} if url else {})}
        self._run_id = ""
        self._lost_calls = 0

    def go(self, kills: int, tally: Tally) -> None:
        """Start it, kill it so often, let it end, and look at what is left."""
        self._scripted.reset(latency_s=0.3, jitter_s=0.2, seed=self._rng.randint(0, 10**6))
        process = self._start()
        for _ in range(kills):
            if not self._wait_for_work(process, requests=self._rng.randint(1, 40)):
                break
            time.sleep(self._rng.uniform(0.0, 0.4))
            if process.poll() is not None or not self._kill(process, tally):
                break
            if process.poll() is not None:
                process = self._start()
        process.wait(_PATIENCE_S)
        self._judge(process, tally)
        tally.runs += 1

    def _start(self) -> subprocess.Popen[bytes]:
        work = [f"resume={self._run_id}"] if self._run_id else [f"goal={GOAL}", "lm.model=openai/scripted"]
        if not self._run_id:
            work += [f"lm.api_base={self._scripted.base_url}", "limits.max_recoveries=100"]
        nodes = self._campaign.nodes if self._victim != "driver" else None
        # Few calls a worker, so that both nodes have one at work.
        where = [f"cluster.address={nodes.address}", "cluster.calls_per_worker=4"] if nodes else ["cluster=inline"]
        with (self._home / "out").open("wb") as out, (self._home / "err").open("ab") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "roma_ray.solve", *work, *where, "output=json"],
                cwd=_ROOT,
                env={**os.environ, **ENVIRON, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def _wait_for_work(self, process: subprocess.Popen[bytes], *, requests: int) -> bool:
        """Until this process has sent so many requests, or fewer when it sends no more; False when it ends before."""
        before, deadline = self._scripted.stats()["requests"], time.monotonic() + _PATIENCE_S
        seen, since = before, time.monotonic()
        while (seen < before + requests and (seen == before or time.monotonic() < since + 2.0)) or not self._known():
            if process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"no work within {_PATIENCE_S:g} s: {self._said()}")
            time.sleep(0.02)
            if (now := self._scripted.stats()["requests"]) != seen:
                seen, since = now, time.monotonic()
        return True

    def _kill(self, process: subprocess.Popen[bytes], tally: Tally) -> bool:
        """Kill the victim and count what was open; False when there was nothing to kill any more."""
        nodes = self._campaign.nodes
        if self._victim in ("driver", "driver on ray"):
            process.kill()
            process.wait(_PATIENCE_S)
            if nodes:
                # Ray ends them when their driver is gone; until then they go on with the calls that they had begun.
                nodes.wait_for_no_workers()
            self._count_open(tally)
        elif self._victim == "worker":
            workers = nodes.workers() if nodes else []
            if not workers:
                return False
            worker = self._rng.choice(workers)
            worker.suspend()
            self._count_open(tally)
            worker.kill()
        else:
            assert nodes is not None
            while not nodes.workers_of_second():
                # A raylet alone would take nothing with it.
                if process.poll() is not None:
                    return False
                time.sleep(0.02)
            time.sleep(self._rng.uniform(0.0, 1.0))
            self._count_open(tally)
            nodes.kill_raylet()
            nodes.bring_back()
        tally.kills += 1
        return True

    def _count_open(self, tally: Tally) -> None:
        open_now = self._scripted.stats()["requests"] - len(self._answers()) - self._lost_calls
        self._lost_calls += open_now
        tally.open_calls += open_now

    def _judge(self, process: subprocess.Popen[bytes], tally: Tally) -> None:
        document: dict[str, Any] = json.loads((self._home / "out").read_bytes() or b"{}")
        nodes = _count_nodes(document.get("tree") or {})
        if process.returncode != 0 or nodes != 85 or document["output"] != self._campaign.expected:
            tally.lost += max(1, 85 - nodes)
            print(f"run {self._run_id} ended with {process.returncode}: {self._said()}", file=sys.stderr)
        events = self._events()
        done = Counter(event.payload["step"] for event in events if event.type is EventType.STEP_DONE)
        tally.done_again += sum(count - 1 for count in done.values())
        asked = Counter(_call(event) for event in self._answers(events))
        tally.asked_again += sum(count - 1 for count in asked.values())
        tally.repeats += self._scripted.stats()["requests"] - CALLS

    def _answers(self, events: list[Event] | None = None) -> list[Event]:
        events = self._events() if events is None else events
        return [event for event in events if event.type is EventType.CALL_ANSWERED]

    def _events(self) -> list[Event]:
        return asyncio.run(load_events(self._config, self._run_id)) if self._run_id else []

    def _known(self) -> str:
        if not self._run_id:
            rows = asyncio.run(list_runs(self._config, limit=1))
            self._run_id = rows[0].run_id if rows else ""
        return self._run_id

    @property
    def _config(self) -> Config:
        return load_config([], environ=self._environ).config

    def _said(self) -> str:
        return (self._home / "err").read_text(errors="replace")[-2000:]


def _call(event: Event) -> tuple[Any, ...]:
    payload = event.payload
    return payload["step"], payload["request_key"], payload.get("ordinal", 0)


def _count_nodes(tree: Mapping[str, Any]) -> int:
    return 1 + sum(map(_count_nodes, tree["children"])) if tree else 0


def unfaulted(scripted: Scripted) -> str:
    """The answer of the goal when nothing is killed."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as home:
        command = [sys.executable, "-m", "roma_ray.solve", f"goal={GOAL}", "lm.model=openai/scripted"]
        command += [f"lm.api_base={scripted.base_url}", "cluster=inline", "output=json"]
        environ = {**os.environ, "ROMA_RAY_HOME": home}
        done = subprocess.run(command, cwd=_ROOT, env=environ, capture_output=True, timeout=_PATIENCE_S, check=True)
    return json.loads(done.stdout)["output"]
