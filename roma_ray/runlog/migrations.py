"""The steps that bring a database that an older version wrote up to the tables of this one."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, inspect, select, text, update

from roma_ray.errors import ConfigError
from roma_ray.runlog.schema import metadata

_versions = Table("runlog_version", MetaData(), Column("version", Integer, nullable=False))


def _to_2(connection: Connection) -> None:
    """Leases lapsed by the wall clock; now by a clock that nobody sets, so that no old lease means anything."""
    connection.execute(text("ALTER TABLE runs RENAME COLUMN lease_expires_at TO lease_until_s"))
    connection.execute(text("UPDATE runs SET lease_until_s = 0"))


_STEPS: tuple[Callable[[Connection], None], ...] = (_to_2,)
"""Step n (from 0) makes version n + 2 of n + 1. One that was released never changes what it does."""

VERSION = 1 + len(_STEPS)
"""The version of the tables that this package reads and writes."""


def migrate(connection: Connection, *, before_changing: Callable[[int], None] = lambda version: None) -> None:
    """Make the tables, or bring them up to VERSION, inside the open transaction, which must exclude other writers.

    `before_changing(version)` is called when there is something to lose, with the version that comes out. Raises
    ConfigError when a newer version of the package has written the database.
    """
    version = _version_of(connection)
    if version == VERSION:
        return
    if version > VERSION:
        raise ConfigError(
            f"the run log has version {version}, this roma_ray knows {VERSION}",
            cure="upgrade roma_ray, or give another runlog.url",
        )
    if version == 0:
        metadata.create_all(connection)
        _versions.create(connection)
        connection.execute(insert(_versions).values(version=VERSION))
        return
    before_changing(VERSION)
    for step in _STEPS[version - 1 :]:
        step(connection)
    connection.execute(update(_versions).values(version=VERSION))


def _version_of(connection: Connection) -> int:
    if not inspect(connection).has_table(_versions.name):
        return 0
    return connection.execute(select(_versions.c.version)).scalar_one()
