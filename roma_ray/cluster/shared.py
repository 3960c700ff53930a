"""Objects that a whole cluster shares, each in a process of its own: found by name, made where there is none.

Such a process belongs to no program: it outlives the one that made it, and ends by itself when nobody has used it for a
while. When it dies, whoever needs it next makes a new one, with nothing in it.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import signal
import threading
import time
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from roma_ray.cluster.ray_errors import first_line

NAMESPACE = "roma_ray"
_CONCURRENCY = 10_000


class SharedLost(Exception):
    """The process of a shared object cannot be reached, or died before it answered; it may have done what was asked."""


class Shared:
    """The object of this name, wherever it is. Used in a process that is connected to Ray."""

    def __init__(self, name: str, path: str, *arguments: Any, idle_s: float) -> None:
        """`path` is `module:Class`, made with `arguments` where no object of that name lives; it ends after `idle_s`
        without a call.
        """
        self._name = name
        self._made_of = path, arguments, idle_s
        self._handle: Any = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """What `method` of the object returns; what it raises comes out as itself.

        Raises SharedLost; the next call looks for the object anew.
        """
        handle = await self.find()
        try:
            answer = handle.call.remote(method, *arguments)
        # Nothing narrower: Ray raises a bare Exception for a handle that belongs to a cluster which was left.
        except Exception as error:
            self._handle = None
            raise SharedLost(f"{self._name}: {first_line(error)}") from error
        try:
            return await answer
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            if self._handle is handle:
                self._handle = None
            raise SharedLost(f"{self._name}: {first_line(error)}") from error

    async def find(self) -> Any:
        """The actor, made if it is not there; it may still be starting. Raises SharedLost."""
        if not ray.is_initialized():
            # Without this, Ray would start another one of its own.
            raise SharedLost(f"{self._name}: this process is not connected to Ray")
        if self._handle is None:
            try:
                self._handle = await asyncio.to_thread(_get_or_make, self._name, *self._made_of)
            except (RayError, ValueError, RuntimeError) as error:
                raise SharedLost(f"{self._name}: {first_line(error)}") from error
        return self._handle


def cpu_count() -> int:
    """The CPUs of the cluster that this process is connected to, at least 1. Blocks for a moment."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _get_or_make(name: str, path: str, arguments: tuple[Any, ...], idle_s: float) -> Any:
    options = {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": _CONCURRENCY,
    }
    return _host_actor.options(**options).remote(name, path, arguments, idle_s)


class _Host:
    """The actor around one object."""

    def __init__(self, name: str, path: str, arguments: tuple[Any, ...], idle_s: float) -> None:
        self._name = name
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C goes to every process of the terminal's group; this one belongs to none of them.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        module, _, kind = path.partition(":")
        self._object = getattr(importlib.import_module(module), kind)(*arguments)
        self._running = 0
        self._used_s = time.monotonic()
        threading.Thread(target=self._end_when_idle, args=(idle_s,), daemon=True).start()

    async def call(self, method: str, *arguments: Any) -> Any:
        self._running += 1
        try:
            result = getattr(self._object, method)(*arguments)
            return await result if inspect.isawaitable(result) else result
        finally:
            self._running -= 1
            self._used_s = time.monotonic()

    def _end_when_idle(self, idle_s: float) -> None:
        while self._running or time.monotonic() < self._used_s + idle_s:
            time.sleep(min(1.0, idle_s / 4))
        ray.kill(ray.get_actor(self._name, namespace=NAMESPACE))


_remote: Any = ray.remote
_host_actor = _remote(_Host)
