"""Plans are checked in code: faults are named for the model, then mended the same way every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roma_ray.engine.plan import PlanRules, check_plan, read_plan
from roma_ray.errors import PlanFaulty
from roma_ray.types import Plan, SubTask, TaskType

TYPES = (TaskType.RETRIEVE, TaskType.WRITE, TaskType.THINK, TaskType.CODE_INTERPRET)
RULES = PlanRules(max_subtasks=4, task_types=TYPES, ancestors=("Write a report",))


def task(goal: str, *dependencies: object, task_type: TaskType = TaskType.THINK) -> SubTask:
    return SubTask(goal=goal, task_type=task_type, dependencies=list(dependencies))  # type: ignore[arg-type]


def edges(plan: Plan | None) -> list[tuple[int, ...]]:
    assert plan is not None
    return [t.depends_on for t in plan.tasks]


@pytest.mark.parametrize("name", [0, "0", " 0 ", "root.0", "root.1~2.0"])
def test_every_spelling_of_a_position_means_the_same_dependency(name: object) -> None:
    assert edges(check_plan([task("a"), task("b", name)], None, RULES)) == [(), (0,)]


def test_dependencies_and_graph_are_united_and_null_means_none() -> None:
    plan = check_plan([task("a"), task("b"), task("c", "0", None)], {"2": [1, None], "1": None}, RULES)
    assert edges(plan) == [(), (), (0, 1)]


def test_a_graph_reads_dependent_first() -> None:
    assert edges(check_plan([task("a"), task("b")], {"0": ["1"]}, RULES)) == [(1,), ()]


@pytest.mark.parametrize(
    ("tasks", "graph", "named", "repaired"),
    [
        ([task("a", "0"), task("b")], None, "subtask 0 depends on itself", [(), ()]),
        ([task("a", "7")], None, "subtask 0 depends on 7", [()]),
        ([task("a", "the first")], None, "'the first'", [()]),
        ([task("a")], {"5": ["0"]}, "'5'", [()]),
        ([task("a", "1"), task("b", "2"), task("c", "0")], None, "circle: 0 -> 1 -> 2 -> 0", [(1,), (2,), ()]),
        ([task("a"), task(" A  "), task("b", "1")], None, "same goal as subtask 0", [(), (0,)]),
        ([task("write  a REPORT"), task("b", "0")], None, "repeats a goal that is being solved", [()]),
        ([task(c) for c in "abcde"], None, "5 subtasks are more than the allowed 4", [()] * 4),
        ([task("a", task_type=TaskType.IMAGE_GENERATION)], None, "IMAGE_GENERATION", [()]),
    ],
    ids=["self", "unknown", "words", "graph key", "cycle", "duplicate", "ancestor", "too many", "task type"],
)
def test_each_fault_is_named_and_has_its_repair(
    tasks: list[SubTask], graph: dict[str, list[str]] | None, named: str, repaired: list[tuple[int, ...]]
) -> None:
    with pytest.raises(PlanFaulty) as raised:
        check_plan(tasks, graph, RULES)
    assert named in raised.value.message
    read = read_plan(tasks, graph, RULES)
    assert any(named in repair for repair in read.repairs)
    assert edges(read.plan) == repaired


@pytest.mark.parametrize("tasks", [[], None, [task("Write a report")]], ids=["empty", "null", "only the goal itself"])
def test_a_plan_with_nothing_left_is_treated_as_atomic(tasks: list[SubTask] | None) -> None:
    read = read_plan(tasks, None, RULES)
    assert read.plan is None
    assert "done at once" in read.repairs[-1]


names = st.one_of(st.integers(-1, 8), st.sampled_from(["0", "3", "root.2", "x", "", "9"]), st.none())
subtasks = st.lists(
    st.builds(
        lambda goal, needs, kind: SubTask(goal=goal, task_type=kind, dependencies=needs),
        st.sampled_from(["a", "A ", "b", "c", "d", "e", " ", "write a report"]),
        st.lists(names, max_size=4),
        st.sampled_from(list(TaskType)),
    ),
    max_size=8,
)
graphs = st.dictionaries(st.sampled_from(["0", "1", "2", "root.3", "x"]), st.one_of(st.none(), st.lists(names)))


@given(subtasks, st.one_of(st.none(), graphs))
def test_whatever_the_model_says_the_repaired_plan_passes_every_check(
    tasks: list[SubTask], graph: dict[str, list[object]] | None
) -> None:
    read = read_plan(tasks, graph, RULES)
    if read.plan is None:
        return
    again = [
        SubTask(goal=t.goal, task_type=t.task_type, dependencies=list(map(str, t.depends_on))) for t in read.plan.tasks
    ]
    assert check_plan(again, None, RULES) == read.plan


@given(subtasks, st.one_of(st.none(), graphs))
def test_nothing_is_dropped_silently(tasks: list[SubTask], graph: dict[str, list[object]] | None) -> None:
    read = read_plan(tasks, graph, RULES)
    kept = len(read.plan.tasks) if read.plan else 0
    assert kept == len(tasks) or read.repairs
