"""A class for a shared object of the cluster tests."""

from __future__ import annotations

import os


class Counter:
    """Counts from `start`."""

    def __init__(self, start: int = 0) -> None:
        self._count = start

    def add(self, number: int) -> int:
        self._count += number
        return self._count

    async def pid(self) -> int:
        return os.getpid()

    def fail(self) -> None:
        raise KeyError("a bug")
