from __future__ import annotations

import dspy
import pytest

from roma_ray import Atomizer, Executor, NodeType, PredictionStrategy
from roma_ray.errors import AnswerUnreadable, AuthRefused, ConfigError
from tests.modules.engines import chat, lm_saying, prompt_of

_ANSWER = chat(reasoning="because", rationale="because", output="done", sources="null")
_TRAINSET = [
    dspy.Example(goal="boil an egg", output="six minutes"),
    dspy.Example(goal="paint a wall blue", output="two coats"),
    dspy.Example(goal="fry an egg", output="three minutes"),
]


@pytest.mark.parametrize(
    "alias",
    [
        "predict", "Predict", "cot", "CoT", "chain_of_thought", "ChainOfThought", PredictionStrategy.CHAIN_OF_THOUGHT,
        "best_of_n", "BestOfN", "best-of-n", "refine", "mcc", "multi_chain_comparison", "majority", "MAJORITY",
    ],
)  # fmt: skip
async def test_every_alias_names_a_strategy_that_answers_sync_and_async(alias):
    lm, _ = lm_saying(_ANSWER)
    module = Executor(alias, lm=lm)
    assert module.forward("g").output == "done"
    assert (await module.aforward("g")).output == "done"


async def test_knn_shows_the_examples_whose_goals_are_nearest():
    lm, engine = lm_saying(_ANSWER)
    module = Executor("knn", lm=lm, trainset=_TRAINSET, k=2)
    assert (await module.aforward("poach an egg")).output == "done"
    prompt = prompt_of(engine.requests[0])
    assert "six minutes" in prompt
    assert "three minutes" in prompt
    assert "two coats" not in prompt
    with pytest.raises(ConfigError, match="trainset"):
        Executor("knn", lm=lm)


@pytest.mark.parametrize("alias", ["react", "ReAct"])
async def test_react_calls_its_tools_and_then_answers(alias):
    def add(a: int, b: int) -> int:
        return a + b

    steps = (
        chat(next_thought="add", next_tool_name="add", next_tool_args='{"a": 1, "b": 2}'),
        chat(next_thought="done", next_tool_name="finish", next_tool_args="{}"),
        chat(reasoning="r", output="3"),
    )
    lm, engine = lm_saying(*steps)
    assert (await Executor(alias, lm=lm, tools={"add": add}).aforward("1+2")).output == "3"
    assert len(engine.requests) == 3


async def test_react_v2_submits_its_answer():
    call = '{"tool_calls": [{"name": "submit", "args": {"output": "3", "sources": null}}]}'
    lm, engine = lm_saying(chat(next_thought="done", tool_calls=call))
    assert (await Executor("ReActV2", lm=lm, tools=[len]).aforward("1+2")).output == "3"
    assert len(engine.requests) == 1


@pytest.mark.parametrize("alias", ["code_act", "CodeAct", "pot", "program_of_thought", "RLM"])
def test_strategies_that_run_code_say_that_they_need_the_sandbox(alias):
    with pytest.raises(ConfigError, match="needs the sandbox"):
        Executor(alias)


def test_parallel_is_refused_with_the_reason_and_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ConfigError, match="in parallel anyway"):
        Executor("parallel")
    with pytest.raises(ConfigError, match="ChainOfThought"):
        Executor("telepathy")


async def test_majority_takes_what_most_samples_say_and_leaves_out_unreadable_ones():
    plan, execute = (chat(is_atomic=a, node_type=n) for a, n in (("false", "PLAN"), ("true", "EXECUTE")))
    lm, engine = lm_saying(plan, execute, "what?", execute, plan, execute)
    answer = await Atomizer("majority", lm=lm, n=6).aforward("g")
    assert answer.node_type is NodeType.EXECUTE
    assert len(engine.requests) == 6


def test_best_of_n_stops_at_the_threshold_and_else_takes_the_best():
    def reward(inputs, prediction):
        return len(prediction.output) / 10

    lm, engine = lm_saying(chat(output="four"), "what?", chat(output="a longer one"), chat(output="never asked"))
    answer = Executor("best_of_n", lm=lm, n=4, reward=reward, threshold=1.0).forward("g")
    assert (answer.output, len(engine.requests)) == ("a longer one", 3)

    lm, engine = lm_saying(chat(output="four"), chat(output="a"))
    answer = Executor("best_of_n", lm=lm, N=3, reward_fn=reward, threshold=1.0).forward("g")
    assert (answer.output, len(engine.requests)) == ("four", 3)


async def test_refine_gives_the_advice_to_the_next_ask():
    def reward(inputs, prediction):
        return float(prediction.output == "seven")

    lm, engine = lm_saying(chat(output="six"), chat(advice="count again"), chat(output="seven"))
    answer = await Executor("refine", lm=lm, reward=reward).aforward("g")
    assert answer.output == "seven"
    assert "count again" not in prompt_of(engine.requests[1])
    assert "count again" in prompt_of(engine.requests[2])


async def test_multi_chain_comparison_shows_all_attempts_to_the_last_ask():
    attempts = [chat(reasoning=f"way {i}", output=f"result {i}") for i in range(3)]
    lm, engine = lm_saying(*attempts, chat(rationale="r", output="decided"))
    assert (await Executor("mcc", lm=lm).aforward("g")).output == "decided"
    last = prompt_of(engine.requests[3])
    assert all(f"way {i}" in last and f"result {i}" in last for i in range(3))


@pytest.mark.parametrize("alias", ["majority", "best_of_n", "refine", "mcc"])
async def test_sampling_ends_at_once_with_the_providers_error_and_with_unreadable_when_nothing_can_be_read(alias):
    error = AuthRefused("no")
    lm, engine = lm_saying(error)
    with pytest.raises(AuthRefused) as raised:
        Executor(alias, lm=lm).forward("g")
    assert raised.value is error
    assert len(engine.requests) == 1
    with pytest.raises(AnswerUnreadable):
        await Executor(alias, lm=lm_saying("what?")[0]).aforward("g")


def test_strategy_options_are_checked():
    lm, _ = lm_saying(_ANSWER)
    with pytest.raises(ConfigError, match="n=0"):
        Executor("majority", lm=lm, n=0)
    with pytest.raises(ConfigError, match="has no option tempo"):
        Executor("majority", lm=lm, tempo=3)
    with pytest.raises(ConfigError, match="no_such_module"):
        Executor("best_of_n", lm=lm, reward="no_such_module:reward")
