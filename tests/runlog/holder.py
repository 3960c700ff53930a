"""A process that holds a run: `python -m tests.runlog.holder URL create|take RUN TTL_S`.

Prints `held EPOCH`, or the error's line. Then does what each line on stdin says, and prints what came out.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from roma_ray.config.schema import RunlogConfig
from roma_ray.errors import RomaError
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.lease import Lease
from roma_ray.runlog.log import RunLog
from roma_ray.types import RunStatus


async def main(url: str, how: str, run_id: str, ttl_s: str) -> None:
    log = await RunLog.open(RunlogConfig(url=url), lease_ttl_s=float(ttl_s))
    try:
        lease = await (log.create(run_id, goal="g", started={"goal": "g"}) if how == "create" else log.take(run_id))
    except RomaError as error:
        print(error.line, flush=True)
        return
    print("held", lease.epoch, flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            print(await _act(log, lease, line), flush=True)
        except RomaError as error:
            print(error.line, flush=True)
    await log.close()


async def _act(log: RunLog, lease: Lease, line: str) -> object:
    match line.split(" "):
        case ["append", text]:
            return await log.append(lease, NewEvent(type=EventType.WARNING, payload={"text": text}))
        case ["lost"]:
            await asyncio.wait_for(lease.lost.wait(), 10)
            return "lost"
        case ["failed"]:
            return await asyncio.wait_for(asyncio.shield(lease.failed), 10)
        case ["release"]:
            await log.release(lease, RunStatus.INTERRUPTED)
            return "released"
        case ["full", size]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), resource.RLIM_INFINITY))
            return "full"
        case _:
            raise ValueError(line)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
