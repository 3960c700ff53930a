"""Text of unknown origin on one line of a terminal."""

from __future__ import annotations

_UNSEEN = dict.fromkeys([*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])
"""Control characters, and those that turn the direction of writing: a goal may not repaint a terminal."""


def one_line(text: str) -> str:
    """`text` with every run of white space as one space and without characters that control a terminal."""
    return " ".join(text.split()).translate(_UNSEEN)
