"""Starting Ray, or joining one: the rules that keep a run on the cluster that its user meant."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
import ray.exceptions

from roma_ray.cluster.environment import LOCAL, address_of
from roma_ray.cluster.ray_errors import first_line
from roma_ray.config.schema import ClusterConfig
from roma_ray.errors import ConfigError, NothingPlaced

OBJECT_STORE_BYTES = 512 * 1024 * 1024
"""Of a Ray that we start. Values in it are a cache in front of stored files, and Ray spills the rest to its folder."""
_LONGEST_TEMP = 40
"""Letters of the temporary folder: Ray puts sockets about 60 letters below it, and a socket's path may have 107."""
_ANSWER_WITHIN_S = 5.0
_START_ATTEMPTS = 3
"""Ray gives its own processes 30 s to come up, which a busy machine exceeds."""
_JOIN_CURE = (
    "check cluster.address or RAY_ADDRESS, and RAY_AUTH_MODE and RAY_AUTH_TOKEN if that cluster wants a token; "
    "cluster=local starts a Ray of its own"
)
_START_CURE = (
    "see the folder logs in /tmp/ray/session_latest; a machine that is too busy for Ray can use cluster=inline"
)

_thread = ThreadPoolExecutor(1, thread_name_prefix="roma_ray-start")
"""Where Ray is started and stopped, one at a time. Not in the main thread, where Ray would take over the handler of
SIGTERM and keep the loop waiting for seconds; and not in a thread of the loop's, because Linux ends the processes that
a thread has started when that thread ends."""

_users = 0
_is_ours = False


async def connect(config: ClusterConfig) -> None:
    """Be connected to Ray: a Ray that this program has already is used, else `config` decides.

    Every `connect` wants one `disconnect`. Raises ConfigError when the cluster cannot be joined and NothingPlaced when
    a Ray of our own does not come up.
    """
    await asyncio.get_running_loop().run_in_executor(_thread, _connect, config)


async def disconnect() -> None:
    """Give the connection back; the last one ends it, and with it a Ray that was started for it."""
    await asyncio.get_running_loop().run_in_executor(_thread, _disconnect)


def _connect(config: ClusterConfig) -> None:
    global _users, _is_ours
    if not ray.is_initialized():
        _init(config, address_of(config))
        _is_ours = True
    _users += 1


def _disconnect() -> None:
    global _users, _is_ours
    _users -= 1
    if _users == 0 and _is_ours:
        _is_ours = False
        ray.shutdown()


def _init(config: ClusterConfig, address: str) -> None:
    options: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": logging.ERROR}
    if address == LOCAL:
        _start(options, config)
    else:
        _join(options, address)


def _start(options: dict[str, Any], config: ClusterConfig) -> None:
    options |= {"include_dashboard": config.dashboard, "object_store_memory": OBJECT_STORE_BYTES}
    if not config.dashboard:
        # The list of tasks is served by the dashboard only; keeping it costs 0.3 ms of CPU a task.
        options["_system_config"] = {"task_events_report_interval_ms": 0}
    if len(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "") > _LONGEST_TEMP:
        options["_temp_dir"] = "/tmp/ray"
    with _python_path():
        for attempt in range(1, _START_ATTEMPTS + 1):
            before = {process.pid for process in psutil.Process().children()}
            try:
                ray.init(**options)
                return
            # Nothing narrower: a start that takes too long is a bare Exception.
            except Exception as error:
                _end_leftovers(before)
                if attempt == _START_ATTEMPTS:
                    raise NothingPlaced(f"Ray did not start here: {first_line(error)}", cure=_START_CURE) from error


def _end_leftovers(before: set[int]) -> None:
    """End what a Ray that did not come up has left behind; `before` are the pids of older children."""
    home = str(Path(ray.__file__).parent)
    for process in psutil.Process().children():
        # An error here means that it has ended already.
        with suppress(psutil.Error):
            if process.pid not in before and any(home in word for word in process.cmdline()):
                process.kill()


def _join(options: dict[str, Any], address: str) -> None:
    if "://" in address:
        raise ConfigError(
            f"cluster.address {address} is a Ray Client address, which cannot carry task streams",
            cure="give host:port of the head's GCS (usually 6379), or submit the run as a Ray job",
        )
    if address != "auto":
        _check_answers(address)
    try:
        ray.init(**options)
    except ray.exceptions.AuthenticationError as error:
        raise ConfigError(
            f"the Ray cluster at {address} refused the token",
            cure="set RAY_AUTH_MODE and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as on the cluster",
        ) from error
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"cannot join the Ray cluster at {address}: {first_line(error)}", cure=_JOIN_CURE) from error


def _check_answers(address: str) -> None:
    """Ray itself waits for minutes for an address where nobody listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_WITHIN_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Ray cluster answers at {address} ({error})", cure=_JOIN_CURE) from error


@contextmanager
def _python_path() -> Generator[None]:
    """Let the Ray that starts inside see the modules that this process can import: its workers inherit the variable."""
    before = os.environ.get("PYTHONPATH")
    installed = {sys.prefix, sys.base_prefix, sys.exec_prefix}
    own = [
        os.path.abspath(entry) for entry in sys.path if not any(entry.startswith(root) for root in installed if entry)
    ]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
