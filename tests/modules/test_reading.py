from __future__ import annotations

import pytest

from roma_ray import NodeType, TaskType
from roma_ray.modules.reading import Unreadable, read_answer, visible
from roma_ray.modules.signatures import AtomizerSignature, ExecutorSignature, PlannerSignature, VerifierSignature
from tests.modules.engines import chat

_TASKS = '[{"goal": "a", "task_type": "RETRIEVE", "dependencies": []}]'


@pytest.mark.parametrize(
    "answer",
    [
        chat(output="Paris", sources="null"),
        '{"output": "Paris", "sources": null}',
        '```json\n{"output": "Paris"}\n```',
        '<think>France? {"output": "Lyon"}</think>\n{"output": "Paris", "sources": "none"}',
        'and so on</think>{"output": "Paris"}',
        'Sure! {"output": "Paris", "sources": []} Anything else?',
        '{"output": "Paris",}',
        chat(output="```\nParis\n```"),
    ],
)
def test_an_answer_is_read_whatever_is_wrapped_around_it(answer):
    read = read_answer(ExecutorSignature, visible(answer))
    assert read["output"] == "Paris"
    assert not read["sources"]


@pytest.mark.parametrize("said", ["EXECUTE", "execute", '"Execute"', "NodeType.EXECUTE", "EXEC", "EXECUTE (one fact)"])
def test_an_enum_is_read_in_any_case_and_by_its_beginning(said):
    assert read_answer(AtomizerSignature, chat(is_atomic="True", node_type=said))["node_type"] is NodeType.EXECUTE


@pytest.mark.parametrize("said", ["true", "True.", "yes", "**true**"])
def test_a_truth_value_is_read_as_models_write_it(said):
    assert read_answer(VerifierSignature, chat(verdict=said, feedback="None")) == {"verdict": True, "feedback": None}


def test_sources_are_read_from_lines_as_well_as_from_json():
    assert read_answer(ExecutorSignature, chat(output="x", sources="- a.org\n- b.org"))["sources"] == ["a.org", "b.org"]
    assert read_answer(ExecutorSignature, chat(output="x", sources='["a.org"]'))["sources"] == ["a.org"]


def test_a_plan_is_read_with_numbers_null_and_task_types_in_any_spelling():
    answer = (
        '{"subtasks": [{"goal": "a", "task_type": "retrieve", "dependencies": null},'
        ' {"goal": "b", "task_type": "Code", "dependencies": [0]}, null], "dependencies_graph": {"1": ["0"]}}'
    )
    plan = read_answer(PlannerSignature, answer)
    assert [task.task_type for task in plan["subtasks"]] == [TaskType.RETRIEVE, TaskType.CODE_INTERPRET]
    assert [task.dependencies for task in plan["subtasks"]] == [[], ["0"]]
    assert plan["dependencies_graph"] == {"1": ["0"]}


def test_a_null_list_is_an_empty_list():
    assert read_answer(PlannerSignature, '{"subtasks": null}')["subtasks"] == []


def test_a_structured_output_becomes_json_text():
    assert read_answer(ExecutorSignature, '{"output": {"a": [1, true]}}')["output"] == '{"a": [1, true]}'


@pytest.mark.parametrize(
    ("signature", "answer", "reason"),
    [
        (ExecutorSignature, "The answer is Paris.", "none of the asked fields"),
        (ExecutorSignature, '{"answer": "Paris"}', "lacks output"),
        (ExecutorSignature, '{"output": null}', "lacks output"),
        (AtomizerSignature, chat(is_atomic="maybe", node_type="PLAN"), "is_atomic"),
        (AtomizerSignature, chat(is_atomic="true", node_type="SPLIT"), "'SPLIT' is not one of PLAN, EXECUTE"),
        (PlannerSignature, '{"subtasks": [{"goal": "a", "task_type": "COOK"}]}', "'COOK' is not one of RETRIEVE"),
        (PlannerSignature, '{"subtasks": [{"task_type": "THINK"}]}', "subtasks.0.goal: Field required"),
        (PlannerSignature, '{"subtasks": ["a"]}', "subtasks.0"),
        (
            ExecutorSignature,
            '{"type": "object", "properties": {"output": {"type": "string"}}}',
            "repeats the JSON schema",
        ),
        (PlannerSignature, '{"subtasks": {"type": "array", "items": {}}}', "repeats the JSON schema"),
    ],
)
def test_an_answer_at_fault_is_refused_with_its_reason(signature, answer, reason):
    with pytest.raises(Unreadable, match=reason):
        read_answer(signature, answer)
