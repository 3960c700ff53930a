"""The list of fault points is the whole truth about where processes can be killed on purpose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import roma_ray
from roma_ray import faults

PACKAGE = Path(roma_ray.__file__).parent
NAMES = [point.name for point in faults.POINTS]


def hits() -> Iterator[str]:
    """A pattern for every `faults.hit(…)` of the package."""
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "faults.hit":
                (name,) = call.args
                if isinstance(name, ast.JoinedStr):
                    yield "".join(re.escape(p.value) if isinstance(p, ast.Constant) else r"(\w+)" for p in name.values)
                else:
                    yield re.escape(ast.literal_eval(name))


def test_every_listed_point_is_passed_somewhere_and_every_point_that_is_passed_is_listed() -> None:
    assert len(set(NAMES)) == len(NAMES)
    patterns = set(hits())
    for pattern in patterns:
        assert any(re.fullmatch(pattern, name) for name in NAMES), pattern
    for name in NAMES:
        assert any(re.fullmatch(pattern, name) for pattern in patterns), name


def test_every_named_call_of_the_run_log_has_its_two_points() -> None:
    source = (PACKAGE / "runlog" / "log.py").read_text()
    calls = set(re.findall(r'_(?:make|writer\.call)\("(\w+)"', source))
    assert {f"runlog.{when}_{call}" for call in calls for when in ("before", "after")} <= set(NAMES)
    assert len(calls) == 7


def test_a_name_that_is_not_listed_can_neither_be_armed_nor_passed_unnoticed() -> None:
    with pytest.raises(LookupError, match=r"'runlog\.after_comit' is no fault point"):
        faults.arm("runlog.after_comit", "exit")
    faults.hit("no.point")
    faults.arm("lm.answered", "raise")
    try:
        with pytest.raises(LookupError):
            faults.hit("no.point")
    finally:
        faults.disarm()
