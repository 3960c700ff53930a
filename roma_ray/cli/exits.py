"""How a command ends: one line on stderr for an error, and the exit code that belongs to it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TextIO

from roma_ray.cli.oneline import one_line

if TYPE_CHECKING:
    from roma_ray.errors import RomaError
    from roma_ray.types import Fault

INTERRUPTED = 130


def ended(
    body: Callable[[], int | None],
    *,
    errors: Literal["line", "traceback"] = "line",
    also: Callable[[RomaError], None] | None = None,
) -> int:
    """The exit code of `body`, None being 0. An exception is told on stderr on one line, after its traceback if wanted.

    `also` is called with that error, after it was told.
    """
    try:
        return body() or 0
    except KeyboardInterrupt:
        print("R0501 interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever reads stdout has gone (`| head`). Nothing is wrong, and the flush at exit must not complain either.
        write_no_more(sys.stdout)
        return 0
    except Exception as raised:
        if errors == "traceback":
            traceback.print_exc()
        error = as_ours(raised)
        print_fault(error.fault)
        if also is not None:
            also(error)
        return error.exit_code


def write_no_more(stream: TextIO) -> None:
    """Let everything that is still written to `stream`, which nobody takes any more, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_fault(fault: Fault) -> None:
    """Tell an error on stderr, without secrets: code, cause and cure on one line.

    Only where a replay differs more lines follow, which show the place.
    """
    from roma_ray.errors import ReplayDiffers
    from roma_ray.redact import Redactor

    clean = Redactor().text
    message, details = fault.message, ""
    if fault.code == ReplayDiffers.code:
        message, _, details = fault.message.partition("\n")
    cure = f" - {fault.cure}" if fault.cure else ""
    print(one_line(clean(f"{fault.code} {message}{cure}")), file=sys.stderr)
    for line in details.splitlines():
        print(f"    {one_line(clean(line[:1]))}{one_line(clean(line[1:]))}".rstrip(), file=sys.stderr)


def as_ours(error: Exception) -> RomaError:
    """`error` itself where it is one of ours; any other is a bug, and told as such."""
    # Imported here, since `--help` must not pay for the data types that errors.py builds on.
    from roma_ray.errors import RomaError

    return error if isinstance(error, RomaError) else RomaError(f"{type(error).__name__}: {error}")
