"""Time and ids, in one place so that tests can set them."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_lock = threading.Lock()
_last_ms = 0
_last_tail = 0


def now_s() -> float:
    """Wall-clock seconds since the epoch."""
    return time.time()


def mono_s() -> float:
    """Monotonic seconds, for deadlines and durations inside one process."""
    return time.monotonic()


def today() -> str:
    """The UTC day as YYYY-MM-DD."""
    return datetime.now(UTC).strftime("%Y-%m-%d")


def iso(seconds: float | None) -> str | None:
    """ISO-8601 UTC text with milliseconds of a wall-clock time, None for None."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_run_id() -> str:
    """A ULID in lower case: 26 letters that sort by time, unique and increasing within this process.

    https://github.com/ulid/spec
    """
    global _last_ms, _last_tail
    with _lock:
        ms = int(time.time() * 1000)
        if ms <= _last_ms:
            ms, tail = _last_ms, _last_tail + 1
        else:
            tail = int.from_bytes(os.urandom(10), "big") >> 1
        _last_ms, _last_tail = ms, tail
    number = (ms << 80) | tail
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -1, -5))
