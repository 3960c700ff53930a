"""A request that was not recorded: what people are told of it."""

from __future__ import annotations

from typing import Any

from roma_ray.lm.sealed import differs
from roma_ray.types import CallRecord


def request(text: str, **config: Any) -> dict[str, Any]:
    return {"model": "m", "config": config, "messages": [{"role": "user", "parts": [{"type": "text", "text": text}]}]}


def record(key: str, plain: Any, role: str = "planner") -> CallRecord:
    return CallRecord(step="root/descend~0", role=role, model="m", request_key=key, request=plain, response={})


def told(asked: Any, *recorded: CallRecord, key: str = "new") -> list[str]:
    known = {r.request_key: [r] for r in recorded}
    message = differs(step="root/descend~0", role="planner", key=key, request=asked, known=known).message
    return message.splitlines()


def test_the_nearest_request_of_the_role_is_compared() -> None:
    far, near = record("a", request("one\ntwo\nthree")), record("b", request("one\nzwei\nthree\nfour"))
    other_role = record("c", request("one\n2\nthree\nfour"), role="executor")
    first, *place = told(request("one\n2\nthree\nfour"), far, near, other_role)
    assert first == "root/descend~0 (planner) makes a request that was not recorded"
    assert place[:2] == ["--- recorded", "+++ asked now"]
    assert "-zwei" in place and "+2" in place


def test_a_setting_that_differs_is_named_by_where_it_stands() -> None:
    _, *place = told(request("a\nb", temperature=0.5), record("a", request("a\nb", temperature=0.0)))
    assert "-config.temperature = 0.0" in place and "+config.temperature = 0.5" in place


def test_a_long_line_is_shown_around_the_place_where_it_differs() -> None:
    before, after = "x" * 5_000 + "OLD" + "y" * 5_000, "x" * 5_000 + "NEW" + "y" * 5_000
    _, *place = told(request(f"\n{after}"), record("a", request(f"\n{before}")))
    assert len(place) <= 10 and all(len(line) < 200 for line in place)
    assert any("OLD" in line for line in place) and any("NEW" in line for line in place)


def test_a_prompt_of_a_megabyte_is_compared_at_its_first_difference_only() -> None:
    lines = [f"line {i}" for i in range(100_000)]
    changed = [*lines[:90_000], "another", *lines[90_001:95_000], "and another", *lines[95_001:]]
    _, *place = told(request("\n".join(changed)), record("a", request("\n".join(lines))))
    assert "+another" in place and "+and another" not in place


def test_what_was_recorded_less_often_or_not_at_all_is_told_as_such() -> None:
    same = request("a")
    assert "more often than it was recorded (1 times)" in told(same, record("k", same), key="k")[0]
    assert "no such call of this step" in told(same)[0]
    assert "no such call of this step" in told(same, record("k", same, role="executor"))[0]
    assert "texts were not recorded" in told(same, record("k", None))[0]
