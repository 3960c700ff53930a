"""A process, told from every other one for ever, and whether it still lives."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process that holds a run: a pid alone comes back.

    `boot` is the boot of the machine and, after a slash, the pid name space; `start` the process's start on that
    boot's clock.
    """

    host: str
    boot: str
    pid: int
    start: str

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


def this_process() -> Owner:
    """The owner that this process is."""
    return _owner_of(os.getpid())


@lru_cache(maxsize=4)
def _owner_of(pid: int) -> Owner:
    return Owner(host=socket.gethostname(), boot=_boot(), pid=pid, start=start_of(pid) or "")


def is_dead(owner: Owner) -> bool:
    """Whether that process is known to be gone. False when it lives, or lives where one cannot look."""
    here = this_process()
    if (owner.host, owner.boot) != (here.host, here.boot):
        return False
    return start_of(owner.pid) != owner.start


def is_of_this_boot(owner: Owner) -> bool:
    """Whether that process was started since this machine was, in whatever container."""
    return owner.boot.partition("/")[0] == this_process().boot.partition("/")[0]


def since_boot_s() -> float:
    """Seconds since this machine was booted, its sleep included: the same in every process, and nobody sets it."""
    # macOS counts sleep in CLOCK_MONOTONIC.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def start_of(pid: int) -> str | None:
    """When `pid` started, None when there is no such process or it has ended and only waits to be reaped."""
    try:
        # Not psutil: on Linux its start times move when the machine's clock is set.
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else rest[18]
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.3f}"
    except psutil.NoSuchProcess:
        return None


@cache
def _boot() -> str:
    if sys.platform == "darwin":
        command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    # Containers on one host share its boot but not its pids.
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
