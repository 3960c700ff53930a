"""A user's files as inputs of a run: copied into its execution folder, read as text, given to the root goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from roma_ray.config import StorageConfig
from roma_ray.engine.stored import value_store
from roma_ray.errors import UsageError
from roma_ray.storage.files import FileStorage
from roma_ray.storage.size import size_of
from roma_ray.types import Json, ValueHandle


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtFile:
    """One file: its name, and its text here or under a handle."""

    name: str
    text: str | None = None
    handle: ValueHandle | None = None

    def to_plain(self) -> dict[str, Json]:
        """As plain data for the run log."""
        return {"name": self.name, "text": self.text, "handle": self.handle.to_plain() if self.handle else None}

    @classmethod
    def from_plain(cls, data: dict[str, Json]) -> BroughtFile:
        """Read back what `to_plain` wrote."""
        handle = ValueHandle.from_plain(data["handle"]) if data.get("handle") else None
        return cls(name=data["name"], text=data.get("text"), handle=handle)


def bring_in(paths: Sequence[Path], config: StorageConfig, run_id: str) -> tuple[BroughtFile, ...]:
    """Make the run's folders where they are local, copy `paths` into `artifacts/` there, and read them.

    Raises FolderUnusable, and UsageError for a file that is missing, repeated or no text.
    """
    storage = None
    if "://" in config.base_path:
        # A URL that cannot be opened is said before a call is paid for whose value could not be stored.
        value_store(config, run_id)
    else:
        storage = FileStorage(config.base_path, run_id)
    names = [path.name for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"files: two files are named {name}", cure="give each file a name of its own")
    return tuple(_bring_in(path, storage, config, run_id) for path in paths)


def bring_back(files: Sequence[Mapping[str, str]], config: StorageConfig, run_id: str) -> tuple[BroughtFile, ...]:
    """What `bring_in` gives, for files that are known by `name` and `text`, such as those of a recording."""
    return tuple(_kept(file["name"], file["text"], config, run_id) for file in files)


def _bring_in(path: Path, storage: FileStorage | None, config: StorageConfig, run_id: str) -> BroughtFile:
    try:
        raw = path.expanduser().read_bytes()
    except OSError as error:
        raise UsageError(f"files: {path} cannot be read: {error.strerror}", cure="check the path") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"files: {path} is not UTF-8 text", cure="convert it to text first") from None
    if storage is not None:
        storage.put_bytes(f"artifacts/{path.name}", raw)
    return _kept(path.name, text, config, run_id)


def _kept(name: str, text: str, config: StorageConfig, run_id: str) -> BroughtFile:
    if size_of(text) <= config.inline_kb * 1024:
        return BroughtFile(name=name, text=text)
    return BroughtFile(name=name, handle=value_store(config, run_id).put(text))
