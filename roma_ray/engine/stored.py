"""The value store of a run, loaded when it is first needed: most runs have no value that is too large for the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roma_ray.config import StorageConfig

if TYPE_CHECKING:
    from roma_ray.storage.values import ValueStore


def value_store(config: StorageConfig, run_id: str) -> ValueStore:
    """The store of `run_id`. Raises FolderUnusable, and ExtraMissing where its URL needs a package."""
    # Imported here: pyarrow and fsspec take half a second of CPU in every process.
    from roma_ray.storage.values import ValueStore

    return ValueStore(config.base_path, run_id)


def remove_run(config: StorageConfig, run_id: str) -> None:
    """Remove the execution folder of a run, with its values; nothing happens where there is none."""
    from roma_ray.storage.values import ValueStore

    ValueStore(config.base_path, run_id).remove_all()
