"""Every check of `roma_ray.runlog.conformance` on every database, and what it says of one that fails."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from roma_ray.runlog import conformance
from roma_ray.runlog.conformance import CHECKS, Bench, Check, Report, opener, run, validate


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    match request.param:
        case "postgres":
            return request.getfixturevalue("postgres").url
        case "memory":
            return f"memory://{secrets.token_hex(4)}"
        case _:
            return f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_conformance(check: Check, url: str) -> None:
    await run(check, opener(url))
    log = await opener(url)(15.0)
    assert await log.runs() == []
    await log.close()


async def test_the_report_names_the_sentence_that_does_not_hold_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grass_is_blue(bench: Bench) -> None:
        raise AssertionError("it is green")

    async def water_is_wet(bench: Bench) -> None:
        await bench.open()

    monkeypatch.setattr(conformance, "CHECKS", (grass_is_blue, water_is_wet))
    report = await validate("memory://report")
    assert report == Report(passed=("water is wet",), failed={"grass is blue": "AssertionError: it is green"})
    assert str(report) == "ok      water is wet\nFAILED  grass is blue: AssertionError: it is green"
