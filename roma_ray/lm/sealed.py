"""In which way a request of a replayed run is not one that was recorded, for people."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, takewhile

import orjson

from roma_ray.errors import ReplayDiffers
from roma_ray.types import CallRecord, Json

_CONTEXT_LINES = 2
_SHOWN_LINES = 9
_SHOWN_CHARS = 150
_BEFORE_CHARS = 60
"""How much of a line stands before the place where two long lines part."""


def differs(
    *, step: str, role: str, key: str, request: Json, known: Mapping[str, Sequence[CallRecord]]
) -> ReplayDiffers:
    """The error for a request that was not recorded, or not as often; `known` is what was recorded of its step.

    The first line of its message names the step and the role. Below it stands the first place where the request parts
    from the recorded one of that role that is nearest, as a unified diff of at most 10 lines.
    """
    who = f"{step} ({role})"
    records = [record for record in chain.from_iterable(known.values()) if record.role == role]
    if not records:
        return ReplayDiffers(f"{who} calls its model, and the recording has no such call of this step")
    if known.get(key):
        return ReplayDiffers(f"{who} makes a request more often than it was recorded ({len(known[key])} times)")
    readable = [record for record in records if record.request is not None]
    if not readable:
        return ReplayDiffers(
            f"{who} makes a request that was not recorded; where it differs cannot be said, "
            "since texts were not recorded (runlog.prompts=hash)"
        )
    asked = _lines(request)
    nearest = _nearest([_lines(record.request) for record in readable], asked)
    return ReplayDiffers("\n".join([f"{who} makes a request that was not recorded", *_first_place(nearest, asked)]))


def _lines(request: Json) -> list[str]:
    """Plain data line by line: where each value stands, then the value; texts as they are."""
    return list(_walk("", request))


def _walk(path: str, value: Json) -> Iterator[str]:
    match value:
        case {}:
            for name in sorted(value):
                yield from _walk(f"{path}.{name}".lstrip("."), value[name])
        case [*items]:
            for number, item in enumerate(items):
                yield from _walk(f"{path}[{number}]", item)
        case str() if "\n" in value:
            yield f"{path}:"
            yield from value.splitlines()
        case _:
            yield f"{path} = {orjson.dumps(value).decode()}"


def _nearest(candidates: Sequence[list[str]], asked: list[str]) -> list[str]:
    """The candidate that has most lines in common with `asked`; of equals, the one that was recorded last."""
    counted = Counter(asked)
    return max(reversed(candidates), key=lambda lines: (Counter(lines) & counted).total())


def _first_place(recorded: list[str], asked: list[str]) -> list[str]:
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(recorded, asked, strict=False)))
    start = max(0, same - _CONTEXT_LINES)
    # A window is enough for the first place, whatever the length of a prompt.
    before, now = (lines[start : same + 20] for lines in (recorded, asked))
    diff = list(difflib.unified_diff(before, now, "recorded", "asked now", n=_CONTEXT_LINES, lineterm=""))
    hunk = list(takewhile(lambda line: not line.startswith("@@"), diff[3:]))
    parts_at = _parting(hunk)
    return [*diff[:2], *(_shortened(line, parts_at) for line in hunk[: _SHOWN_LINES - 1])]


def _parting(hunk: Sequence[str]) -> int:
    """At which character the first line that went parts from the first that came."""
    went, came = (next((line[1:] for line in hunk if line[0] == sign), "") for sign in "-+")
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(went, came, strict=False)))


def _shortened(line: str, parts_at: int) -> str:
    sign, text = line[:1], line[1:]
    if len(text) <= _SHOWN_CHARS:
        return line
    start = max(0, parts_at - _BEFORE_CHARS) if sign in "-+" else 0
    end = start + _SHOWN_CHARS
    return f"{sign}{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
