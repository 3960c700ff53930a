from __future__ import annotations

import asyncio
import pickle
import threading

import cloudpickle
import dspy
import pytest
from dspy._vendor.lm15.serde import request_to_dict

from roma_ray import Aggregator, Atomizer, Executor, NodeType, SubTask, TaskType, Verifier
from roma_ray.errors import AnswerUnreadable, ConfigError, KeyMissing
from tests.modules.engines import chat, lm_saying, prompt_of

_DONE = chat(output="done", sources="null")


def _step(tool: str, args: str = "{}") -> str:
    return chat(next_thought="hm", next_tool_name=tool, next_tool_args=args)


def test_inputs_come_by_position_or_by_name():
    lm, engine = lm_saying(chat(synthesized_result="both"))
    tasks = [SubTask(goal="find a", task_type=TaskType.RETRIEVE, result="A is 1"), SubTask(goal="b", task_type="THINK")]
    assert Aggregator("Predict", lm=lm).forward("whole", tasks).synthesized_result == "both"
    assert Aggregator("Predict", lm=lm)(original_goal="whole", subtasks_results=tasks).synthesized_result == "both"
    assert prompt_of(engine.requests[0]) == prompt_of(engine.requests[1])
    assert "A is 1" in prompt_of(engine.requests[0])
    with pytest.raises(ConfigError, match="original_goal, subtasks_results"):
        Aggregator("Predict", lm=lm).forward("a", tasks, "too", "many")


async def test_forward_and_aforward_give_the_same_from_the_same_prompt():
    lm, engine = lm_saying(chat(is_atomic="true", node_type="EXECUTE"))
    module = Atomizer("Predict", lm=lm)
    answers = [module.forward("g"), await module.aforward("g"), await module.acall(goal="g")]
    assert all(answer.node_type is NodeType.EXECUTE and answer.is_atomic for answer in answers)
    assert len({str(request_to_dict(request)) for request in engine.requests}) == 1


@pytest.mark.parametrize("adapter", ["chat", "json"])
def test_the_same_inputs_give_the_same_request_in_a_new_module(adapter):
    seen = []
    for _ in range(2):
        lm, engine = lm_saying('{"verdict": true}', obeys_schema=True)
        Verifier("Predict", lm=lm, adapter=adapter).forward("g", "c", context="k")
        seen.append(request_to_dict(engine.requests[0]))
    assert str(seen[0]) == str(seen[1])


async def test_modules_with_different_lms_run_at_once_without_seeing_each_other():
    modules = []
    for name in ("one", "two", "three"):
        lm, _ = lm_saying(chat(output=name))
        modules.append(Executor("Predict", lm=lm, adapter="json" if name == "two" else "chat"))
    answers = await asyncio.gather(*(module.aforward("g") for module in modules * 20))
    assert [answer.output for answer in answers] == ["one", "two", "three"] * 20
    assert dspy.settings.lm is None
    assert dspy.settings.adapter is None


def test_a_module_can_be_asked_from_several_threads():
    lm, engine = lm_saying(_DONE)
    module = Executor("Predict", lm=lm)
    threads = [threading.Thread(target=module.forward, args=("g",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(engine.requests) == 8


def test_per_call_settings_reach_the_model_and_are_forgotten_afterwards():
    lm, engine = lm_saying(_DONE, temperature=0.9)
    module = Executor("Predict", lm=lm)
    module.forward("g", config={"temperature": 0.1, "max_tokens": 300}, context={"stop": ["Observation:"]})
    module.forward("g", call_params={"max_tokens": 200})
    module.forward("g", max_tokens=100, context="a fact")
    module.forward("g")
    sent = [request_to_dict(request).get("config", {}) for request in engine.requests]
    assert [c.get("max_tokens") for c in sent] == [300, 200, 100, None]
    assert [c.get("temperature") for c in sent] == [0.1, 0.9, 0.9, 0.9]
    assert sent[0]["stop"] == ["Observation:"]
    assert ["a fact" in prompt_of(request) for request in engine.requests] == [False, False, True, False]


def test_context_defaults_hold_for_every_call_and_a_dspy_context_overrides_them():
    lm, _ = lm_saying(_DONE)
    other, other_engine = lm_saying(_DONE)
    module = Executor("Predict", lm=lm, context_defaults={"track_usage": True})
    assert module.forward("g").get_lm_usage()["openai/test"]["prompt_tokens"] == 7
    assert module.forward("g", dspy_context={"track_usage": False}).get_lm_usage() is None
    module.forward("g", context={"lm": other})
    assert len(other_engine.requests) == 1


def test_tools_are_merged_without_doubles_and_a_given_one_replaces_its_namesake():
    called = []

    def weather(city: str) -> str:
        called.append(("old", city))
        return "rain"

    def clock() -> str:
        return "noon"

    lm, engine = lm_saying(_step("weather", '{"city": "Rome"}'), _step("finish"), chat(reasoning="r", output="done"))
    module = Executor("react", lm=lm, tools=[weather, weather])
    assert [tool.name for tool in module.tools] == ["weather"]

    def newer(city: str) -> str:
        called.append(("new", city))
        return "sun"

    assert module.forward("g", tools={"weather": newer, "clock": clock}).output == "done"
    assert called == [("new", "Rome")]
    assert "clock" in prompt_of(engine.requests[0])
    assert module.predictor.tools.keys() == {"weather", "finish"}


async def test_async_tools_are_awaited():
    async def weather(city: str) -> str:
        await asyncio.sleep(0)
        return f"sun in {city}"

    replies = (_step("weather", '{"city": "Rome"}'), _step("finish"), chat(reasoning="r", output="done"))
    lm, engine = lm_saying(*replies)
    await Executor("react", lm=lm, tools=(weather,)).aforward("g")
    assert "sun in Rome" in prompt_of(engine.requests[1])


@pytest.mark.parametrize("tools", ["weather", 7, [7], [lambda: 1, lambda: 2]])
def test_tools_that_cannot_be_used_are_an_error(tools):
    with pytest.raises(ConfigError):
        Executor("react", lm=lm_saying(_DONE)[0], tools=tools)


def test_replace_lm_gives_a_new_module_and_leaves_the_old_one():
    old, new = lm_saying(chat(output="old"))[0], lm_saying(chat(output="new"))[0]
    module = Executor("Predict", lm=old)
    assert module.replace_lm(new).forward("g").output == "new"
    assert module.forward("g").output == "old"


def test_the_model_config_masks_secrets_and_shows_limits():
    module = Executor(
        model="openai/x", model_config={"api_key": "sk-very-secret", "max_tokens": 50, "temperature": 0.5}
    )
    config = module.get_model_config()
    assert config["api_key"] == "***"
    assert (config["model"], config["max_tokens"], config["temperature"]) == ("openai/x", 50, 0.5)
    assert "very-secret" not in str(config)


def test_wrong_arguments_are_refused_with_the_reason():
    lm, _ = lm_saying(_DONE)
    with pytest.raises(ConfigError, match="not both"):
        Executor(lm=lm, model="openai/x")
    with pytest.raises(ConfigError, match="unknown adapter 'yaml'"):
        Executor(lm=lm, adapter="yaml")
    with pytest.raises(ConfigError, match="has no option n"):
        Executor("react", lm=lm, n=3)
    with pytest.raises(KeyMissing):
        Executor().forward("g")


def test_without_an_lm_of_its_own_a_module_takes_that_of_the_surroundings():
    lm, _ = lm_saying(_DONE)
    with dspy.context(lm=lm):
        assert Executor("Predict").forward("g").output == "done"


def test_another_signature_can_be_asked():
    lm, engine = lm_saying(chat(total="42"))
    assert Executor("Predict", lm=lm, signature="goal -> total: int", instructions="Add up.").forward("g").total == 42
    assert str(engine.requests[0].system).startswith("Add up.")


def test_a_bad_answer_costs_one_call_and_raises_our_error():
    for adapter in ("chat", "json"):
        lm, engine = lm_saying("no idea", obeys_schema=True)
        with pytest.raises(AnswerUnreadable, match="none of the asked fields"):
            Executor("Predict", lm=lm, adapter=adapter).forward("g")
        assert len(engine.requests) == 1


def test_demos_and_optimisers_find_the_predictor():
    module = Executor("cot", lm=lm_saying(_DONE)[0])
    assert [name for name, _ in module.named_predictors()] == ["predictor.predict"]


def test_a_module_can_be_sent_to_another_process_and_copied():
    module = Executor("react", tools=[len])
    lm, _ = lm_saying(
        chat(reasoning="r", next_thought="t", next_tool_name="finish", next_tool_args="{}", output="done")
    )
    for copied in (pickle.loads(cloudpickle.dumps(module)), module.deepcopy()):
        assert copied.replace_lm(lm).forward("g").output == "done"


def test_an_error_of_a_foreign_engine_keeps_its_cause():
    with pytest.raises(dspy.LMUnexpectedError) as raised:
        Executor("Predict", lm=lm_saying(ZeroDivisionError("bug"))[0]).forward("g")
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
