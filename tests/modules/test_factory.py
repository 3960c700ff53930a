from __future__ import annotations

import pytest
from dspy._vendor.lm15.serde import request_to_dict

from roma_ray import TaskType
from roma_ray.config.schema import ROLES, AgentConfig, LimitsConfig, LmConfig
from roma_ray.errors import ConfigError
from roma_ray.modules import PlannerSignature, build_module
from tests.modules.engines import chat, lm_saying, prompt_of

_TYPES = (TaskType.RETRIEVE, TaskType.WRITE)
_PLAN = '{"subtasks": [{"goal": "a", "task_type": "WRITE", "dependencies": []}]}'


def _build(role, on, *, max_subtasks=4, **agent):
    limits = LimitsConfig(max_subtasks=max_subtasks)
    return build_module(role, AgentConfig(**agent), on, limits=limits, task_types=_TYPES)


def test_every_role_can_be_built_and_takes_json_where_the_endpoint_obeys_a_schema():
    for role in ROLES:
        plain, strict = lm_saying("")[0], lm_saying("", obeys_schema=True)[0]
        assert type(_build(role, plain)).__name__.lower() == role
        assert type(_build(role, plain).adapter).__name__ == "ChatAdapter"
        assert type(_build(role, strict).adapter).__name__ == "JSONAdapter"
        assert type(_build(role, strict, lm=LmConfig(adapter="chat")).adapter).__name__ == "ChatAdapter"


def test_the_planners_schema_holds_the_offered_types_and_the_bounds_and_the_signature_stays():
    lm, engine = lm_saying(_PLAN, obeys_schema=True)
    module = _build("planner", lm, strategy="cot", lm=LmConfig(api_base="http://x/v1"))
    before = PlannerSignature.model_json_schema()
    with pytest.raises(Exception, match="lacks reasoning"):
        module.forward("g")
    schema = request_to_dict(engine.requests[0])["config"]["response_format"]["schema"]
    assert list(schema["properties"]) == ["reasoning", "subtasks"]
    assert schema["properties"]["reasoning"]["maxLength"] == 400
    tasks = schema["properties"]["subtasks"]
    assert tasks["maxItems"] == 4
    item = tasks["items"]["properties"]
    assert list(item) == ["goal", "task_type", "dependencies"]
    assert item["task_type"]["enum"] == ["RETRIEVE", "WRITE"]
    assert item["dependencies"]["items"]["enum"] == ["0", "1", "2"]
    assert PlannerSignature.model_json_schema() == before


def test_a_hosted_provider_is_sent_no_lengths_that_it_might_refuse():
    lm, engine = lm_saying(_PLAN, obeys_schema=True)
    _build("planner", lm).forward("g")
    assert not any(word in str(engine.requests[0]) for word in ("maxLength", "maxItems", "minItems"))


@pytest.mark.parametrize("adapter", ["chat", "json"])
def test_the_planner_reads_which_types_and_how_many_subtasks_it_may_use(adapter):
    answer = _PLAN if adapter == "json" else chat(subtasks='[{"goal": "a", "task_type": "WRITE"}]')
    lm, engine = lm_saying(answer)
    _build("planner", lm, lm=LmConfig(adapter=adapter), max_subtasks=5).forward("g")
    prompt = prompt_of(engine.requests[0])
    assert "at most 5" in prompt
    assert '"task_type": RETRIEVE or WRITE,' in prompt


def test_strategy_config_and_a_strategy_that_cannot_be_used_are_honoured():
    lm, engine = lm_saying(chat(is_atomic="true", node_type="EXECUTE"))
    _build("atomizer", lm, strategy="majority", strategy_config={"n": 2}).forward("g")
    assert len(engine.requests) == 2
    with pytest.raises(ConfigError, match="needs the sandbox"):
        _build("executor", lm, strategy="CodeAct")
