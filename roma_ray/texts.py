"""Texts that can be written down: half of a surrogate pair, such as a model gives for half an emoji, cannot."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


def whole(data: Any) -> Any:
    """`data` with U+FFFD for every lone surrogate in its texts; two halves that meet become their character.

    It goes through plain data, tuples and pydantic's models; anything else is left as it is.
    """
    match data:
        case str():
            return data if is_utf8(data) else data.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {whole(name): whole(value) for name, value in data.items()}
        case list():
            return [whole(value) for value in data]
        case tuple():
            return tuple(whole(value) for value in data)
        case BaseModel():
            return data.model_copy(update={name: whole(value) for name, value in data})
        case _:
            return data


def is_utf8(text: str) -> bool:
    """Whether `text` can be written down: bytes of a command line that are no UTF-8 come as lone surrogates too."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
