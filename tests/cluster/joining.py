"""Tries to join each cluster that it is given, in a process without Ray, and prints the one line of each error."""

from __future__ import annotations

import asyncio
import sys

from roma_ray.cluster import create_backend
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import ConfigError


async def main() -> None:
    for address in sys.argv[1:]:
        try:
            await create_backend(ClusterConfig(address=address)).open()
        except ConfigError as error:
            print(error.line)


asyncio.run(main())
