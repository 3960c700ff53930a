"""Plain data as Arrow tables, only where reading the table back gives exactly the same data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from roma_ray.types import Json

_LONGEST_ROW_CHARS = 64 * 1024
_SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.large_string()}


def table_of_text(text: str) -> pa.Table | None:
    """One column `text`, one row a line with its end, long lines in pieces; so that a part can be read alone.

    None when the text is not valid Unicode (a lone surrogate).
    """
    lines = text.split("\n")
    kept = [line + "\n" for line in lines[:-1]] + lines[-1:]
    try:
        return pa.table({"text": pa.array(chain.from_iterable(map(_pieces, kept)), pa.large_string())})
    except UnicodeEncodeError:
        return None


def _pieces(line: str) -> Sequence[str]:
    if len(line) <= _LONGEST_ROW_CHARS:
        return (line,)
    return [line[start : start + _LONGEST_ROW_CHARS] for start in range(0, len(line), _LONGEST_ROW_CHARS)]


def table_of_records(records: Sequence[Json]) -> pa.Table | None:
    """One row a record, nested fields as nested types; None when that would change anything.

    All records must be dicts with the same keys in the same order, and every field must have one type throughout
    (null apart): Arrow would add keys, reorder them, or turn 1 into 1.0.
    """
    if not records or not all(isinstance(record, dict) and record for record in records):
        return None
    names = list(records[0])
    if not all(isinstance(name, str) for name in names) or any(list(record) != names for record in records):
        return None
    try:
        columns = [_column([record[name] for record in records]) for name in names]
        return pa.table(columns, names=names)
    except (_Inexact, pa.ArrowException, OverflowError, UnicodeEncodeError, TypeError):
        return None


class _Inexact(Exception):
    """Arrow cannot hold this column as it is."""


def _column(values: list[Json]) -> pa.Array[Any]:
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values))
    if len(kinds) > 1:
        raise _Inexact
    scalar = _SCALARS.get(kinds.pop())
    if scalar is not None:
        return pa.array(values, scalar)
    column = pa.array(values)
    # Nested values may mix types and keys anywhere below, so they are compared as text, which shows all of it.
    if _has_empty_struct(column.type) or orjson.dumps(column.to_pylist()) != orjson.dumps(values):
        raise _Inexact
    return column


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Parquet cannot hold a struct without fields."""
    children = [kind.field(index) for index in range(kind.num_fields)]
    return (pa.types.is_struct(kind) and not children) or any(_has_empty_struct(child.type) for child in children)
