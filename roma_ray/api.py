"""What a program calls: solve a goal, resume a run, look at runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

import roma_ray
from roma_ray.config import Config, Loaded, load_config, storable
from roma_ray.config.loading import COMMAND_LINE
from roma_ray.config.overrides import is_utf8
from roma_ray.config.schema import RunlogConfig
from roma_ray.engine.background import background_loop, run_sync
from roma_ray.engine.coordinator import Coordinator, Say, stored_result
from roma_ray.engine.result import Result
from roma_ray.engine.run import OnEvent
from roma_ray.engine.state import RunState
from roma_ray.engine.tree import fold
from roma_ray.errors import ConfigError, DefinitionChanged, UsageError, ValueLost
from roma_ray.lm.providers import resolve_models
from roma_ray.runlog.events import Event
from roma_ray.runlog.log import RunLog, RunRow
from roma_ray.types import Json, RunStatus

__all__ = [
    "OnEvent",
    "Result",
    "aresume",
    "asolve",
    "cancel",
    "list_runs",
    "load_events",
    "load_result",
    "load_state",
    "resume",
    "solve",
]

_MAY_CHANGE_ON_RESUME = ("limits.", "cluster.", "runlog.", "log.", "output", "traceback", "resume")


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
    if not goal.strip():
        raise UsageError("the goal is empty", cure='give one: goal="…"')
    if not is_utf8(goal):
        raise UsageError("the goal is not UTF-8 text", cure="give it in UTF-8")
    resolved = resolve_models(config, loaded.environ)
    schema = _answer_schema(config.answer)
    async with _coordinator(config, say) as coordinator:
        return await coordinator.solve(
            goal,
            resolved,
            version=roma_ray.__version__,
            answer_schema=schema,
            stored=storable(resolved.config),
            files=tuple(files) or config.files,
            on_event=on_event,
        )


async def aresume(
    run_id: str, *, overrides: Sequence[str] = (), on_event: OnEvent | None = None, say: Say = _quiet
) -> Result:
    """Go on with the run that `run_id`, or a unique prefix of an id, names; a completed one gives its result at once.

    It uses the config it was started with; `overrides` may give limits, keys, cluster and runlog anew. Raises
    RunNotFound, RunHeld while another process has it, DefinitionChanged for another override, and what `asolve` raises.
    """
    here = load_config(overrides)
    async with _coordinator(here.config, say) as coordinator:
        run_id = await coordinator.find(run_id)
        state = await coordinator.read(run_id)
        loaded = load_config(overrides, base=state.config)
        reopened = _given_anew(loaded, state.config)
        if state.status is RunStatus.COMPLETED:
            # A stored value that is lost is made anew below, from the recorded answers.
            with contextlib.suppress(ValueLost):
                return await stored_result(state, loaded.config)
        resolved = resolve_models(loaded.config, loaded.environ)
        return await coordinator.resume(
            run_id, resolved, reopened=reopened if state.status.is_end or reopened else None, on_event=on_event
        )


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


async def list_runs(config: Config, *, limit: int = 50) -> list[RunRow]:
    """The newest runs of the run log, newest first."""
    async with _run_log(config.runlog) as log:
        return await log.runs(limit=limit)


async def load_state(config: Config, run_id: str) -> RunState:
    """The folded state of the run that `run_id`, or a unique prefix, names. Raises RunNotFound."""
    return fold(await load_events(config, run_id))


async def load_result(config: Config, run_id: str) -> Result:
    """How a run stands in the run log, ended or not. Raises RunNotFound, and ValueLost when its value is gone."""
    return await stored_result(await load_state(config, run_id), config)


async def load_events(config: Config, run_id: str) -> list[Event]:
    """All events of one run, in order. Raises RunNotFound."""
    async with _run_log(config.runlog) as log:
        return await log.read(await log.find(run_id))


async def cancel(config: Config, run_id: str, *, reason: str = "") -> str:
    """Ask the process that holds the run to cancel it; returns the run's id. Raises RunNotFound."""
    async with _run_log(config.runlog) as log:
        run_id = await log.find(run_id)
        await log.send(run_id, "cancel", {"reason": reason})
        return run_id


@contextlib.asynccontextmanager
async def _run_log(config: RunlogConfig) -> AsyncGenerator[RunLog]:
    log = await RunLog.open(config)
    try:
        yield log
    finally:
        await log.close()


@dataclass(slots=True)
class _Shared:
    """A coordinator that the runs of one loop share, while any of them is at work."""

    opened: asyncio.Future[Coordinator]
    exit: contextlib.AsyncExitStack
    users: int = 0


_shared: dict[tuple[Any, ...], _Shared] = {}


@contextlib.asynccontextmanager
async def _coordinator(config: Config, say: Say) -> AsyncGenerator[Coordinator]:
    loop = asyncio.get_running_loop()
    key = (loop, config.cluster, config.runlog)
    shared = _shared.get(key)
    if shared is None:
        shared = _shared[key] = _Shared(loop.create_future(), contextlib.AsyncExitStack())
        shared.users += 1
        try:
            opened = await shared.exit.enter_async_context(Coordinator.opened(config, say=say))
            shared.opened.set_result(opened)
        except BaseException as error:
            del _shared[key]
            shared.opened.set_exception(error if isinstance(error, Exception) else RuntimeError("start was stopped"))
            shared.opened.exception()
            raise
    else:
        shared.users += 1
    try:
        yield await asyncio.shield(shared.opened)
    finally:
        shared.users -= 1
        # The background loop keeps its cluster for the next solve(); starting Ray takes seconds.
        if shared.users == 0 and not _is_background(loop):
            _shared.pop(key, None)
            await shared.exit.aclose()


def _is_background(loop: asyncio.AbstractEventLoop) -> bool:
    return background_loop.cache_info().currsize > 0 and loop is background_loop()


def _close_background() -> None:
    if background_loop.cache_info().currsize == 0:
        return

    async def close() -> None:
        for shared in list(_shared.values()):
            if shared.opened.done() and not shared.opened.exception():
                await shared.exit.aclose()

    with contextlib.suppress(RuntimeError, TimeoutError):
        asyncio.run_coroutine_threadsafe(close(), background_loop()).result(timeout=20.0)


# Plain atexit is too late: by then no thread pool takes work, and Ray's own handler, registered after ours and so run
# before it, has shut down the cluster that is to be closed (a call to it would start another one).
threading._register_atexit(_close_background)  # type: ignore[attr-defined]


def _loaded(overrides: Sequence[str], config: Config | None) -> Loaded:
    if config is None:
        return load_config(overrides)
    if overrides:
        raise UsageError("give either overrides or a config, not both", cure="put the overrides into load_config()")
    return Loaded(config=config, sources={}, environ=os.environ)


def _answer_schema(answer: str) -> Json:
    """The JSON schema that the answer has to fit, None for `short` and `text`."""
    if answer in ("short", "text"):
        return None
    # Imported here: only an answer with a schema pays for it.
    import jsonschema
    from jsonschema.validators import validator_for

    try:
        schema = orjson.loads(Path(answer).expanduser().read_bytes())
        validator_for(schema).check_schema(schema)
    except OSError as error:
        raise ConfigError(
            f"answer={answer}: {error.strerror}", cure="answer is `short`, `text`, or the path of a JSON schema"
        ) from error
    except (ValueError, jsonschema.SchemaError) as error:
        reason = error.message if isinstance(error, jsonschema.SchemaError) else str(error)
        raise ConfigError(f"answer={answer} is not a JSON schema: {reason}", cure="correct the file") from error
    _check_references(schema, answer)
    return schema


def _check_references(schema: Json, answer: str) -> None:
    """Raises ConfigError for a `$ref` that leads nowhere, or to another document: nothing is fetched for a schema."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    specification = specification_with(dialect, default=DRAFT202012) if dialect else DRAFT202012
    resource: Any = specification.create_resource(schema)
    registry: Any = Registry().with_resource(resource.id() or "", resource).crawl()
    resolver = registry.resolver(resource.id() or "")
    parts: list[Any] = [schema]
    while parts:
        part = parts.pop()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
        reference = part.get("$ref") if isinstance(part, dict) else None
        if not isinstance(reference, str):
            continue
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise ConfigError(
                f"answer={answer}: $ref {reference!r} leads nowhere", cure="put what it names into the file's $defs"
            ) from error


def _given_anew(loaded: Loaded, stored: Mapping[str, Json]) -> dict[str, Json]:
    """What the command line sets for a resume. Raises DefinitionChanged for what a run cannot change."""
    given: dict[str, Json] = {}
    now = storable(loaded.config)
    for key, source in loaded.sources.items():
        if source != COMMAND_LINE or key.endswith("api_key"):
            continue
        value, before = _at(now, key), _at(stored, key)
        if not key.startswith(_MAY_CHANGE_ON_RESUME) and value != before:
            raise DefinitionChanged(f"{key} was {before!r} when the run was started and cannot become {value!r}")
        given[key] = value
    return given


def _at(data: Mapping[str, Json], key: str) -> Json:
    value: Any = data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
