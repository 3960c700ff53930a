"""Prompts: stable part first, every value in its fair share, nothing cut or missing without saying so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from roma_ray.engine.context import CHARS_PER_TOKEN, Material, build_context, build_results, in_groups
from roma_ray.engine.request import InputSpec, StepRequest
from roma_ray.types import Fault, NodeStatus, StepKey, TaskType


def request(**changes: object) -> StepRequest:
    base: dict[str, object] = {"key": StepKey("root.1", "descend"), "goal": "g", "task_type": TaskType.THINK}
    return StepRequest(**(base | {"ancestors": ("The whole",)} | changes))  # type: ignore[arg-type]


def material(text: str | None, **spec: object) -> Material:
    return Material(spec=InputSpec(node_id="root.0", goal="first part", **spec), text=text)  # type: ignore[arg-type]


def test_the_stable_part_comes_first_then_the_day_then_the_values() -> None:
    given_request = request(
        ancestors=("The whole", "A part"), siblings=("other",), sibling_count=1, feedback="be exact"
    )
    text = build_context(given_request, [material("VALUE")], day="2026-01-02", share_tokens=100)
    places = [text.index(s) for s in ("The whole", "A part", "other", "2026-01-02", "VALUE", "be exact")]
    assert places == sorted(places)


def test_what_is_missing_says_why() -> None:
    spec = {"status": NodeStatus.FAILED, "fault": Fault(code="R0301", message="the endpoint broke")}
    assert "the endpoint broke" in build_context(request(), [material(None, **spec)], day="d", share_tokens=100)
    assert "the endpoint broke" in str(build_results([material(None, **spec)], share_tokens=100)[0].result)


def test_a_long_value_is_cut_with_a_mark_that_names_where_the_whole_is() -> None:
    text = build_context(request(), [material("x" * 9_000, where="results/abc")], day="d", share_tokens=500)
    assert "[cut: the first 2000 of 9000 characters; the whole is stored as results/abc]" in text


def test_short_values_leave_their_share_to_long_ones() -> None:
    results = build_results([material("s" * 10), material("l" * 5_000)], share_tokens=500)
    assert results[0].result == "s" * 10
    assert str(results[1].result).startswith("l" * 1_990 + "\n[cut")


@given(st.lists(st.integers(0, 50_000), min_size=1, max_size=40), st.integers(100, 20_000))
def test_values_never_take_more_than_their_share_together(sizes: list[int], share_tokens: int) -> None:
    results = build_results([material("x" * size) for size in sizes], share_tokens=share_tokens)
    shown = sum(str(result.result).split("\n[cut")[0].count("x") for result in results)
    assert shown <= share_tokens * CHARS_PER_TOKEN


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=300), st.integers(500, 20_000))
def test_groups_cover_every_result_once_and_in_order(sizes: list[int], share_tokens: int) -> None:
    groups = in_groups(sizes, share_tokens=share_tokens)
    assert [i for group in groups for i in group] == list(range(len(sizes)))
    assert len(groups) == 1 or all(len(group) >= 1 for group in groups)
    assert len(groups) < max(2, len(sizes)), "folding must get shorter"
