"""The tables of the run log, the same in every database; what a database needs besides stands in its own file."""

from __future__ import annotations

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    event,
)

# SQLite numbers rows by themselves only where the type is called INTEGER; that has 64 bits there anyway.
_Number = BigInteger().with_variant(Integer(), "sqlite")
# Ids are compared byte by byte, so that an index can look for how they begin.
_Id = String().with_variant(String(collation="C"), "postgresql")

metadata = MetaData()

runs = Table(
    "runs",
    metadata,
    Column("run_id", _Id, primary_key=True),
    Column("goal", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    # The lease: who holds the run. A new epoch and token for every taking; lapsed at 0 when it was given up.
    Column("epoch", Integer, nullable=False),
    Column("lease_token", String, nullable=False),
    # Seconds of the database's lease clock, which means nothing to people; `lease_since_at` is wall-clock time.
    Column("lease_until_s", Float, nullable=False),
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
    Column("run_id", _Id, primary_key=True),
    Column("seq", _Number, primary_key=True, autoincrement=False),
    Column("epoch", Integer, nullable=False),
    Column("time_s", Float, nullable=False),
    Column("type", String, nullable=False),
    Column("node_id", String, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

inbox = Table(
    "inbox",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("run_id", _Id, nullable=False),
    Column("time_s", Float, nullable=False),
    Column("kind", String, nullable=False),
    Column("token", String, nullable=False, unique=True),
    Column("payload", LargeBinary, nullable=False),
    Index("inbox_by_run", "run_id", "id"),
    # An id is never given again, so that "everything up to this id" keeps its meaning.
    sqlite_autoincrement=True,
)

# Payloads are compressed already.
_keep_as_it_is = DDL("ALTER TABLE events ALTER COLUMN payload SET STORAGE EXTERNAL")
event.listen(events, "after_create", _keep_as_it_is.execute_if(dialect="postgresql"))
