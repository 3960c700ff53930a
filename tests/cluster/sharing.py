"""A program of its own that makes a shared counter, adds 7, prints it and is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from roma_ray.cluster import create_backend
from roma_ray.cluster.shared import Shared
from roma_ray.config.schema import ClusterConfig


async def main(name: str) -> None:
    await create_backend(ClusterConfig()).open()
    print(await Shared(name, "tests.cluster.counter:Counter", idle_s=60.0).call("add", 7), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main(sys.argv[1]))
