"""A small disk that can be filled up and made larger, for tests of what happens when there is no room."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system in memory at `path`, which everybody may write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def grow(self, size_mib: int) -> None:
        """Make it this large, keeping what is on it."""
        _mount("-o", f"remount,size={size_mib}m", str(self.path))


@contextmanager
def small_disk(size_mib: int) -> Generator[SmallDisk]:
    """A new disk of this size, gone afterwards. Skips the test where mounting is not allowed."""
    path = Path(tempfile.mkdtemp(prefix="roma_ray-disk-", dir="/tmp"))
    try:
        _mount("-t", "tmpfs", "-o", f"size={size_mib}m,mode=0777", "tmpfs", str(path))
    except (OSError, subprocess.CalledProcessError) as error:
        path.rmdir()
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily, so that a test which failed with files open leaves nothing mounted either.
        subprocess.run(["umount", "--lazy", str(path)], check=True)
        path.rmdir()


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
