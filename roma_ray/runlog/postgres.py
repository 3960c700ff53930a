"""The run log in PostgreSQL: what differs from other databases, and nothing else."""

from __future__ import annotations

import math
from typing import Any, Literal

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.pq import TransactionStatus
from sqlalchemy import URL, Connection, Engine, Float, cast, create_engine, event, extract, func, text

from roma_ray import faults
from roma_ray.errors import ConfigError
from roma_ray.redact import Redactor
from roma_ray.runlog.appends import Appends, Batch, Holding
from roma_ray.runlog.database import Database, Trouble, cause_of, driver_error, errors_of, seconds_left
from roma_ray.runlog.migrations import migrate

_CONNECT_S = 5.0
_WHILE_CONNECTED: dict[str, Any] = {
    "application_name": "roma_ray",
    # A server whose machine is gone says nothing; these notice it after 10 s.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
# A client that stands still in a transaction keeps the run's row locked against whoever wants to take it over.
_SETTINGS = b"""
    SET lock_timeout = '8s';
    SET idle_in_transaction_session_timeout = '10s';
    SET statement_timeout = '30s';
"""
_SYNCHRONOUS = {
    # Some are stricter than `on`; only `off` is not enough.
    "power": b"""
        SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
    """,
    "process": b"SET synchronous_commit = off",
}
_MIGRATION_LOCK = 0x726F6D615F726179
"""Taken by whoever looks at the version of the tables; the number only has to differ from other programs'."""

_PASSING_CLASSES = ("08", "40")
_PASSING_STATES = {
    "25006": "read only, as a primary becomes when another one takes its place",
    "25P03": "idle in a transaction for too long, as after a machine's sleep",
    "53200": "out of memory",
    "53300": "too many connections",
    "55P03": "a lock was not to be had",
    "57014": "took too long",
    "57P01": "stopped by its administrator",
    "57P02": "crashed",
    "57P03": "starting or stopping",
    "57P05": "idle for too long",
}
_DISK_FULL_STATE = "53100"
# While connecting, the driver has only words. What is not known stays a passing trouble and is retried.
_REFUSALS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "not permitted to log in",
    "permission denied",
    "does not support SSL",
    "certificate",
)


def open_postgres(url: URL, durability: Literal["power", "process"]) -> Database:
    """Open the database of `postgresql://USER:PASSWORD@HOST/DATABASE`, making or upgrading its tables. Blocks.

    Raises ConfigError for what the server refuses and only people can mend, StoreUnavailable when it stays away,
    StoreFull.
    """
    url = url.set(drivername="postgresql+psycopg")
    engine = create_engine("postgresql+psycopg://", creator=lambda: _connect(engine, url), paramstyle="format")
    _set_up(engine, durability)
    database = Database(
        engine=engine,
        # One statement sees one snapshot by itself.
        reader=engine.execution_options(reading=True),
        appends=_PostgresAppends(engine),
        lease_clock=lambda: cast(extract("epoch", func.clock_timestamp()), Float),
        one_boot=False,
        trouble=_trouble,
    )

    def attempt(failures: int) -> None:
        try:
            with engine.begin() as connection:
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
                migrate(connection)
        except errors_of(engine) as error:
            if _trouble(error) is not Trouble.LASTING:
                raise
            raise _refused(url, error) from error

    try:
        database.patiently(attempt)
    except BaseException:
        engine.dispose()
        raise
    return database


class _Connection(psycopg.Connection[Any]):
    """A connection whose server is not waited for longer than the present try may take, even if it stands still."""

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        try:
            return super().wait(gen, interval, seconds_left() if timeout is None else timeout)
        except psycopg.OperationalError as error:
            if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
                raise
            self.close()
            raise psycopg.OperationalError("the server does not answer") from error


def _connect(engine: Engine, url: URL) -> _Connection:
    arguments, options = engine.dialect.create_connect_args(url)
    within_s = math.floor(min(_CONNECT_S, seconds_left()))
    return _Connection.connect(
        *arguments, autocommit=True, **{**_WHILE_CONNECTED, "connect_timeout": within_s, **options}
    )


def _set_up(engine: Engine, durability: Literal["power", "process"]) -> None:
    """Give every connection its settings, and every transaction that writes its begin."""

    def on_connect(connection: _Connection, record: Any) -> None:
        connection.execute(_SETTINGS)
        connection.execute(_SYNCHRONOUS[durability])

    def on_begin(connection: Connection) -> None:
        # The driver commits each statement by itself, as reading and most appending want it.
        if not connection.get_execution_options().get("reading", False):
            connection.connection.cursor().execute("BEGIN")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)


class _PostgresAppends(Appends):
    """Appends a batch with one statement, which is a transaction of its own: one way to the server and back."""

    _COMMIT = """
        WITH held AS (SELECT run_id, epoch FROM runs WHERE run_id = ANY(%b) ORDER BY run_id FOR UPDATE),
        added AS (
            INSERT INTO events (run_id, seq, epoch, time_s, type, node_id, payload)
            SELECT run_id, seq, epoch, time_s, type, node_id, payload
            FROM unnest(
                %b::varchar[], %b::bigint[], %b::integer[], %b::float8[], %b::varchar[], %b::varchar[], %b::bytea[]
            ) AS row (run_id, seq, epoch, time_s, type, node_id, payload)
            JOIN held USING (run_id, epoch)
        )
        SELECT run_id, epoch FROM held
    """

    def commit(self, connection: Connection, batch: Batch) -> set[Holding]:
        columns = list(map(list, zip(*(row for rows in batch.values() for row in rows), strict=True)))
        faults.hit("runlog.before_commit")
        cursor = connection.connection.cursor()
        cursor.execute(self._COMMIT, [sorted({run_id for run_id, _ in batch}), *columns])
        return set(batch) - {(run_id, epoch) for run_id, epoch in cursor.fetchall()}


def _trouble(error: BaseException) -> Trouble:
    cause = driver_error(error)
    state = getattr(cause, "sqlstate", None)
    if state is None:
        refused = any(words in str(cause) for words in _REFUSALS)
        lost = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) and not refused
        return Trouble.PASSING if lost else Trouble.LASTING
    if state == _DISK_FULL_STATE:
        return Trouble.FULL
    return Trouble.PASSING if state in _PASSING_STATES or state[:2] in _PASSING_CLASSES else Trouble.LASTING


def _refused(url: URL, error: BaseException) -> ConfigError:
    password = str(url.password or url.query.get("password") or "")
    shown = Redactor([password]).text(url.set(drivername="postgresql").render_as_string(hide_password=True))
    return ConfigError(
        f"the run log {shown} cannot be used: {Redactor([password]).text(cause_of(error))}",
        cure="correct runlog.url, or give that user the database and the right to make tables in it",
    )
