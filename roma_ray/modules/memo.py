"""A small memory of what is costly to make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(Generic[K, V]):
    """Keeps the newest `limit` values. Copies and pickles are empty; DSPy's search for predictors does not look in."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value for `key`, made now if it is not there."""
        try:
            return self._values[key]
        except KeyError:
            value = make()
        if len(self._values) >= self._limit:
            self._values.pop(next(iter(self._values)), None)
        self._values[key] = value
        return value

    def __reduce__(self) -> tuple[type[Memo[K, V]], tuple[int]]:
        return (Memo, (self._limit,))
