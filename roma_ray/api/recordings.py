"""Write a run's traffic to a file, and solve from such a file without a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roma_ray.api.answer_schema import answer_schema
from roma_ray.api.runs import load_events
from roma_ray.api.shared import coordinator_of, storage_of
from roma_ray.config import Config, load_config, storable
from roma_ray.engine.background import run_sync
from roma_ray.engine.coordinator import Say
from roma_ray.engine.recording import Recording, read_recording, write_recording
from roma_ray.engine.result import Result
from roma_ray.engine.run import OnEvent
from roma_ray.engine.tree import fold
from roma_ray.lm.providers import without_keys
from roma_ray.types import Json

_OF_THE_PROCESS = ("cluster", "files", "goal_file", "log", "on_change", "output", "record", "resume", "traceback")
"""Settings of the recorded process that mean nothing to the one which replays."""


def _quiet(line: str) -> None:
    """Nobody wants to hear it."""


async def export_traffic(config: Config, run_id: str, path: Path) -> str:
    """Write the traffic of a run, as far as it has come, to `path`, and return the run's whole id.

    Raises RunNotFound, FolderUnusable when the file cannot be written, UsageError when the run's files are too large
    for a recording, ValueLost when one of them is gone.
    """
    events = await load_events(config, run_id)
    await asyncio.to_thread(write_recording, path, events, storage_of(fold(events), config))
    return events[0].run_id


async def areplay(
    path: Path,
    *,
    goal: str | None = None,
    overrides: Sequence[str] = (),
    on_event: OnEvent | None = None,
    say: Say = _quiet,
) -> Result:
    """Solve once more what `path`, a recording, holds: a new run whose every call is answered from the file.

    Goal, day, files and settings are those of the recording; where the values and the run log lie, and where it runs,
    is this machine's. It needs no network and no key. `goal` and `overrides` may say otherwise: the run then stops
    with ReplayDiffers as its fault at the first request that was not recorded. Raises UsageError for a file that is
    no recording, and what `asolve` raises.
    """
    recording = await asyncio.to_thread(read_recording, path)
    config = _config(recording, path, overrides)
    recorded_answer = recording.config.get("answer", "text")
    schema = recording.answer_schema if config.answer == recorded_answer else answer_schema(config.answer)
    async with coordinator_of(config, say) as coordinator:
        return await coordinator.solve(
            goal or recording.goal,
            without_keys(config),
            answer_schema=schema,
            stored=storable(config),
            recording=recording,
            on_event=on_event,
        )


def replay(
    path: Path,
    *,
    goal: str | None = None,
    overrides: Sequence[str] = (),
    on_event: OnEvent | None = None,
    say: Say = _quiet,
) -> Result:
    """`areplay` for code without a loop."""
    return run_sync(areplay(path, goal=goal, overrides=overrides, on_event=on_event, say=say))


def _config(recording: Recording, path: Path, overrides: Sequence[str]) -> Config:
    here = storable(load_config(overrides).config)
    base: dict[str, Any] = {n: value for n, value in recording.config.items() if n not in _OF_THE_PROCESS}
    base |= {name: here[name] for name in ("cluster", "log") if name in here}
    stored: Mapping[str, Json] = base.get("storage", {})
    base["storage"] = {**stored, "base_path": here["storage"]["base_path"]}
    config = load_config(overrides, base=base).config
    # Absolute, since the run may be resumed from another folder.
    return config.model_copy(update={"replay": path.expanduser().absolute()})
