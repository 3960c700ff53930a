"""How a payload is stored: one flag byte, then JSON, compressed where that pays."""

from __future__ import annotations

import json
import threading

import orjson
import zstandard

from roma_ray.types import Json

_COMPRESSED = 1
_LENIENT = 2
"""Written by the standard library, because orjson refuses integers over 64 bits and lone surrogates."""

_WORTH_COMPRESSING_BYTES = 300
_LEVEL = 3
"""Of 2,000 call records of 5.5 KiB on average, level 3 keeps 44 % at 41 µs each, level 9 keeps 43 % at 194 µs."""

_of_thread = threading.local()


def encode(payload: dict[str, Json]) -> bytes:
    """The bytes of a payload; `decode` gives it back. Raises TypeError when it is not plain data."""
    flag = 0
    try:
        data = orjson.dumps(payload)
    except TypeError:
        data, flag = json.dumps(payload).encode(), _LENIENT
    if len(data) < _WORTH_COMPRESSING_BYTES:
        return bytes((flag,)) + data
    return bytes((flag | _COMPRESSED,)) + _compressor().compress(data)


def decode(blob: bytes) -> dict[str, Json]:
    """The payload that `encode` wrote."""
    flag, data = blob[0], blob[1:]
    if flag & _COMPRESSED:
        data = _decompressor().decompress(data)
    return json.loads(data) if flag & _LENIENT else orjson.loads(data)


# The objects of zstandard may not be used by two threads at once.
def _compressor() -> zstandard.ZstdCompressor:
    if not hasattr(_of_thread, "compressor"):
        _of_thread.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return _of_thread.compressor


def _decompressor() -> zstandard.ZstdDecompressor:
    if not hasattr(_of_thread, "decompressor"):
        _of_thread.decompressor = zstandard.ZstdDecompressor()
    return _of_thread.decompressor
