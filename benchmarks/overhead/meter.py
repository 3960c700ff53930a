"""CPU time and memory of a process with everything below it."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

import psutil

_SAMPLE_EVERY_S = 0.5


def family(pid: int) -> list[psutil.Process]:
    """The process and all its descendants that are alive; empty when it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time of the family so far; members that have ended count through the parent that waited for them."""
    total_s = 0.0
    for process in family(pid):
        try:
            total_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total_s


def memory_mb(pid: int) -> float:
    """Proportional set size of the family: memory that several share counts once. (RSS where the system has no PSS.)"""
    total_bytes = 0
    for process in family(pid):
        try:
            info = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        total_bytes += getattr(info, "pss", info.rss)
    return total_bytes / 1e6


class Peak:
    """The highest memory that was seen, in MB."""

    mb: float = 0.0


@contextmanager
def watched_memory(pid: int) -> Generator[Peak]:
    """Sample the family's memory until the block ends, from this process, so that the measured one pays nothing."""
    peak, ended = Peak(), threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLE_EVERY_S):
            peak.mb = max(peak.mb, memory_mb(pid))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield peak
    finally:
        ended.set()
        sampler.join()


def kill_family(pid: int) -> None:
    """End a child of ours that overran its time, with what it started."""
    for process in reversed(family(pid)):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
