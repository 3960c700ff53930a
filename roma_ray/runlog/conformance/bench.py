"""What a check works with: logs on the database under test, run ids of its own, and the words to say what it wants."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

from roma_ray import faults
from roma_ray.errors import RomaError
from roma_ray.runlog.events import EventType, NewEvent
from roma_ray.runlog.log import RunLog

OpenLog = Callable[[float], Awaitable[RunLog]]
"""Opens the log under test anew, with leases that last so many seconds."""


class Bench:
    """Opens the database as often as a check likes; `clear` closes everything and removes what the check left."""

    def __init__(self, open_log: OpenLog) -> None:
        self._open_log = open_log
        self._opened: list[RunLog] = []
        self.prefix = f"conformance-{secrets.token_hex(6)}-"
        """The beginning of every run id of this check, and of no other."""

    async def open(self, *, lease_ttl_s: float = 15.0) -> RunLog:
        """Another log on the same database."""
        self._opened.append(await self._open_log(lease_ttl_s))
        return self._opened[-1]

    def id(self, name: str = "run") -> str:
        """A run id of this check's own."""
        return self.prefix + name

    async def clear(self) -> None:
        """Close what was opened, and delete the runs of the check."""
        faults.disarm()
        for log in self._opened:
            await log.close()
        log = await self._open_log(15.0)
        for row in await log.runs(limit=None):
            if row.run_id.startswith(self.prefix):
                with suppress(RomaError):
                    await log.delete(row.run_id)
        await log.close()


def note(text: str, node_id: str = "") -> NewEvent:
    """An event that says `text`."""
    return NewEvent(type=EventType.WARNING, node_id=node_id, payload={"text": text})


async def notes_of(log: RunLog, run_id: str) -> list[str]:
    """What the run's notes say, in order."""
    return [event.payload["text"] for event in await log.read(run_id) if event.type is EventType.WARNING]


def same(found: Any, wanted: Any) -> None:
    """Raise AssertionError, also where Python was told to leave assertions out, when the two differ."""
    if found != wanted:
        raise AssertionError(f"wanted {_cut(wanted)}, found {_cut(found)}")


@contextmanager
def refused(kind: type[Exception], words: str = "") -> Generator[None]:
    """Raise AssertionError when the body does not raise `kind` with these words in it."""
    try:
        yield
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"{kind.__name__} does not say {words!r} but {str(error)!r}") from error
        return
    raise AssertionError(f"nothing was refused with {kind.__name__}")


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:300] + "…"
