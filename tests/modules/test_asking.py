from __future__ import annotations

import pytest

from roma_ray import Executor, Planner
from roma_ray.errors import AuthRefused, ContextTooLong, LimitReached, PlanFaulty, RateLimited
from roma_ray.lm import scope
from roma_ray.modules import ask
from tests.modules.engines import chat, lm_saying, prompt_of

_GOOD = chat(output="Paris", sources="null")


def _executor(*replies):
    lm, engine = lm_saying(*replies)
    return Executor("Predict", lm=lm), engine


async def test_a_good_answer_costs_one_call():
    module, engine = _executor(_GOOD)
    asked = await ask(module, goal="Capital of France?")
    assert (asked.prediction.output, asked.fault, asked.warnings) == ("Paris", None, ())
    assert asked.raw == _GOOD
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("bad", "code", "told"),
    [
        ("I would say Paris.", "R0200", "none of the asked fields"),
        ("", "R0202", "was empty"),
        ("<think>hm</think>", "R0202", "was empty"),
        (chat(output="", sources="null"), "R0202", "was empty"),
        ("CUT" + _GOOD, "R0201", "cut off"),
        ("CUT[[ ## out", "R0201", "cut off"),
        ('{"output": {"type": "string"}}', "R0200", "repeats the JSON schema"),
        (chat(answer="Paris"), "R0200", "lacks output"),
    ],
)
async def test_a_faulty_answer_is_asked_for_once_more_with_the_reason(bad, code, told):
    module, engine = _executor(bad, _GOOD)
    with scope.entered(scope.CallScope(step="")):
        asked = await ask(module, goal="Capital of France?", context="It is 2020.")
    assert (asked.prediction.output, asked.fault) == ("Paris", None)
    assert len(asked.warnings) == 1
    first, second = map(prompt_of, engine.requests)
    assert told in second.split("It is 2020.")[1]
    # What a provider caches is the beginning: it stays as it was.
    assert second.startswith(first.split("It is 2020.")[0] + "It is 2020.")

    module, engine = _executor(bad)
    with scope.entered(scope.CallScope(step="")):
        asked = await ask(module, goal="Capital of France?")
    assert asked.fault.code == code
    assert len(engine.requests) == 2


async def test_an_unreadable_answer_leaves_its_raw_text_without_thinking():
    module, _ = _executor("<think>a long thought</think>I would say Paris.")
    asked = await ask(module, goal="Capital of France?")
    assert (asked.prediction, asked.raw) == (None, "I would say Paris.")


async def test_a_truncated_answer_that_can_be_read_is_kept_with_its_fault():
    module, _ = _executor("CUT" + chat(output="Paris and"))
    with scope.entered(scope.CallScope(step="")):
        asked = await ask(module, goal="Capitals?")
    assert asked.prediction.output == "Paris and"
    assert asked.fault.code == "R0201"


async def test_a_plan_that_fails_its_check_is_shown_to_the_planner_and_kept_when_it_fails_again():
    plan = '[{"goal": "a", "task_type": "THINK", "dependencies": ["7"]}]'
    lm, engine = lm_saying(chat(subtasks=plan))

    def check(prediction):
        raise PlanFaulty("subtask 0 needs 7, which does not exist")

    asked = await ask(Planner("Predict", lm=lm), check=check, goal="g")
    assert asked.fault.code == "R0203"
    assert asked.prediction.subtasks[0].goal == "a"
    assert "subtask 0 needs 7, which does not exist" in prompt_of(engine.requests[1])
    assert plan in prompt_of(engine.requests[1])
    assert len(engine.requests) == 2


async def test_a_readable_first_answer_is_better_than_an_unreadable_second():
    lm, _ = lm_saying(chat(subtasks='[{"goal": "a", "task_type": "THINK"}]'), "No idea.")

    def check(prediction):
        raise PlanFaulty("only one subtask")

    asked = await ask(Planner("Predict", lm=lm), check=check, goal="g")
    assert asked.prediction.subtasks[0].goal == "a"
    assert asked.fault.code == "R0200"


@pytest.mark.parametrize(
    "error", [RateLimited("429"), AuthRefused("401"), LimitReached("stop"), ContextTooLong("long")]
)
async def test_what_is_not_the_models_fault_passes_untouched_and_is_not_asked_again(error):
    module, engine = _executor(error)
    with pytest.raises(type(error)) as raised:
        await ask(module, goal="g")
    assert raised.value is error
    assert len(engine.requests) == 1
