"""`roma-ray doctor`: what a solve would need, tried out one by one, each with its cure."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from roma_ray import clock
from roma_ray.cli.exits import as_ours
from roma_ray.cli.output import print_json, print_text
from roma_ray.config import Config, load_config
from roma_ray.errors import RomaError
from roma_ray.redact import Redactor

Status = Literal["ok", "warning", "failed"]

_PACKAGES = ("ray", "dspy", "pydantic", "pyarrow", "hydra-core", "SQLAlchemy")
_OPTIONAL = {"xllamacpp": "local", "s3fs": "s3", "mlflow": "mlflow"}
_MARKS: dict[Status, str] = {"ok": "✓", "warning": "~", "failed": "✗"}
_LITTLE_BYTES = 2**30
_TOO_LITTLE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What was looked at, how it is, and what to do about it where that is not well."""

    name: str
    status: Status
    text: str
    cure: str = ""


def run_doctor(overrides: Sequence[str], *, ray: bool, as_json: bool) -> int:
    """Try what a solve with `overrides` needs and print what came out; returns 1 when something failed, else 0.

    Ray is tried with `ray` only: it takes seconds.
    """
    checks = list(_all_checks(overrides, ray=ray))
    if as_json:
        print_json([asdict(check) for check in checks])
    else:
        print_text("\n".join(line for check in checks for line in _lines(check)))
    return int(any(check.status == "failed" for check in checks))


def _lines(check: Check) -> Iterator[str]:
    yield f"{_MARKS[check.status]} {check.status:8}{check.name:11}{check.text}"
    if check.cure and check.status != "ok":
        yield f"{'':21}→ {check.cure}"


def _all_checks(overrides: Sequence[str], *, ray: bool) -> Iterator[Check]:
    yield _python()
    yield from _packages()
    try:
        loaded = load_config(overrides)
    except RomaError as error:
        yield _failed("config", error)
        return
    config = loaded.config
    yield Check(name="config", status="ok", text="can be read; `roma-ray config` shows it")
    yield from _models(config, loaded.environ)
    yield _tried("run log", lambda: _run_log(config))
    yield _tried("storage", lambda: _storage(config))
    yield _tried("ray", lambda: _ray(config)) if ray else _ray_not_tried(config)


def _tried(name: str, try_out: Callable[[], Check]) -> Check:
    try:
        return try_out()
    except Exception as error:
        # A doctor that falls ill over one thing would not look at the others.
        return _failed(name, as_ours(error))


def _failed(name: str, error: RomaError) -> Check:
    clean = Redactor().text
    return Check(name=name, status="failed", text=clean(f"{error.code} {error.message}"), cure=clean(error.cure))


def _python() -> Check:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return Check(name="python", status="ok", text=text)


def _packages() -> Iterator[Check]:
    versions = {name: _version(name) for name in ("roma_ray", *_PACKAGES)}
    missing = [name for name, version in versions.items() if not version]
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    yield Check(name="packages", status="ok", text=text)
    if missing:
        yield Check(
            name="packages", status="failed", text=f"missing: {', '.join(missing)}", cure="install roma_ray again"
        )
    extras = (f"{n} {_version(n)}" if _version(n) else f"{n} not installed" for n in _OPTIONAL)
    cure = "pip install " + " ".join(f"'roma_ray[{extra}]'" for extra in _OPTIONAL.values())
    yield Check(name="extras", status="ok", text=", ".join(extras), cure=cure)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _models(config: Config, environ: Mapping[str, str]) -> Iterator[Check]:
    """Which keys are there, by name, then who would answer, then the embedded model."""
    # Imported here: they bring DSPy along.
    from roma_ray.lm.endpoint import PROVIDERS
    from roma_ray.lm.providers import resolve_models

    names = dict.fromkeys(name for provider in PROVIDERS.values() for name in provider.key_names)
    found = [name for name in names if environ.get(name)]
    yield Check(name="keys", status="ok", text=f"set: {', '.join(found)}" if found else f"none of {', '.join(names)}")
    uses_local = False
    try:
        resolved = resolve_models(config, environ)
    except RomaError as error:
        yield _failed("models", error)
    else:
        uses_local = resolved.uses_local_model
        agents = resolved.config.agents
        roles = {"planner": agents.planner, "executor": agents.executor}
        used = dict.fromkeys(agent.lm.model for agent in roles.values())
        yield Check(name="models", status="ok", text=" and ".join(used))
    yield _embedded_model(is_used=uses_local)


def _embedded_model(*, is_used: bool) -> Check:
    from roma_ray.lm import local_model

    path = local_model.find("default")
    if path is not None:
        return Check(name="embedded", status="ok", text=f"the embedded model is here: {path}")
    text = "the embedded model is not here"
    if is_used:
        return Check(name="embedded", status="warning", text=f"{text} yet, and would be fetched", cure=_FETCH)
    return Check(name="embedded", status="ok", text=f"{text}, and not needed")


_FETCH = "fetch it now with `roma-ray model get`, or set a key"


def _run_log(config: Config) -> Check:
    """Opens the run log and writes a run into it, which is taken out again."""
    url = Redactor().text(config.runlog.url)
    asyncio.run(_write_a_run(config))
    folder = Path(url.removeprefix("sqlite:///")).parent
    if not url.startswith("sqlite:///"):
        return Check(name="run log", status="ok", text=f"opens and writes: {url}")
    return _with_room("run log", f"opens and writes: {url}", folder)


async def _write_a_run(config: Config) -> None:
    from roma_ray.runlog.log import RunLog
    from roma_ray.types import RunStatus

    log = await RunLog.open(config.runlog)
    try:
        run_id = clock.new_run_id()
        goal = "a look by roma-ray doctor"
        lease = await log.create(run_id, goal=goal, started={"goal": goal, "day": clock.today()})
        await log.release(lease, RunStatus.CANCELLED)
        await log.delete(run_id)
    finally:
        await log.close()


def _storage(config: Config) -> Check:
    """Stores a value, reads it back and takes it out again."""
    from roma_ray.storage.files import FileStorage
    from roma_ray.storage.values import ValueStore

    base, name = config.storage.base_path, f"doctor-{clock.new_run_id()}"
    is_local = "://" not in base
    if is_local:
        FileStorage(base, name)
    store = ValueStore(base, name)
    try:
        store.get(store.put("a look by roma-ray doctor"))
    finally:
        store.remove_all()
    text = f"writes and reads: {base}"
    return _with_room("storage", text, Path(base)) if is_local else Check(name="storage", status="ok", text=text)


def _with_room(name: str, text: str, folder: Path) -> Check:
    free_bytes = shutil.disk_usage(folder).free
    text = f"{text} ({free_bytes / 2**30:.1f} GiB free)"
    if free_bytes >= _LITTLE_BYTES:
        return Check(name=name, status="ok", text=text)
    status: Status = "failed" if free_bytes < _TOO_LITTLE_BYTES else "warning"
    return Check(name=name, status=status, text=text, cure="make room on that disk, or move it: ROMA_RAY_HOME")


def _ray_not_tried(config: Config) -> Check:
    if config.cluster.mode == "inline":
        return Check(name="ray", status="ok", text="not used (cluster=inline)")
    return Check(name="ray", status="ok", text="not tried; --ray does, in some seconds")


def _ray(config: Config) -> Check:
    if config.cluster.mode == "inline":
        return _ray_not_tried(config)
    from roma_ray.cluster import create_backend

    backend = create_backend(config.cluster)

    async def look() -> tuple[int, int]:
        await backend.open()
        try:
            return backend.machines, backend.workers
        finally:
            await backend.close()

    machines, workers = asyncio.run(look())
    address = config.cluster.address or os.environ.get("RAY_ADDRESS")
    where = f"joins {address}" if address else "starts here"
    return Check(name="ray", status="ok", text=f"{where}: {machines} machine(s), {workers} worker(s)")
