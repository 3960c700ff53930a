"""What every reading command prints: JSON documents and plain columns."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import orjson

from roma_ray.cli.exits import write_no_more
from roma_ray.errors import FolderUnusable
from roma_ray.texts import whole
from roma_ray.types import Json


def print_json(document: Json) -> None:
    """Print one indented JSON document on stdout."""
    print_text(orjson.dumps(whole(document), option=orjson.OPT_INDENT_2).decode())


def print_text(text: str) -> None:
    """Print `text` on stdout. Raises FolderUnusable when it cannot be written, BrokenPipeError when nobody reads it."""
    try:
        print(whole(text), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        write_no_more(sys.stdout)
        cure = "nothing is lost: `roma-ray show` has the answer"
        raise FolderUnusable(f"stdout cannot be written: {error.strerror}", cure=cure) from error


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of equal length as aligned columns."""
    print_text("\n".join(columns(rows)))


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows of equal length, at least one, as lines of aligned columns; the last column is not padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)]
        yield "  ".join([*padded, row[-1]]).rstrip()
