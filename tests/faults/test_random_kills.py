"""A run that is killed at random moments loses nothing and repeats no more than was open at each kill."""

from __future__ import annotations

import pytest

from benchmarks.chaos.campaign import Campaign
from tests.scripted.client import Scripted

pytestmark = pytest.mark.timeout(400)


@pytest.mark.slow
def test_ten_kills_at_random_moments_lose_nothing_and_repeat_only_what_was_open(
    scripted: Scripted, database: str
) -> None:
    tally = Campaign(scripted, database, {"driver": 10}, seed=1).run()["driver"]
    assert tally.kills == 10
    assert tally.is_good, tally
