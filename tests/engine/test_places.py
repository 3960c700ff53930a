"""Places: what is above them waits, nothing that waits is forgotten."""

from __future__ import annotations

import asyncio

from roma_ray.cluster.inline import InlineBackend
from roma_ray.config.schema import ClusterConfig
from roma_ray.engine.places import Places


class _Growing(InlineBackend):
    """A backend that is given more workers while it is used."""

    count = 1

    @property
    def workers(self) -> int:
        return self.count


class _Crowd:
    """Tasks that each hold a place until `leave`, and how many hold one."""

    def __init__(self, size: int) -> None:
        self.backend = _Growing(ClusterConfig(mode="inline"))
        self.places = Places(self.backend)
        self.inside = self.served = 0
        self.doors = asyncio.Semaphore(0)
        self.tasks = [asyncio.create_task(self._visit()) for _ in range(size)]

    async def _visit(self) -> None:
        async with self.places.one(per_worker=2):
            self.inside += 1
            await self.doors.acquire()
            self.inside -= 1
        self.served += 1

    async def leave(self, count: int) -> None:
        for _ in range(count):
            self.doors.release()
        await settled()


async def settled() -> None:
    """Let everything happen that can happen without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_tasks_above_the_places_wait_and_all_get_through() -> None:
    crowd = _Crowd(7)
    await settled()
    assert crowd.inside == 2
    await crowd.leave(3)
    assert (crowd.inside, crowd.served) == (2, 3)
    await crowd.leave(4)
    assert crowd.served == 7


async def test_a_worker_that_joins_lets_more_in_as_soon_as_one_leaves() -> None:
    crowd = _Crowd(8)
    await settled()
    crowd.backend.count = 2
    await crowd.leave(1)
    assert crowd.inside == 4
    await crowd.leave(7)
    assert crowd.served == 8


async def test_who_is_called_and_cancelled_in_the_same_instant_passes_the_turn_on() -> None:
    crowd = _Crowd(4)
    await settled()
    crowd.doors.release()
    while not crowd.served:
        await asyncio.sleep(0)
    crowd.tasks[2].cancel()
    await settled()
    assert crowd.inside == 2
    await crowd.leave(2)
    assert crowd.served == 3
