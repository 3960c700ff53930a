"""The folder of a run, which nothing that is asked for by name can leave."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from roma_ray import faults
from roma_ray.errors import FolderUnusable

SECTIONS = ("artifacts", "results", "outputs", "temp", "logs")
"""The folders of a run; the first part of every name."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NAMING = "name it like artifacts/report.md: one of " + ", ".join(SECTIONS) + ", then a relative path without `..`"


class FileStorage:
    """The files of one run under `base_path/executions/<run_id>`, on the local disk.

    Names are relative, with `/` between their parts, and begin with one of SECTIONS. Every method raises FolderUnusable
    for a name that leads outside, through a symbolic link too, and when the disk refuses.
    """

    def __init__(self, base_path: str | Path, run_id: str) -> None:
        if not _RUN_ID.fullmatch(run_id):
            raise FolderUnusable(f"{run_id!r} cannot be the name of a folder", cure="use letters, digits, - and _")
        with _refusals_of(base_path):
            self.root = Path(base_path).expanduser().resolve() / "executions" / run_id
            for section in SECTIONS:
                (self.root / section).mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where `name` lies, resolved; it need not exist."""
        parts = PurePosixPath(name).parts
        if "\0" in name or "\\" in name or ".." in parts or not parts or parts[0] not in SECTIONS:
            raise FolderUnusable(f"{name!r} is outside the run's folders", cure=_NAMING)
        with _refusals_of(name):
            path = self.root.joinpath(*parts).resolve()
        if not path.is_relative_to(self.root / parts[0]):
            raise FolderUnusable(f"{name!r} leads outside the run's folders", cure=_NAMING)
        return path

    def put_bytes(self, name: str, data: bytes) -> Path:
        """Write a file, whole or not at all, over one that is there; returns where it lies."""
        path = self.path(name)
        with _refusals_of(name):
            write_atomically(path, data)
        return path

    def put_text(self, name: str, text: str) -> Path:
        """Write a text as UTF-8, whole or not at all."""
        return self.put_bytes(name, text.encode())

    def get_bytes(self, name: str) -> bytes:
        """What the file holds."""
        with _refusals_of(name):
            return self.path(name).read_bytes()

    def get_text(self, name: str) -> str:
        """The text of a UTF-8 file; bytes that are none become U+FFFD."""
        return self.get_bytes(name).decode(errors="replace")

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return self.path(name).is_file()

    def list(self, folder: str) -> list[str]:
        """The names of all files in a folder and below it, sorted; symbolic links are left out."""
        found: list[str] = []
        with _refusals_of(folder):
            for parent, _, files in os.walk(self.path(folder)):
                paths = (Path(parent, file) for file in files)
                found += [path.relative_to(self.root).as_posix() for path in paths if not path.is_symlink()]
        return sorted(found)

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens when there is none."""
        with _refusals_of(name):
            self.path(name).unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` so that `path` holds all of it or what it held before, even after a power cut. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with open(unfinished, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        faults.hit("storage.before_rename")
        unfinished.replace(path)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _refusals_of(name: str | Path) -> Generator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise FolderUnusable(f"{str(name)!r} cannot be used: {reason or error}") from error
