"""The call gate over real HTTP; what the server counted is what must have happened."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import dspy
import pytest

from roma_ray.config import LmConfig
from roma_ray.errors import (
    AuthRefused,
    BillingRefused,
    Cancelled,
    ContextTooLong,
    EndpointFailing,
    EndpointTimeout,
    EndpointUnreachable,
    LimitReached,
    QuotaTooSmall,
    RateLimited,
    RequestRefused,
    RomaError,
)
from roma_ray.lm.hub import LmHub
from roma_ray.lm.retry import unwrap
from roma_ray.lm.scope import Grant, entered
from roma_ray.redact import Secret
from roma_ray.types import CallRecord
from tests.lm.conftest import Step, ask
from tests.scripted.client import Scripted

BuildLm = Callable[..., dspy.LM]
NOWHERE = "http://127.0.0.1:9/v1"


async def failure(lm: dspy.LM, goal: str, step: Step | None = None) -> RomaError:
    with pytest.raises(Exception) as caught:
        await ask(lm, goal, step)
    error = unwrap(caught.value)
    assert error is not None, caught.value
    return error


async def test_a_module_used_on_its_own_just_calls_and_retries(scripted_lm: BuildLm, scripted: Scripted):
    assert await ask(scripted_lm(), "Say it. EFAIL=500:1")
    assert scripted.stats()["by_status"] == {"500": 1, "200": 1}


async def test_an_answered_call_is_recorded_with_the_servers_own_numbers(scripted_lm: BuildLm, scripted: Scripted):
    step = Step.new()
    output = await ask(scripted_lm(), "Say it.", step)
    (record,) = step.records
    stats = scripted.stats()
    assert (record.usage.lm_calls, record.usage.failed_calls) == (1, 0)
    assert record.usage.prompt_tokens == stats["prompt_tokens"]
    assert record.usage.completion_tokens == stats["completion_tokens"]
    assert (record.role, record.model, record.finish_reason) == ("executor", "openai/scripted", "stop")
    assert "Say it." in str(record.request)
    assert output in str(record.response)
    assert output in step.scope.last_text
    assert CallRecord.from_plain(record.to_plain()) == record


async def test_a_known_answer_is_given_again_without_asking(scripted_lm: BuildLm, scripted: Scripted):
    first = Step.new()
    output = await ask(scripted_lm(), "Say it.", first)
    again = Step.new(earlier=first)
    assert await ask(scripted_lm(), "Say it.", again) == output
    assert scripted.stats()["requests"] == 1
    (record,) = again.records
    assert record.cached
    assert (record.usage.cached_calls, record.usage.lm_calls, record.usage.tokens) == (1, 0, 0)
    assert again.scope.last_finish_reason == "stop"


async def test_the_nth_identical_request_gets_the_nth_known_answer(scripted_lm: BuildLm, scripted: Scripted):
    first = Step.new()
    for _ in range(2):
        await ask(scripted_lm(), "Say it.", first)
    assert [record.ordinal for record in first.records] == [0, 1]
    again = Step.new(earlier=first)
    for _ in range(3):
        await ask(scripted_lm(), "Say it.", again)
    assert [(record.ordinal, record.cached) for record in again.records] == [(0, True), (1, True), (2, False)]
    assert scripted.stats()["requests"] == 3


async def test_a_new_answer_never_takes_the_number_of_one_in_the_log(scripted_lm: BuildLm):
    first = Step.new()
    for _ in range(2):
        await ask(scripted_lm(), "Say it.", first)
    del first.records[0]  # was open at the kill; only number 1 is in the log
    again = Step.new(earlier=first)
    for _ in range(2):
        await ask(scripted_lm(), "Say it.", again)
    assert [(record.ordinal, record.cached) for record in again.records] == [(1, True), (2, False)]


async def test_concurrent_identical_requests_are_numbered_in_the_order_of_calling(scripted_lm: BuildLm):
    step = Step.new()
    await asyncio.gather(*(ask(scripted_lm(max_concurrency=1), "Say it.", step) for _ in range(5)))
    assert [record.ordinal for record in step.records] == [0, 1, 2, 3, 4]


async def test_failed_attempts_are_counted_with_the_answer_that_came_in_the_end(scripted_lm: BuildLm):
    step = Step.new()
    await ask(scripted_lm(max_retries=2), "Say it. EFAIL=503:2", step)
    (record,) = step.records
    assert (record.usage.lm_calls, record.usage.failed_calls) == (1, 2)
    assert step.scope.allowance.calls == 1


@pytest.mark.parametrize(
    ("directive", "kind", "requests"),
    [
        ("EFAIL=401", AuthRefused, 1),
        ("EFAIL=403", AuthRefused, 1),
        ("EFAIL=402", BillingRefused, 1),
        ("EFAIL=broke", BillingRefused, 1),
        ("EFAIL=400", RequestRefused, 1),
        ("EFAIL=404", RequestRefused, 1),
        ("EFAIL=422", RequestRefused, 1),
        ("EFAIL=context", ContextTooLong, 1),
        ("EFAIL=quota", QuotaTooSmall, 1),
        ("EFAIL=500", EndpointFailing, 2),
        ("EFAIL=504", EndpointFailing, 2),
        ("EFAIL=429::0.1", RateLimited, 2),
        ("EDROP", EndpointUnreachable, 2),
    ],
)
async def test_each_fault_has_its_own_error_and_number_of_requests(
    directive: str, kind: type[RomaError], requests: int, scripted_lm: BuildLm, scripted: Scripted
):
    step = Step.new()
    error = await failure(scripted_lm(), f"Say it. {directive}", step)
    assert type(error) is kind
    assert "\n" not in error.line
    assert scripted.stats()["requests"] == requests
    (record,) = step.records
    assert record.fault is not None
    assert record.fault.code == kind.code
    assert record.response is None
    assert record.usage.failed_calls == requests


async def test_an_overlong_prompt_reaches_dspy_as_its_own_error(scripted_lm: BuildLm):
    with pytest.raises(dspy.ContextWindowExceededError) as caught:
        await ask(scripted_lm(), "Say it. EFAIL=context")
    assert isinstance(unwrap(caught.value), ContextTooLong)


async def test_an_unreachable_endpoint_is_named(hub: LmHub):
    lm = hub.lm("executor", LmConfig(model="openai/x", api_base=NOWHERE, max_retries=0), default_max_tokens=9)
    error = await failure(lm, "Say it.")
    assert isinstance(error, EndpointUnreachable)


async def test_a_hanging_endpoint_times_out_and_keeps_its_reservation(scripted_lm: BuildLm, scripted: Scripted):
    step = Step.new()
    error = await failure(scripted_lm(timeout_s=0.3), "Say it. EHANG=60", step)
    assert isinstance(error, EndpointTimeout)
    assert scripted.stats()["requests"] == 2
    assert step.records[0].usage.failed_calls == 2
    assert step.scope.allowance.calls == 2  # either may yet be billed


async def test_retry_after_is_kept_by_all_calls_of_the_endpoint(scripted_lm: BuildLm, scripted: Scripted):
    lm = scripted_lm()
    waiting = asyncio.create_task(ask(lm, "Refused first. EFAIL=429:1:1.5"))
    while scripted.stats()["failed"] < 1:
        await asyncio.sleep(0.02)
    started = time.monotonic()
    await ask(lm, "Another one.")
    assert time.monotonic() - started > 1.0
    await waiting


async def test_no_more_requests_are_open_than_allowed(scripted_lm: BuildLm, scripted: Scripted):
    lm = scripted_lm(max_concurrency=3)
    await asyncio.gather(*(ask(lm, f"Say {i}. LAT=0.1") for i in range(9)))
    assert scripted.stats()["max_open"] == 3


async def test_cancelling_a_call_gives_its_permit_back(scripted_lm: BuildLm, scripted: Scripted):
    lm = scripted_lm(max_concurrency=1)
    step = Step.new()
    holding = asyncio.create_task(ask(lm, "Holds it. EHOLD", step))
    await asyncio.to_thread(scripted.wait_for, open_now=1)
    waiting = [asyncio.create_task(ask(lm, f"Waits {i}.")) for i in range(3)]
    await asyncio.sleep(0.05)
    waiting[0].cancel()
    holding.cancel()
    await asyncio.gather(holding, waiting[0], return_exceptions=True)
    assert await asyncio.wait_for(asyncio.gather(*waiting[1:]), 10)
    (record,) = step.records  # it went out, and nobody knows what became of it
    assert record.usage.failed_calls == 1
    assert step.scope.allowance.calls == 1


async def test_a_cancelled_scope_sends_nothing(scripted_lm: BuildLm, scripted: Scripted):
    step = Step.new(cancelled=True)
    assert isinstance(await failure(scripted_lm(), "Say it.", step), Cancelled)
    assert scripted.stats()["requests"] == 0
    assert step.records == []


@pytest.mark.parametrize("grant", [Grant(calls=1), Grant(tokens=1200), Grant(cost_usd=0.0012)])
async def test_a_call_that_might_exceed_the_grant_is_not_sent(grant: Grant, scripted_lm: BuildLm, scripted: Scripted):
    lm = scripted_lm(price={"prompt": 1.0, "completion": 1.0}, max_tokens=800)
    step = Step.new(grant=grant)
    await ask(lm, "Say it.", step)
    assert isinstance(await failure(lm, "Say more. " + "x" * 3000, step), LimitReached)
    assert scripted.stats()["requests"] == 1
    assert len(step.records) == 1


async def test_a_fallback_answers_when_the_first_model_cannot_and_that_is_said(hub: LmHub, scripted: Scripted):
    config = LmConfig(
        model="openai/first", api_base=NOWHERE, max_retries=0, fallbacks=(f"openai/second@{scripted.base_url}",)
    )
    step = Step.new()
    assert await ask(hub.lm("executor", config, default_max_tokens=500), "Say it.", step)
    failed, answered = step.records
    assert failed.fault is not None and failed.fault.code == EndpointUnreachable.code
    assert failed.model == "openai/first"
    assert answered.model.startswith("openai/second")
    assert failed.request_key == answered.request_key
    assert "openai/second" in step.scope.warnings[0] and "openai/first" in step.scope.warnings[0]


async def test_when_no_fallback_answers_the_first_models_error_counts(scripted_lm: BuildLm, scripted: Scripted):
    error = await failure(scripted_lm(fallbacks=("openai/other",)), "Say it. EFAIL=401:1 EFAIL=400")
    assert isinstance(error, AuthRefused)
    assert scripted.stats()["requests"] == 2


async def test_the_cache_answers_across_runs_only_when_it_is_on(scripted_lm: BuildLm, scripted: Scripted):
    goal = f"Say it once and for all, {scripted.base_url}"
    output = await ask(scripted_lm(), goal, Step.new())
    assert await ask(scripted_lm(cache=True), goal, Step.new()) == output
    assert scripted.stats()["requests"] == 2
    step = Step.new()
    assert await ask(scripted_lm(cache=True), goal, step) == output
    assert scripted.stats()["requests"] == 2
    assert step.records[0].usage.cached_calls == 1
    assert step.records[0].response is not None
    assert await ask(scripted_lm(cache=True), goal, step) == output  # a second sample is a sample of its own
    assert scripted.stats()["requests"] == 3


async def test_a_sync_strategy_in_a_thread_passes_the_same_gate(scripted_lm: BuildLm, scripted: Scripted):
    lm, step = scripted_lm(), Step.new()

    def in_thread() -> str:
        with dspy.context(lm=lm, disable_history=True):
            return dspy.Predict("goal -> output")(goal="Say it.").output

    with entered(step.scope):
        assert await asyncio.to_thread(in_thread)
    assert len(step.records) == scripted.stats()["requests"] == 1


def test_a_module_in_a_plain_script_has_a_gate_too(scripted: Scripted):
    hub = LmHub({})
    lm = hub.lm("executor", LmConfig(model="openai/scripted", api_base=scripted.base_url), default_max_tokens=500)
    with dspy.context(lm=lm):
        assert dspy.Predict("goal -> output")(goal="Say it.").output
    asyncio.run(hub.aclose())


async def test_a_blocking_call_on_the_loop_is_an_error_instead_of_a_deadlock(scripted_lm: BuildLm):
    with dspy.context(lm=scripted_lm()), pytest.raises(Exception, match="await it instead"):
        dspy.Predict("goal -> output")(goal="Say it.")


async def test_keys_reach_their_endpoint_and_no_record(scripted: Scripted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment-000000")
    scripted.reset(api_key="sk-right-00000000")
    config = LmConfig(model="openai/scripted", api_base=scripted.base_url, max_retries=0)
    without = LmHub({})
    error = await failure(without.lm("executor", config, default_max_tokens=500), "Say it.")
    assert isinstance(error, AuthRefused)
    assert "sk-environment" not in error.line
    hub = LmHub({f"openai@{scripted.base_url}": Secret("sk-right-00000000")})
    step = Step.new()
    assert await ask(hub.lm("executor", config, default_max_tokens=500), "Repeat sk-right-00000000", step)
    assert "sk-right" not in str(step.records[0].request)
    await without.aclose()
    await hub.aclose()


async def test_prompts_can_be_kept_out_of_the_record(scripted_lm: BuildLm):
    step = Step.new(keep_prompts=False)
    await ask(scripted_lm(), "Say it.", step)
    assert step.records[0].request is None
    assert len(step.records[0].request_key) == 64


async def test_a_reasoning_model_takes_the_users_own_bound(hub: LmHub, scripted: Scripted):
    config = LmConfig(model="openai/gpt-5-mini", api_base=scripted.base_url, max_tokens=3000, temperature=0.2)
    step = Step.new()
    await ask(hub.lm("executor", config, default_max_tokens=500), "Say it.", step)
    assert step.records[0].request["config"]["max_tokens"] == 3000


async def test_json_mode_sends_the_schema(hub: LmHub, scripted: Scripted):
    config = LmConfig(model="openai/scripted", api_base=scripted.base_url, adapter="json")
    step = Step.new()
    lm = hub.lm("executor", config, default_max_tokens=500)
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()), entered(step.scope):
        await dspy.Predict("goal -> output").acall(goal="Say it.")
    assert "json_schema" in str(step.records[0].request["config"]["response_format"])
