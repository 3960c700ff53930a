"""The tables of the run log, and the steps that bring a database of any older version up to them."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    update,
)

from roma_ray.errors import ConfigError

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("goal", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    # The lease: who holds the run. A new epoch and token for every taking; expired at 0 when it was given up.
    Column("epoch", Integer, nullable=False),
    Column("lease_token", String, nullable=False),
    Column("lease_expires_at", Float, nullable=False),
    Column("lease_since_at", Float, nullable=False),
    Column("owner_host", String, nullable=False),
    Column("owner_boot", String, nullable=False),
    Column("owner_pid", Integer, nullable=False),
    Column("owner_start", String, nullable=False),
    Index("runs_by_time", "created_at"),
)

events = Table(
    "events",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    Column("time_s", Float, nullable=False),
    Column("type", String, nullable=False),
    Column("node_id", String, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", String, nullable=False),
    Column("time_s", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("token", String, nullable=False, unique=True),
    Column("payload", LargeBinary, nullable=False),
    Index("inbox_by_run", "run_id", "id"),
    # An id is never given again, so that "everything up to this id" keeps its meaning.
    sqlite_autoincrement=True,
)

_versions = Table("runlog_version", MetaData(), Column("version", Integer, nullable=False))

_STEPS: tuple[Callable[[Connection], None], ...] = (metadata.create_all,)
"""Step n makes version n of n - 1. A step that was released never changes what it does."""


def migrate(connection: Connection) -> None:
    """Bring the tables up to this version inside the open transaction, which must exclude other writers.

    Raises ConfigError when a newer version of the package has written the database.
    """
    done = 0
    if inspect(connection).has_table(_versions.name):
        done = connection.execute(select(_versions.c.version)).scalar_one()
    else:
        _versions.create(connection)
        connection.execute(insert(_versions).values(version=0))
    if done > len(_STEPS):
        raise ConfigError(
            f"the run log has version {done}, this roma_ray knows {len(_STEPS)}",
            cure="upgrade roma_ray, or give another runlog.url",
        )
    for step in _STEPS[done:]:
        step(connection)
    if done < len(_STEPS):
        connection.execute(update(_versions).values(version=len(_STEPS)))
