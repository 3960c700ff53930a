"""Drivers of real processes, on both databases."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.end_to_end.conftest import no_driver_is_left
from tests.faults.site import Site
from tests.scripted.client import Scripted

__all__ = ["no_driver_is_left"]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a run log that nobody has used, on each database."""
    if request.param == "postgresql":
        return request.getfixturevalue("postgres").url
    return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def site(tmp_path: Path, scripted: Scripted, database: str) -> Generator[Site]:
    """A place for runs on each database."""
    yield Site(tmp_path, scripted, database)


@pytest.fixture
def sqlite_site(tmp_path: Path, scripted: Scripted) -> Site:
    """The same on SQLite, for what does not depend on the database."""
    return Site(tmp_path, scripted, f"sqlite:///{tmp_path / 'runs.db'}")
