"""A key reaches the endpoint and nothing else: no log, no file, no output, no process list."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.driver import Driver
from tests.scripted.client import Scripted

SECRET = "Zk7-correct-horse-battery-staple-91"


@pytest.mark.parametrize("backend", ["inline", pytest.param("local", marks=pytest.mark.ray)])
@pytest.mark.timeout(300)
def test_a_key_is_sent_to_the_endpoint_and_stands_nowhere_else(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    scripted.reset(api_key=SECRET)
    monkeypatch.setenv("ROMA_RAY_LM__API_KEY", SECRET)
    driver = Driver(tmp_path, scripted, "goal=N=2 of it", "log.level=debug", backend=backend)
    code, document = driver.finish()
    assert (code, document["status"]) == (0, "completed"), driver.stderr
    assert scripted.stats()["answered"] == 7, "the endpoint, which wants the key, had it"
    assert SECRET not in driver.stderr + str(document)
    assert SECRET not in str([event.payload for event in driver.events()])
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        assert SECRET.encode() not in file.read_bytes(), file


def test_a_refused_key_is_told_in_one_line_without_showing_it(
    tmp_path: Path, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted.reset(api_key="another")
    monkeypatch.setenv("ROMA_RAY_LM__API_KEY", SECRET)
    driver = Driver(tmp_path, scripted, "goal=hello")
    code, document = driver.finish()
    assert (code, document["error"]["code"]) == (2, "R0103")
    assert "lm.api_key" in document["error"]["cure"]
    assert SECRET not in driver.stderr + str(document)
    assert [line[:5] for line in driver.stderr.splitlines()[1:]] == ["R0103", "resum"]
