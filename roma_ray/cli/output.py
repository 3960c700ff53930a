"""What every reading command prints: JSON documents and plain columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import orjson

from roma_ray.types import Json


def print_json(document: Json) -> None:
    """Print one indented JSON document on stdout."""
    print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode(), file=sys.stdout)


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length as aligned columns; the last one is not padded."""
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        print("  ".join([*padded, row[-1]]).rstrip())
