"""The scripted server as DSPy sees it: the same rules in every format, and every fault on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy
import httpx
import pytest

from tests.scripted.client import Scripted
from tests.scripted.directives import out_token, plan_goal, plan_of, read_directives, syn_token, task


class Atomize(dspy.Signature):
    """Decide."""

    goal: str = dspy.InputField()
    context: str | None = dspy.InputField(default=None)
    is_atomic: bool = dspy.OutputField()
    node_type: str = dspy.OutputField()


class Plan(dspy.Signature):
    """Plan."""

    goal: str = dspy.InputField()
    context: str | None = dspy.InputField(default=None)
    subtasks: list[dict[str, Any]] = dspy.OutputField()
    dependencies_graph: dict[str, list[str]] | None = dspy.OutputField()


class Execute(dspy.Signature):
    """Do."""

    goal: str = dspy.InputField()
    context: str | None = dspy.InputField(default=None)
    output: str = dspy.OutputField()
    sources: list[str] | None = dspy.OutputField()


class Aggregate(dspy.Signature):
    """Put together."""

    original_goal: str = dspy.InputField()
    subtasks_results: list[str] = dspy.InputField()
    synthesized_result: str = dspy.OutputField()


class Verify(dspy.Signature):
    """Check."""

    goal: str = dspy.InputField()
    candidate_output: str = dspy.InputField()
    verdict: bool = dspy.OutputField()
    feedback: str | None = dspy.OutputField()


ADAPTERS: dict[str, dspy.Adapter] = {
    "chat": dspy.ChatAdapter(use_json_adapter_fallback=False),
    "json": dspy.JSONAdapter(use_native_function_calling=False),
}


Call = Callable[..., dspy.Prediction]


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> dspy.Adapter:
    return ADAPTERS[request.param]


# gpt-4o-mini is known to obey schemas, so the JSON adapter sends one; `scripted` is not, so it asks in words.
@pytest.fixture(params=["scripted", "gpt-4o-mini"])
def ask(scripted: Scripted, adapter: dspy.Adapter, request: pytest.FixtureRequest) -> Call:
    lm = dspy.LM(f"openai/{request.param}", api_base=scripted.base_url, api_key="any", cache=False, num_retries=0)

    def call(signature: type[dspy.Signature], **inputs: Any) -> dspy.Prediction:
        demo = dspy.Example(goal="a demo N=9 EFAIL=500", context="none", output="demo", sources=[]).with_inputs("goal")
        module = dspy.ChainOfThought(signature)
        module.predict.demos = [demo]
        with dspy.context(lm=lm, adapter=adapter, disable_history=True):
            return module(**inputs)

    return call


def test_every_role_is_recognised_and_answered_by_rule_in_every_format(ask: Call, scripted: Scripted) -> None:
    goal = plan_goal("Compare", task("first"), task("second", needs=[0], task_type="WRITE"))
    atomic = ask(Atomize, goal="just do it", context="Root goal: N=4 EFAIL=500")
    assert (atomic.is_atomic, atomic.node_type) == (True, "EXECUTE")
    assert ask(Atomize, goal=goal).node_type == "PLAN"
    assert [s["goal"] for s in ask(Plan, goal=goal).subtasks] == ["first", "second"]
    done = ask(Execute, goal="second SRC=a.org,b.org", context=f"0: {out_token('first')}(first; from nothing)")
    assert done.output == f"{out_token('second SRC=a.org,b.org')}(second SRC=a.org,b.org; from {out_token('first')})"
    assert done.sources == ["a.org", "b.org"]
    whole = ask(Aggregate, original_goal=goal, subtasks_results=[done.output])
    assert whole.synthesized_result.startswith(f"{syn_token(goal)}(Compare; from OUT-")
    assert [ask(Verify, goal="x VERDICT=false:1", candidate_output="y").verdict for _ in range(2)] == [False, True]
    assert scripted.stats()["by_role"] == {
        "atomizer": 2, "planner": 1, "executor": 1, "aggregator": 1, "verifier": 2
    }  # fmt: skip


def test_usage_is_the_sum_of_what_the_answers_report(ask: Call, scripted: Scripted) -> None:
    with dspy.track_usage() as tracker:
        for number in range(3):
            ask(Execute, goal=f"task {number}")
    (used,) = tracker.get_total_tokens().values()
    stats = scripted.stats()
    assert (used["prompt_tokens"], used["completion_tokens"]) == (stats["prompt_tokens"], stats["completion_tokens"])


@pytest.mark.parametrize("fault", ["EMALFORMED:1", "EEMPTY:1", "EWRONGTYPES:1"])
def test_a_bad_answer_comes_as_often_as_asked_for_and_then_a_good_one(ask: Call, fault: str) -> None:
    with pytest.raises(Exception) as bad:
        ask(Execute, goal=f"do {fault}")
    assert "Parse" in type(bad.value).__name__ or "LM" in type(bad.value).__name__
    assert ask(Execute, goal=f"do {fault}").output.startswith("OUT-")


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("EFAIL=500", dspy.LMServerError),
        ("EFAIL=503", dspy.LMServerError),
        ("EFAIL=401", dspy.LMAuthError),
        ("EFAIL=402", dspy.LMBillingError),
        ("EFAIL=429", dspy.LMRateLimitError),
        ("EFAIL=broke", dspy.LMError),
        ("EFAIL=quota", dspy.LMRateLimitError),
        ("EFAIL=400", dspy.LMInvalidRequestError),
        ("EFAIL=404", dspy.LMError),
        ("EFAIL=context", dspy.ContextWindowExceededError),
        ("EWINDOW=10", dspy.ContextWindowExceededError),
        ("EDROP", dspy.LMError),
    ],
)
def test_each_failure_arrives_as_the_library_names_it(lm: dspy.LM, fault: str, error: type[Exception]) -> None:
    with dspy.context(lm=lm, adapter=ADAPTERS["chat"], disable_history=True), pytest.raises(error):
        dspy.Predict(Execute)(goal=f"do {fault}")


@pytest.fixture
def lm(scripted: Scripted) -> dspy.LM:
    return dspy.LM("openai/scripted", api_base=scripted.base_url, api_key="any", cache=False, num_retries=0)


async def _execute(lm: dspy.LM, goal: str) -> str:
    with dspy.context(lm=lm, adapter=ADAPTERS["chat"], disable_history=True):
        return (await dspy.Predict(Execute).acall(goal=goal)).output


async def test_open_requests_are_counted_and_held_ones_answered_when_released(lm: dspy.LM, scripted: Scripted) -> None:
    waiting = [asyncio.create_task(_execute(lm, f"wait {i} EHOLD")) for i in range(5)]
    stats = await asyncio.to_thread(scripted.wait_for, open_now=5)
    assert (stats["answered"], len(stats["open_ids"]), scripted.log()[0]["t_answered"]) == (0, 5, None)
    waiting.pop().cancel()
    while scripted.stats()["gone"] == 0:
        await asyncio.sleep(0.02)
    scripted.release()
    await asyncio.gather(*waiting)
    stats = scripted.stats()
    assert (stats["answered"], stats["gone"], stats["open"], stats["max_open"]) == (4, 1, 0, 5)


async def test_a_tool_loop_calls_its_tool_once_and_finishes(lm: dspy.LM, scripted: Scripted) -> None:
    called: list[tuple[int, str]] = []

    def look_up(count: int, place: str, unit: str = "m") -> str:
        """Looks something up."""
        called.append((count, place))
        return f"OUT-0000000{count}(found)"

    for kind, calls in ((dspy.ReAct, 3), (dspy.ReActV2, 2)):
        scripted.reset()
        with dspy.context(lm=lm, adapter=ADAPTERS["chat"], disable_history=True):
            done = await kind(Execute, tools=[look_up]).acall(goal="measure it", context="none")
        assert "measure it" in done.output
        assert scripted.stats()["by_role"] == {"executor": calls}
    assert called == [(1, "some text")] * 2


def test_a_truncated_answer_says_that_it_was_cut(scripted: Scripted) -> None:
    prompt = "[[ ## goal ## ]]\ndo ETRUNCATED:1\n\nRespond with the corresponding output fields, `[[ ## output ## ]]`."
    url = f"{scripted.base_url}/chat/completions"
    body = {"model": "scripted", "messages": [{"role": "user", "content": prompt}]}
    choices = [httpx.post(url, json=body).json()["choices"][0] for _ in range(2)]
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop"]
    cut, whole = (choice["message"]["content"] for choice in choices)
    assert whole.startswith(cut) and len(cut) < len(whole)


def test_an_echoed_form_and_thoughts_around_the_answer_come_when_asked_for(lm: dspy.LM) -> None:
    with dspy.context(lm=lm, adapter=ADAPTERS["chat"], disable_history=True):
        assert dspy.Predict(Verify)(goal="x VTHINK", candidate_output="y").verdict is True
        echoed = dspy.Predict("goal -> output")(goal="x EECHO")
    assert echoed.output == "{output}"


def test_a_wrong_key_is_refused_and_failures_everywhere_need_no_goal(lm: dspy.LM, scripted: Scripted) -> None:
    scripted.reset(api_key="right")
    with dspy.context(lm=lm, adapter=ADAPTERS["chat"]), pytest.raises(dspy.LMAuthError):
        dspy.Predict(Execute)(goal="x")
    scripted.reset(directives="FAIL=429:1:0.5")
    with dspy.context(lm=lm, adapter=ADAPTERS["chat"]), pytest.raises(dspy.LMRateLimitError):
        dspy.Predict(Execute)(goal="x")
    assert [entry["status"] for entry in scripted.log()] == [429]


def test_directives_inside_a_plan_belong_to_the_subtasks_alone() -> None:
    inner = plan_goal("inner EFAIL=500 N=7", task("leaf PMALFORMED"))
    outer = read_directives(plan_goal("outer VDROP", task(inner)))
    assert [fault.kind for fault in outer.faults] == ["DROP"]
    assert plan_of(plan_goal("outer VDROP", task(inner)), 1)[0][0]["goal"] == inner
    assert read_directives(inner).faults[0].value == "500"


def test_all_goals_of_a_generated_tree_differ() -> None:
    level, seen = ["go TREE=3:3"], set()
    while level:
        children = [item["goal"] for goal in level if read_directives(goal).plans for item in plan_of(goal, 1)[0]]
        seen.update(children)
        level = children
    assert len(seen) == 3 + 9 + 27
