"""The scripted server as a child process, and its controls."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_HTTP_TIMEOUT_S = 30.0


class Scripted:
    """A running server. `base_url` is what goes into `lm.api_base`."""

    def __init__(self, base_url: str, pid: int) -> None:
        self.base_url = base_url
        self.pid = pid
        self._settings: dict[str, Any] = {}

    def reset(self, latency_s: float = 0.0, **settings: Any) -> None:
        """Forget all requests and counters. Settings: jitter_s, seed, keep_messages, directives, api_key."""
        self._settings = {"latency_s": latency_s, **settings}
        self._call("/reset", self._settings)

    def configure(self, **settings: Any) -> None:
        """Change some settings, keep the others; forgets like `reset`."""
        self.reset(**{"latency_s": 0.0, **self._settings, **settings})

    def release(self) -> None:
        """Let requests with a HOLD go on, now and later."""
        self._call("/release", {})

    def stats(self) -> dict[str, Any]:
        """requests, by_role, answered_by_role, by_status, open, max_open, answered, failed, gone, dropped,
        prompt_tokens, completion_tokens (both of answered requests), open_ids, answered_ids."""
        return self._call("/stats")

    def log(self, role: str | None = None) -> list[dict[str, Any]]:
        """All requests in the order in which they came, or those of one role."""
        return [entry for entry in self._call("/log") if role in (None, entry["role"])]

    def wait_for(
        self, *, answered: int = 0, open_now: int = 0, gone: int = 0, timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """The stats as soon as so many requests are answered, open at once, and left by their clients.

        Raises TimeoutError.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            stats = self.stats()
            if stats["answered"] >= answered and stats["open"] >= open_now and stats["gone"] >= gone:
                return stats
            time.sleep(0.02)
        raise TimeoutError(
            f"not {answered} answered, {open_now} open and {gone} gone within {timeout_s} s: {self.stats()}"
        )

    def _call(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base_url.removesuffix("/v1") + path, data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=_HTTP_TIMEOUT_S) as response:
            return json.load(response)


@contextmanager
def running_server(*arguments: str) -> Generator[Scripted]:
    """Start the server as a child; it ends with this block, or with this process."""
    command = [sys.executable, "-m", "tests.scripted.server", "--port", "0", "--stop-with-stdin", *arguments]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield Scripted(json.loads(process.stdout.readline())["url"], process.pid)
        finally:
            # Killed, not asked: a request that hangs must not hold up the end of the tests.
            process.kill()
