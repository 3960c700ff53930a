"""Sessions and tasks for the cluster tests: importable by name, as workers want them."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any


async def setup(folder: Path) -> dict[str, Any]:
    """Leaves one mark in `folder` per process and set-up."""
    await asyncio.sleep(0.05)
    mark(folder, "setup")
    return {"folder": folder, "at": time.monotonic_ns()}


async def slow_setup(folder: Path) -> dict[str, Any]:
    await asyncio.sleep(0.6)
    return await setup(folder)


async def broken_setup(folder: Path) -> Any:
    mark(folder, "setup")
    await asyncio.sleep(0.05)
    raise LookupError("no such model")


async def teardown(state: dict[str, Any]) -> None:
    mark(state["folder"], "teardown")


def renew(state: dict[str, Any], ttl_s: float) -> None:
    """Remembers how long its owner is believed to live, and when it was told."""
    state["until"] = time.monotonic() + ttl_s


async def heard_for(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """For how many seconds the owner is still believed to live; None when nothing was promised."""
    return (state["until"] - time.monotonic() if "until" in state else None), None


def mark(folder: Path, kind: str) -> None:
    (folder / f"{kind}-{os.getpid()}-{time.monotonic_ns()}").touch()


def marks(folder: Path, kind: str) -> list[int]:
    """The process ids that left a mark of this kind, one per mark."""
    return [int(path.name.split("-")[1]) for path in sorted(folder.glob(f"{kind}-*"))]


async def echo(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """The request as outcome, the inputs as value."""
    return request, list(inputs)


async def own_folder(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    return str(state["folder"]), None


async def text(state: Any, request: int, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """A value of `request` letters."""
    return {"letters": request}, "x" * request


async def length(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    return [len(item) for item in inputs], None


async def nothing(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    return os.getpid(), None


async def wait_for_file(state: Any, request: str, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """Emits 0, waits until the session's folder has the file `request`, then emits 1 and 2."""
    emit(0)
    while not (state["folder"] / request).exists():
        await asyncio.sleep(0.01)
    emit(1)
    emit(2)
    return "seen", None


async def until_file(state: Any, request: str, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """Emits the process id, then waits until the session's folder has the file `request`."""
    emit(os.getpid())
    while not (state["folder"] / request).exists():
        await asyncio.sleep(0.01)
    return "seen", None


async def sleep(state: Any, request: float, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """Emits the process id, sleeps `request` seconds, leaves a mark when it is cancelled."""
    emit(os.getpid())
    try:
        await asyncio.sleep(request)
    finally:
        await asyncio.sleep(0)
        mark(state["folder"], "finally")
    return "slept", None


async def setup_with_secret(argument: tuple[Path, Any]) -> dict[str, Any]:
    """Logs its argument, as a careless program would."""
    print(argument, flush=True)
    logging.getLogger("careless").warning("set up with %r", argument)
    return {"folder": argument[0], "secret": argument[1]}


async def reveal(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    return state["secret"].reveal(), None


async def address(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    import ray

    return ray.get_runtime_context().gcs_address, None


async def noisy(state: Any, request: float, inputs: Any, emit: Any) -> tuple[Any, Any]:
    print("this is not the answer", flush=True)
    return await sleep(state, request, inputs, emit)


async def own_object(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """An object that belongs to the worker and so dies with it."""
    import ray

    emit(os.getpid())
    return {"reference": ray.put("x" * 500_000)}, None


async def count(state: Any, request: int, inputs: Any, emit: Any) -> tuple[Any, Any]:
    """Emits 0 … request - 1, letting others run between them."""
    for number in range(request):
        emit(number)
        await asyncio.sleep(0)
    return request, None


async def fail(state: Any, request: Any, inputs: Any, emit: Any) -> tuple[Any, Any]:
    emit("before")
    await asyncio.sleep(0)
    raise KeyError("a bug")
