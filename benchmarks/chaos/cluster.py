"""A Ray cluster of two nodes on this machine, the second of which can be killed and brought back."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import psutil

ENVIRON = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
_RAY = Path(sys.executable).with_name("ray")
_TRIES = 3
_PATIENCE_S = 90.0


class TwoNodes:
    """Open it with `two_nodes()`. `address` is what goes into `cluster.address`."""

    def __init__(self) -> None:
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        # Two steps that lost two workers each must be able to run alone there at once.
        self._head = _start("--head", "--num-cpus=2", f"--port={port}", "--include-dashboard=false")
        self._wait_for_another(self._head, than=set())
        self.bring_back()

    def bring_back(self) -> None:
        """Start the second node, or start it again."""
        before = self._active_nodes()
        for tries_left in reversed(range(_TRIES)):
            self._second = _start("--num-cpus=1", f"--address={self.address}")
            try:
                return self._wait_for_another(self._second, than=before)
            except ChildProcessError:
                # What a killed node held, such as its ports, is not free at once.
                if not tries_left:
                    raise
                time.sleep(2)

    def workers(self) -> list[psutil.Process]:
        """The processes on both nodes that run node tasks."""
        # Of these nodes only: another Ray of this machine is somebody else's.
        return [child for child in _children(self._head) if _is_worker(child)] + self.workers_of_second()

    def workers_of_second(self) -> list[psutil.Process]:
        """Those that die with the second node's raylet."""
        return [child for child in _children(self._second) if _is_worker(child)]

    def wait_for_no_workers(self) -> None:
        """Until every one of them has ended."""
        psutil.wait_procs(self.workers(), timeout=_PATIENCE_S)

    def kill_raylet(self) -> None:
        """SIGKILL of the second node's raylet, and with it of everything on that node."""
        _raylet_of(self._second).send_signal(signal.SIGKILL)
        # `ray start --block` ends by itself when one of its processes has died, and takes the others along.
        self._second.wait(_PATIENCE_S)

    def close(self) -> None:
        """Stop both nodes."""
        for process in (self._second, self._head):
            process.send_signal(signal.SIGTERM)
        for process in (self._second, self._head):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _wait_for_another(self, process: subprocess.Popen[bytes], *, than: set[str]) -> None:
        """Until the cluster knows of a node more, which it does not as soon as its raylet runs."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise ChildProcessError(f"`ray start` ended with {process.returncode}")
            if self._active_nodes() - than:
                return
            time.sleep(0.2)
        raise RuntimeError(f"no node came up within {_PATIENCE_S:g} s")

    def _active_nodes(self) -> set[str]:
        command, environ = [str(_RAY), "status", f"--address={self.address}"], {**os.environ, **ENVIRON}
        said = subprocess.run(command, env=environ, capture_output=True, text=True, check=False).stdout
        return set(re.findall(r"node_\w+", said.partition("Active:")[2].partition("Pending:")[0]))


@contextlib.contextmanager
def two_nodes() -> Generator[TwoNodes]:
    """The cluster, running inside."""
    nodes = TwoNodes()
    try:
        yield nodes
    finally:
        nodes.close()


def _start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [str(_RAY), "start", "--block", "--node-ip-address=127.0.0.1", *arguments]
    return subprocess.Popen(
        command,
        env={**os.environ, **ENVIRON},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _children(node: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return psutil.Process(node.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "".join(process.cmdline()[:1]).startswith("ray::Worker")
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def _raylet_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    found = [child for child in _children(process) if child.name() == "raylet"]
    if not found:
        raise LookupError("no raylet yet")
    return found[0]


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
