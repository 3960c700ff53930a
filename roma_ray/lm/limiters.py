"""The limiters of one process: one for each provider and key on each event loop, shared by all hubs there."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from urllib.parse import urlsplit

from roma_ray.lm.endpoint import Endpoint
from roma_ray.lm.ledger import Keeper
from roma_ray.lm.limiter import Desk, Limiter, OwnDesk
from roma_ray.lm.rules import Limits
from roma_ray.redact import Secret

LEDGER = "roma_ray.lm.ledger:Keeper"
"""What a desk outside this process has to host, by its import path."""


def identity(place: Endpoint, key: Secret | None) -> str:
    """What a provider counts by, as a name: its scheme and host, and a fingerprint of the key."""
    where = _where(place)
    secret = key.reveal() if key else ""
    return f"{where}#{hashlib.sha256(f'{where} {secret}'.encode()).hexdigest()[:12]}"


def label(place: Endpoint) -> str:
    """The provider for people: `openai`, or the host of an address of one's own."""
    return urlsplit(place.base_url).netloc.rpartition("@")[2] if place.base_url else place.provider


def _where(place: Endpoint) -> str:
    return f"{urlsplit(place.base_url).scheme}://{label(place)}" if place.base_url else place.provider


@dataclass(slots=True)
class _Shared:
    """A limiter with what each of its users states as limits; it is closed with the last one."""

    limiter: Limiter
    loop: asyncio.AbstractEventLoop
    """Kept, so that no other loop gets its id."""
    stated: dict[object, Limits] = field(default_factory=dict[object, Limits])


class Limiters:
    """Gives the same limiter to all who ask the same provider on the same loop. Safe to use from any thread."""

    def __init__(self, desk_of: Callable[[str], Desk]) -> None:
        """`desk_of(identity)` is where the ledger of a provider is asked."""
        self._desk_of = desk_of
        self._shared: dict[tuple[int, str], _Shared] = {}
        self._lock = threading.Lock()

    def join(
        self, user: object, place: Endpoint, key: Secret | None, limits: Limits, *, loop: asyncio.AbstractEventLoop
    ) -> Limiter:
        """The limiter of `place`. Of what its users state as limits the smallest holds, until they `leave`."""
        name = identity(place, key)
        with self._lock:
            shared = self._shared.get((id(loop), name))
            if shared is None:
                shared = _Shared(Limiter(label(place), self._desk_of(name), limits), loop)
                self._shared[id(loop), name] = shared
            stated = shared.stated.get(user, limits)
            shared.stated[user] = stated & limits
            shared.limiter.limits = reduce(and_, shared.stated.values())
            return shared.limiter

    async def leave(self, user: object) -> None:
        """`user` has no call open any more. Awaited on the loop that it joined with."""
        unused: list[Limiter] = []
        with self._lock:
            for where, shared in list(self._shared.items()):
                if shared.stated.pop(user, None) is None:
                    continue
                if shared.stated:
                    shared.limiter.limits = reduce(and_, shared.stated.values())
                else:
                    unused.append(self._shared.pop(where).limiter)
        for limiter in unused:
            await limiter.aclose()


class _OwnDesks:
    """The ledgers of this process, one a provider, for as long as it lives: what was spent stays spent."""

    def __init__(self) -> None:
        self._keepers: dict[str, Keeper] = {}

    def __call__(self, name: str) -> Desk:
        return OwnDesk(self._keepers.setdefault(name, Keeper()))


IN_PROCESS = Limiters(_OwnDesks())
"""The limiters where no other process is known of."""
