"""Serves the embedded model over HTTP in a process of its own, as an OpenAI-compatible endpoint on loopback.

Run as `python -m roma_ray.lm.local_server PATH THREADS` it is that process: it writes its base URL as one line to
stdout and lives until its stdin closes, so that it also ends when its parent is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Self

import psutil

from roma_ray.errors import ModelUnavailable

_READY_S = 300.0
"""The first load reads the whole file from the disk."""
_CONTEXT_TOKENS = 16_384
_PROMPT_CACHE_MIB = 256
_STOP_S = 5.0
_HEADROOM = 1.5
"""Memory in use per byte of weights, context included (measured: 1.37 and 1.73)."""


class LocalServer:
    """`async with LocalServer(path, threads=2) as server: server.base_url`; one request at a time.

    `threads` is the number of physical cores unless given; on a busy machine 1 is several times faster than all.
    Entering raises ModelUnavailable when the model does not load.
    """

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        self._path = path
        self._threads = threads or psutil.cpu_count(logical=False) or 1
        self._process: asyncio.subprocess.Process | None = None
        self.base_url = ""

    async def __aenter__(self) -> Self:
        _check_memory(self._path)
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "roma_ray.lm.local_server",
            str(self._path),
            str(self._threads),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C goes to the whole group: the server must outlive the calls that are being wound up.
            start_new_session=True,
        )
        try:
            self.base_url = await asyncio.wait_for(self._first_line(self._process), _READY_S)
        except BaseException as error:
            await self._stop()
            if isinstance(error, TimeoutError):
                raise ModelUnavailable(f"{self._path.name} was not ready within {_READY_S:g} s") from error
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stop()

    async def _first_line(self, process: asyncio.subprocess.Process) -> str:
        assert process.stdout is not None and process.stderr is not None
        drain = asyncio.create_task(process.stderr.read())
        line = (await process.stdout.readline()).decode().strip()
        if line:
            self._drain = drain  # kept, so that a talkative server never blocks on a full pipe
            return line
        said = (await drain).decode(errors="replace").strip().splitlines()
        raise ModelUnavailable(
            f"{self._path.name} cannot be loaded: {said[-1] if said else 'the server ended'}",
            cure="check the file and the memory; `roma-ray model remove` and `get` fetch it anew",
        )

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_S)
        if process.returncode is None:
            process.kill()
            await process.wait()


def _check_memory(path: Path) -> None:
    needed, free = path.stat().st_size * _HEADROOM, psutil.virtual_memory().available
    if free < needed:
        raise ModelUnavailable(
            f"{path.name} needs about {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free",
            cure="close something, choose lm.model=local:small, or set a key",
        )


def serve(path: str, threads: int) -> None:
    """Load the model, tell the address, and stay until stdin closes."""
    llama: Any = importlib.import_module("xllamacpp")
    params = llama.CommonParams()
    params.model.path = path
    params.n_ctx = _CONTEXT_TOKENS
    params.n_parallel = 1
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
        # Waiting threads must not spin: on a busy machine that costs four fifths of the speed.
        cpu.poll = 0
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    # The library logs to stdout, where the address must stand alone.
    address = os.dup(1)
    os.dup2(2, 1)
    server = llama.Server(params)
    os.write(address, f"{server.listening_address}/v1\n".encode())
    os.close(address)
    sys.stdin.buffer.read()
    # The library's threads do not always end by themselves.
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
