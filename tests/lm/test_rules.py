"""The arithmetic of limits, on times that the tests choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roma_ray.lm.rules import GROW_S, PROBE_S, Concurrency, Limits, Pause, Window, shares


def test_what_was_spent_counts_for_a_minute_and_then_no_more():
    window = Window()
    window.add(3, now_s=100.0)
    window.add(4, now_s=100.9)
    window.add(5, now_s=130.0)
    assert window.total(now_s=160.9) == 12
    assert window.total(now_s=161.0) == 5
    assert window.total(now_s=191.0) == 0


def test_a_window_says_when_enough_of_it_is_over():
    window = Window()
    window.add(3, now_s=100.0)
    window.add(5, now_s=130.0)
    assert window.wait_s(3, now_s=140.0) == 21
    assert window.wait_s(4, now_s=140.0) == 51
    assert window.wait_s(9, now_s=140.0) == 60


def test_a_window_with_another_clock_learns_what_was_spent_and_how_long_ago():
    first, second = Window(), Window()
    first.add(3, now_s=100.0)
    first.add(4, now_s=120.0)
    second.add(1, now_s=7_020.0)
    second.merge(first.aged(now_s=130.0), now_s=7_030.0)
    assert second.total(now_s=7_030.0) == 8
    assert second.total(now_s=7_062.0) == 5


def test_a_refusal_halves_what_may_be_open_and_time_without_one_gives_it_back_one_by_one():
    concurrency = Concurrency()
    concurrency.refused(64, sent_s=99, pause_s=0, now_s=100)
    assert concurrency.places(64, now_s=100) == 32
    concurrency.refused(64, sent_s=99.5, pause_s=0, now_s=101)  # sent before the halving, so no news
    assert concurrency.places(64, now_s=101) == 33
    concurrency.refused(64, sent_s=101.5, pause_s=5, now_s=102)
    assert concurrency.places(64, now_s=102) == 17
    assert concurrency.places(64, now_s=107) == 17, "a pause teaches nothing"
    assert concurrency.places(64, now_s=107 + 10 * GROW_S) == 27
    assert concurrency.places(64, now_s=1_000) == 64


def test_one_request_is_always_allowed():
    concurrency = Concurrency()
    for now_s in range(100, 120):
        concurrency.refused(2, sent_s=now_s, pause_s=0, now_s=now_s)
    assert concurrency.places(2, now_s=119) == 1


def test_after_a_pause_one_probe_goes_and_when_it_is_let_in_everybody():
    pause = Pause()
    pause.refused(10, now_s=100)
    pause.refused(1, now_s=101)
    assert pause.left_s(now_s=104) == 6, "a shorter pause does not shorten a longer one"
    assert not pause.wants_probe(now_s=104)
    assert pause.wants_probe(now_s=110)
    pause.probe(now_s=110)
    assert pause.left_s(now_s=110.5) > 0
    pause.passed()
    assert pause.left_s(now_s=110.5) == 0
    assert not pause.is_on


def test_a_probe_that_is_not_refused_for_a_moment_was_let_in():
    pause = Pause()
    pause.refused(1, now_s=100)
    pause.probe(now_s=101)
    assert pause.left_s(now_s=101 + PROBE_S) == 0
    assert not pause.is_on


def test_a_refused_probe_begins_a_new_pause_with_a_new_probe():
    pause = Pause()
    pause.refused(1, now_s=100)
    pause.probe(now_s=101)
    pause.refused(3, now_s=101.1)
    assert pause.left_s(now_s=102) == pytest.approx(2.1)
    assert pause.wants_probe(now_s=104.2)


def test_of_two_statements_of_a_limit_the_smaller_holds():
    assert Limits(max_concurrency=5, requests_per_minute=9) & Limits(max_concurrency=7, tokens_per_minute=3) == Limits(
        max_concurrency=5, requests_per_minute=9, tokens_per_minute=3
    )


def test_places_go_to_those_who_need_them_and_the_rest_to_all():
    assert shares(64, {"a": 0, "b": 0}, expected=2, turn=0) == {"a": 32, "b": 32}
    assert shares(64, {"a": 0}, expected=2, turn=0) == {"a": 32}
    assert shares(64, {"a": 100, "b": 1}, expected=2, turn=0) == {"a": 63, "b": 1}
    assert shares(64, {"a": 100, "b": 100}, expected=2, turn=0) == {"a": 32, "b": 32}


def test_where_places_are_too_few_those_who_need_one_take_turns():
    needs = {"a": 5, "b": 1, "c": 0}
    turns = [shares(1, needs, expected=1, turn=turn) for turn in range(3)]
    assert all(sum(given.values()) == 1 and given["c"] == 0 for given in turns)
    assert {name for given in turns for name, count in given.items() if count} == {"a", "b"}


@given(
    places=st.integers(1, 50),
    needs=st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.integers(0, 60), min_size=1, max_size=9),
    expected=st.integers(1, 9),
    turn=st.integers(0, 1000),
)
def test_no_place_is_given_twice_and_none_lies_idle_while_one_is_needed(
    places: int, needs: dict[str, int], expected: int, turn: int
):
    given_out = shares(places, needs, expected=expected, turn=turn)
    assert sum(given_out.values()) <= places
    used = sum(min(given_out[name], need) for name, need in needs.items())
    assert used == min(places, sum(needs.values()))
