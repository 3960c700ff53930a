"""How large a value is; apart from the store, so that asking does not load pyarrow."""

from __future__ import annotations

import json

import orjson

from roma_ray.types import Json


def size_of(value: Json) -> int:
    """The size of a value as JSON, in bytes; for a text without its quotes and escapes."""
    if isinstance(value, str):
        return len(value.encode(errors="surrogatepass"))
    try:
        return len(orjson.dumps(value))
    except TypeError:
        return len(json.dumps(value))
