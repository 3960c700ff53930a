"""A program of its own for the tests: what a driver prints, and what it does on Ctrl-C.

`program.py MODE FOLDER` prints the address of the cluster it is on. With a fourth word it goes on: it loses a worker,
prints `lost`, and sleeps in a task until it is interrupted.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from roma_ray.cluster import Backend, Session, Task, create_backend
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import WorkerLost
from tests.cluster import work


async def main(mode: Any, folder: Path, *, goes_on: bool) -> None:
    backend = create_backend(ClusterConfig(mode=mode, max_workers=1))
    await backend.open()
    try:
        session = Session(id="s", setup=work.setup, argument=folder, teardown=work.teardown)
        await backend.open_session(session)
        print(await run(backend, work.address, None), flush=True)
        if goes_on:
            await lose_worker(backend)
            await run(backend, work.sleep, 60)
    finally:
        await backend.close()


async def lose_worker(backend: Backend) -> None:
    pid = await run(backend, work.nothing, None)
    lost = asyncio.create_task(run(backend, work.noisy, 60))
    await asyncio.sleep(1)
    os.kill(pid, signal.SIGKILL)
    try:
        await lost
    except WorkerLost:
        await asyncio.sleep(3)
        print("lost", flush=True)


async def run(backend: Backend, fn: Any, request: Any) -> Any:
    async with backend.submit(Task(name=fn.__name__, session_id="s", fn=fn, request=request), ()) as stream:
        async for _ in stream:
            pass
    return stream.outcome


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), goes_on=len(sys.argv) > 3))
