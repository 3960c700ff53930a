"""What a database must offer to hold the run log; a dialect file fills it in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from roma_ray.clock import mono_s
from roma_ray.errors import StoreFull, StoreUnavailable
from roma_ray.faults import InjectedFault
from roma_ray.runlog.appends import Appends

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a busy or absent database is waited for."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.02, 1.0
_SHORTEST_TRY_S = 2.0
"""A try that begins later than this before the end could not be cut short in time."""
_ASIDE_S = 5.0
"""What a heartbeat or a look at the inbox may take, so that appends behind it do not wait for long."""

_log = logging.getLogger(__name__)
_trying = threading.local()


class Trouble(Enum):
    """What an error of the driver means for whoever waits for an answer."""

    PASSING = "locked, restarting, connection lost: waiting mends it"
    FULL = "there is no room left"
    LASTING = "it stays until somebody acts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """An open database, migrated.

    What an epoch is checked and events are written by cannot be interleaved with others that do the same to the same
    run: transactions of `engine` exclude each other from their begin on, or lock the run's row. Those of `reader` see
    one snapshot and wait for nobody.
    """

    engine: Engine
    reader: Engine
    appends: Appends
    lease_clock: Callable[[], ColumnElement[float]]
    """The only clock that leases are compared by, in seconds, as SQL: one for everybody who has the database open."""
    one_boot: bool
    """Whether only processes since this machine's boot can have it open, so that all earlier holders are dead."""
    trouble: Callable[[BaseException], Trouble]

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises, wrapped by SQLAlchemy or not: the hot path uses the driver's cursor."""
        return errors_of(self.engine)

    def patiently(self, attempt: Callable[[int], T], *, since_mono_s: float | None = None) -> T:
        """What `attempt(n)` returns, n being the number of failures before it. Blocks, PATIENCE_S at most.

        Tried once, and again with back-off while the trouble is a passing one. `since_mono_s` is when the waiting for
        it began, if that was earlier. Raises StoreFull and StoreUnavailable.
        """
        deadline_mono_s = (mono_s() if since_mono_s is None else since_mono_s) + PATIENCE_S
        failures = 0
        while True:
            try:
                return _before(deadline_mono_s, attempt, failures)
            except (InjectedFault, *self.errors) as error:
                if isinstance(error, self.errors):
                    self._raise_lasting(error)
                cause = cause_of(error)
            wait_s = min(_FIRST_WAIT_S * 2**failures, _LONGEST_WAIT_S)
            if mono_s() + wait_s > deadline_mono_s - _SHORTEST_TRY_S:
                raise StoreUnavailable(f"the run log could not be reached for {PATIENCE_S:.0f} s: {cause}")
            _log.warning("the run log cannot be reached, trying again in %.2f s: %s", wait_s, cause)
            time.sleep(wait_s)
            failures += 1

    def _raise_lasting(self, error: Exception) -> None:
        match self.trouble(error):
            case Trouble.PASSING:
                return
            case Trouble.FULL:
                raise StoreFull(f"the run log is full: {cause_of(error)}") from error
            case Trouble.LASTING:
                raise StoreUnavailable(f"the run log failed: {cause_of(error)}") from error

    def dispose(self) -> None:
        """Close every connection."""
        self.engine.dispose()


def _before(deadline_mono_s: float, attempt: Callable[[int], T], failures: int) -> T:
    _trying.until_mono_s = deadline_mono_s
    try:
        return attempt(failures)
    finally:
        del _trying.until_mono_s


def seconds_left() -> float:
    """How long this thread's present try may still take, for drivers that can be told; less where nobody waits."""
    until_mono_s = getattr(_trying, "until_mono_s", None)
    return _ASIDE_S if until_mono_s is None else max(_SHORTEST_TRY_S, until_mono_s - mono_s())


def cause_of(error: BaseException) -> str:
    """The driver's own one-line words, without the statement and its parameters."""
    if isinstance(error, DBAPIError) and error.orig is not None:
        error = error.orig
    return str(error).strip().partition("\n")[0] or type(error).__name__


def driver_error(error: BaseException) -> Any:
    """What the driver raised, whether SQLAlchemy has wrapped it or not."""
    return error.orig if isinstance(error, DBAPIError) else error


def errors_of(engine: Engine) -> tuple[type[Exception], ...]:
    """What the engine's driver raises, wrapped by SQLAlchemy or not."""
    driver = engine.dialect.dbapi
    return (SQLAlchemyError, driver.Error) if driver is not None else (SQLAlchemyError,)
