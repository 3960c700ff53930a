"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

from tests.scripted.client import Scripted, running_server

pytest_plugins = ["tests.postgres"]

# DSPy fetches its price list from the internet at first use; tests run without one.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture(scope="session")
def scripted_server() -> Generator[Scripted]:
    """The scripted model server, one for all tests; take `scripted` instead."""
    with running_server() as server:
        yield server


@pytest.fixture
def scripted(scripted_server: Scripted) -> Scripted:
    """The scripted model server with nothing in its log and no latency."""
    scripted_server.reset()
    return scripted_server
