"""Half an emoji in a model's answer does no harm."""

from __future__ import annotations

from collections.abc import Callable

import dspy
import pytest

from roma_ray.texts import whole
from roma_ray.types import SubTask
from tests.lm.conftest import Step, ask
from tests.scripted.fixed import answering


@pytest.mark.parametrize("half", ["\ud83d", "\ude00"])
async def test_half_an_emoji_in_an_answer_becomes_a_replacement_mark_before_anybody_sees_it(
    scripted_lm: Callable[..., dspy.LM], half: str
) -> None:
    text = f"[[ ## output ## ]]\nall {half} is well\n\n[[ ## completed ## ]]"
    step = Step.new()
    async with answering(text) as address:
        assert await ask(scripted_lm(api_base=address), "Say it.", step) == "all \ufffd is well"
    (record,) = step.records
    assert half not in record.response["message"]["parts"][0]["text"]
    # An answer that an earlier version kept is mended when it is known again.
    record.response["message"]["parts"][0]["text"] = text
    assert await ask(scripted_lm(), "Say it.", Step.new(earlier=step)) == "all \ufffd is well"


def test_everything_that_is_made_of_texts_is_mended_and_whole_pairs_meet() -> None:
    task = SubTask.model_construct(goal="a \ud83d", dependencies=["\ude00"])
    assert whole({"\ud83d": ["\ud83d\ude00", ("x", 1, None)]}) == {"\ufffd": ["\U0001f600", ("x", 1, None)]}
    assert (whole(task).goal, whole(task).dependencies) == ("a \ufffd", ["\ufffd"])
