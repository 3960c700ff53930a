"""Solve a goal, go on with a run, do a part of one anew."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from roma_ray.api.answer_schema import answer_schema
from roma_ray.api.runs import load_state
from roma_ray.api.shared import coordinator_of
from roma_ray.config import Config, Loaded, load_config, storable
from roma_ray.engine.background import run_sync
from roma_ray.engine.coordinator import Say, stored_result
from roma_ray.engine.definition import changes, fingerprint
from roma_ray.engine.fork import Cut
from roma_ray.engine.result import Result
from roma_ray.engine.run import OnEvent
from roma_ray.engine.state import RunState
from roma_ray.errors import DefinitionChanged, UsageError, ValueLost
from roma_ray.lm.providers import ResolvedModels, resolve_models, without_keys
from roma_ray.texts import is_utf8
from roma_ray.types import Json, RunStatus

_OF_ONE_PROCESS = (
    "cluster",
    "files",
    "goal",
    "goal_file",
    "log",
    "on_change",
    "output",
    "record",
    "resume",
    "traceback",
)
"""Settings that hold for the process that was given them, not for the run."""


def _quiet(line: str) -> None:
    """Nobody wants to hear it."""


async def asolve(
    goal: str,
    *,
    overrides: Sequence[str] = (),
    config: Config | None = None,
    files: Sequence[Path] = (),
    on_event: OnEvent | None = None,
    say: Say = _quiet,
) -> Result:
    """Solve `goal` and return how it went; a failed or partial run is a result, not an exception.

    `overrides` are Hydra overrides such as `"limits.max_depth=2"`; `config`, a loaded config, takes their place.
    `on_event` is called on this loop with every event of the run, `say` with lines for a person to read while waiting.
    Raises UserError for what is wrong before the first call, Fenced and StoreUnavailable when the run had to be left
    (it can be resumed); cancelling leaves it interrupted.
    """
    loaded = _loaded(overrides, config)
    config = loaded.config
    if config.replay is not None:
        raise UsageError("replay is a setting of `replay` and `areplay`, not of a solve", cure="call areplay(path)")
    if not goal.strip():
        raise UsageError("the goal is empty", cure='give one: goal="…"')
    if not is_utf8(goal):
        raise UsageError("the goal is not UTF-8 text", cure="give it in UTF-8")
    resolved = resolve_models(config, loaded.environ)
    schema = answer_schema(config.answer)
    async with coordinator_of(config, say) as coordinator:
        return await coordinator.solve(
            goal,
            resolved,
            answer_schema=schema,
            stored=storable(resolved.config),
            files=tuple(files) or config.files,
            on_event=on_event,
        )


async def aresume(
    run_id: str, *, overrides: Sequence[str] = (), on_event: OnEvent | None = None, say: Say = _quiet
) -> Result:
    """Go on with the run that `run_id`, or a unique prefix of an id, names; a completed one gives its result at once.

    It uses the config it was started with; `overrides` may give limits, approve, keys, cluster and runlog anew. Where
    anything else differs, or the version or code behind it, `on_change` says what becomes of it: DefinitionChanged
    (`refuse`), a new run that keeps what is done (`fork`), or the same run with the change (`accept`). Raises
    RunNotFound, RunHeld while another process has it, and what `asolve` raises.
    """
    state = await load_state(load_config(overrides).config, run_id)
    loaded = load_config(overrides, base=state.config)
    config, stored = loaded.config, storable(loaded.config)
    _refuse_other_work(state, stored, cure="start a new run for it")
    changes = _changes(state, config)
    if changes and config.on_change == "refuse":
        raise DefinitionChanged("; ".join(changes))
    forks = bool(changes) and config.on_change == "fork"
    if state.status is RunStatus.COMPLETED and not forks:
        # A stored value that is lost is made anew below, from the recorded answers.
        with contextlib.suppress(ValueLost):
            return await stored_result(state, config)
    if forks:
        # The recording is the first run's.
        loaded = load_config(overrides, base={n: v for n, v in state.config.items() if n != "record"})
        config = loaded.config
        stored = {n: v for n, v in storable(config).items() if n not in ("on_change", "resume")}
    resolved = _models(loaded)
    async with coordinator_of(config, say) as coordinator:
        if forks:
            anew = _new_schema(state, config)
            return await coordinator.fork(state.run_id, resolved, stored=stored, cut=None, anew=anew, on_event=on_event)
        reopened = _reopened(state, stored, changes, config)
        return await coordinator.resume(state.run_id, resolved, reopened=reopened, on_event=on_event)


async def rerun(
    run_id: str,
    *,
    node: str,
    goal: str | None = None,
    overrides: Sequence[str] = (),
    on_event: OnEvent | None = None,
    say: Say = _quiet,
) -> Result:
    """Do a run anew from one node of its tree, as a new run that keeps everything which is not downstream of it.

    Downstream are the node and all below it, whatever depends on it, and how its ancestors put things together. `goal`
    takes the place of the node's goal, `overrides` of settings. What is kept costs nothing. Raises RunNotFound,
    UsageError for a node that the present tree has not, and what `asolve` raises.
    """
    state = await load_state(load_config(overrides).config, run_id)
    # A recording knows nothing of what is done anew, and is not written over by it.
    base = {name: value for name, value in state.config.items() if name not in ("record", "replay")}
    loaded = load_config(overrides, base=base)
    resolved = _models(loaded)
    stored, cut = storable(resolved.config), Cut(node_id=node, goal=goal or "")
    _refuse_other_work(state, stored, cure="give another goal as `goal` (--goal), and start a new run for other files")
    anew = _new_schema(state, loaded.config)
    async with coordinator_of(loaded.config, say) as coordinator:
        return await coordinator.fork(state.run_id, resolved, stored=stored, cut=cut, anew=anew, on_event=on_event)


def solve(
    goal: str,
    *,
    overrides: Sequence[str] = (),
    config: Config | None = None,
    files: Sequence[Path] = (),
    on_event: OnEvent | None = None,
    say: Say = _quiet,
) -> Result:
    """`asolve` for code without a loop: runs on one background loop, where `on_event` and `say` are called too.

    The cluster stays up between calls, until the process ends.
    """
    return run_sync(asolve(goal, overrides=overrides, config=config, files=files, on_event=on_event, say=say))


def resume(run_id: str, *, overrides: Sequence[str] = (), on_event: OnEvent | None = None, say: Say = _quiet) -> Result:
    """`aresume` for code without a loop."""
    return run_sync(aresume(run_id, overrides=overrides, on_event=on_event, say=say))


def _loaded(overrides: Sequence[str], config: Config | None) -> Loaded:
    if config is None:
        return load_config(overrides)
    if overrides:
        raise UsageError("give either overrides or a config, not both", cure="put the overrides into load_config()")
    return Loaded(config=config, sources={}, environ=os.environ)


def _models(loaded: Loaded) -> ResolvedModels:
    if loaded.config.replay is not None:
        return without_keys(loaded.config)
    return resolve_models(loaded.config, loaded.environ)


def _reopened(state: RunState, stored: dict[str, Json], changes: list[str], config: Config) -> dict[str, Json] | None:
    """The payload of `run.reopened`; None where the run neither ended nor is given anything anew."""
    limits_changed = any(state.config.get(name) != stored.get(name) for name in ("limits", "approve"))
    if not (state.status.is_end or changes or limits_changed):
        return None
    kept = {name: state.config[name] for name in _OF_ONE_PROCESS if name in state.config}
    new = {name: value for name, value in stored.items() if name not in _OF_ONE_PROCESS}
    definition: dict[str, Json] = {"config": {**kept, **new}, "fingerprint": fingerprint(config)}
    return {"changes": changes, **definition, **_new_schema(state, config)}


def _new_schema(state: RunState, config: Config) -> dict[str, Json]:
    """The form of the answer, where it is given anew."""
    if storable(config).get("answer") == state.config.get("answer"):
        return {}
    return {"answer_schema": answer_schema(config.answer)}


def _refuse_other_work(state: RunState, stored: dict[str, Json], *, cure: str) -> None:
    for name in ("goal", "goal_file", "files"):
        if stored.get(name) and stored[name] != state.config.get(name):
            raise UsageError(f"run {state.run_id} has its {name} already", cure=cure)


def _changes(state: RunState, config: Config) -> list[str]:
    """In which respects a stored run's definition is not the present one, in words."""
    # Runs of the first format did not write their sources down.
    before = state.fingerprint or {**fingerprint(config), "version": state.version}
    return changes(state.config, config, before, fingerprint(config))
