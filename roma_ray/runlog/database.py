"""What a database must offer to hold the run log; a dialect file fills it in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from roma_ray.clock import mono_s
from roma_ray.errors import StoreUnavailable
from roma_ray.faults import InjectedFault

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a busy or absent database is waited for."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An open database, migrated. Transactions of `engine` exclude each other from their begin on, those of `reader`
    see one snapshot and wait for nobody.

    `is_passing` tells an error of the driver that waiting mends (locked, connection lost) from one that stays.
    """

    engine: Engine
    reader: Engine
    errors: tuple[type[Exception], ...]
    is_passing: Callable[[BaseException], bool]

    def patiently(self, attempt: Callable[[int], T]) -> T:
        """What `attempt(n)` returns, n being the number of failures before it. Blocks.

        Tried again with back-off while the error is a passing one, PATIENCE_S at most. Raises StoreUnavailable.
        """
        deadline_mono_s = mono_s() + PATIENCE_S
        failures = 0
        while True:
            try:
                return attempt(failures)
            except InjectedFault as error:
                failure: Exception = error
            except self.errors as error:
                failure = error
                if not self.is_passing(error):
                    raise StoreUnavailable(f"the run log failed: {cause_of(error)}") from error
            if mono_s() > deadline_mono_s:
                raise StoreUnavailable(f"the run log could not be reached for {PATIENCE_S:.0f} s: {cause_of(failure)}")
            time.sleep(min(_FIRST_WAIT_S * 2**failures, _LONGEST_WAIT_S))
            failures += 1

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def cause_of(error: BaseException) -> str:
    """The driver's own one-line words, without the statement and its parameters."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    return str(error).strip().partition("\n")[0] or type(error).__name__


def errors_of(engine: Engine) -> tuple[type[Exception], ...]:
    """What the engine's driver raises, wrapped by SQLAlchemy or not: the hot path uses the driver's cursor."""
    driver = engine.dialect.dbapi
    return (SQLAlchemyError, driver.Error) if driver is not None else (SQLAlchemyError,)
