"""Values too large for the run log: one Parquet file each, named by the hash of its bytes."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from roma_ray import faults
from roma_ray.errors import ExtraMissing, FolderUnusable, StoreFull, StoreUnavailable, ValueLost
from roma_ray.storage.files import write_atomically
from roma_ray.storage.tables import table_of_records, table_of_text
from roma_ray.types import Json, ValueHandle

_PREVIEW_CHARS = 600
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class ValueStore:
    """The values of one run, under `executions/<run_id>/results` of a folder or of any URL that fsspec opens.

    Safe to use from several threads. Its methods block.
    """

    def __init__(self, base_path: str, run_id: str) -> None:
        """Raises FolderUnusable for a URL that cannot be opened, ExtraMissing when its package is not installed."""
        base = base_path if "://" in base_path else str(Path(base_path).expanduser().absolute())
        try:
            self._files, root = fsspec.url_to_fs(base)
        except ImportError as error:
            raise ExtraMissing(f"{base_path} needs a package that is not installed", cure=str(error)) from error
        except ValueError as error:
            raise FolderUnusable(f"storage.base_path {base_path!r} cannot be used: {error}") from error
        self._root = str(root).rstrip("/")
        self._run_id = run_id

    def put(self, value: Json) -> ValueHandle:
        """Store a value, durably and whole; storing it again changes nothing.

        A text becomes lines, a list of records a table with one row a record, where that is exact; anything else is
        kept as JSON. Raises StoreFull when there is no room, FolderUnusable (local) or StoreUnavailable (remote) when
        it cannot be written for another reason.
        """
        kind, table = _to_table(value)
        data = _to_parquet(table)
        digest = hashlib.sha256(data).hexdigest()
        path = f"executions/{self._run_id}/results/{digest}.parquet"
        faults.hit("storage.before_write")
        with self._refusals_of(path):
            if isinstance(self._files, LocalFileSystem):
                write_atomically(Path(self._root, path), data)
            else:
                self._files.pipe_file(f"{self._root}/{path}", data)
        faults.hit("storage.after_write")
        return ValueHandle(
            path=path,
            sha256=digest,
            size_bytes=len(data),
            kind=kind,
            rows=table.num_rows,
            columns=tuple(table.column_names) if kind == "table" else (),
            preview=_preview(value),
        )

    def get(self, handle: ValueHandle) -> Json:
        """The value behind a handle, exactly as it was put.

        Raises ValueLost when it is missing or damaged, FolderUnusable or StoreUnavailable when it cannot be read.
        """
        path = PurePosixPath(handle.path)
        if path.is_absolute() or ".." in path.parts:
            raise ValueLost(f"the handle points outside the store: {handle.path}")
        try:
            with self._refusals_of(handle.path):
                data = cast(bytes, self._files.cat_file(f"{self._root}/{path}"))
        except FileNotFoundError as error:
            raise ValueLost(f"the stored value {handle.path} is missing") from error
        if hashlib.sha256(data).hexdigest() != handle.sha256:
            raise ValueLost(f"the stored value {handle.path} is damaged")
        return _from_table(handle.kind, pq.read_table(pa.BufferReader(data)))

    def remove_all(self) -> None:
        """Remove the execution folder of this run, and everything in it. Raises as `put` does."""
        folder = f"{self._root}/executions/{self._run_id}"
        with self._refusals_of(f"executions/{self._run_id}"):
            if self._files.exists(folder):
                self._files.rm(folder, recursive=True)

    @contextmanager
    def _refusals_of(self, path: str) -> Generator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise StoreFull(f"no room is left for {self._root}/{path}") from error
            kind = FolderUnusable if isinstance(self._files, LocalFileSystem) else StoreUnavailable
            raise kind(f"{self._root}/{path} cannot be used: {error.strerror or error}") from error
        except Exception as error:
            # The errors of a remote file system are its own: botocore's are no OSError.
            if isinstance(self._files, LocalFileSystem):
                raise
            raise StoreUnavailable(f"{self._root}/{path} cannot be used: {error}") from error


def _to_table(value: Json) -> tuple[Literal["text", "table", "json"], pa.Table]:
    if isinstance(value, str):
        text = table_of_text(value)
        if text is not None:
            return "text", text
    elif isinstance(value, list):
        table = table_of_records(cast(list[Any], value))
        if table is not None:
            return "table", table
    # The standard library, because it is exact: integers of any size, lone surrogates, infinity.
    return "json", pa.table({"json": pa.array([json.dumps(value)], pa.large_string())})


def _from_table(kind: str, table: pa.Table) -> Json:
    match kind:
        case "text":
            return "".join(table.column("text").to_pylist())
        case "table":
            return table.to_pylist()
        case _:
            return json.loads(table.column("json")[0].as_py())


def _to_parquet(table: pa.Table) -> bytes:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue().to_pybytes()


def _preview(value: Json) -> str:
    """The beginning of a value, for people and models; a cut is visible."""
    if isinstance(value, str):
        text = value[: _PREVIEW_CHARS + 1]
    else:
        text = ""
        # Lazily, so that a value of any size costs no more than what is shown of it.
        for part in json.JSONEncoder(ensure_ascii=False).iterencode(value):
            text += part
            if len(text) > _PREVIEW_CHARS:
                break
    return text if len(text) <= _PREVIEW_CHARS else text[: _PREVIEW_CHARS - 2] + " …"
