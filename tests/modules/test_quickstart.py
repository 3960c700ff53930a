"""The quickstart: four roles and a verifier on LMs of their own, a tool, and a pipeline written by hand."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from roma_ray import Aggregator, Atomizer, Executor, Planner, SubTask, Verifier
from roma_ray.types import TaskType


def get_weather(city: str) -> str:
    """Return a canned weather report for the city."""
    return f"The weather in {city} is sunny."


class Pipeline:
    def __init__(self, api_base: str) -> None:
        def scripted(model: str, **settings: Any) -> dspy.LM:
            return dspy.LM(f"openai/{model}", api_base=api_base, api_key="none", **settings)

        # Executor geared toward ReAct
        executor_lm = scripted("kimi-k2-instruct-0905", temperature=0.7, cache=True)
        self.executor = Executor(
            lm=executor_lm,
            prediction_strategy="react",
            tools=[get_weather],
            context_defaults={"track_usage": True},
        )
        # Atomizer decides when to branch into planning
        self.atomizer = Atomizer(
            lm=scripted("gemini-2.5-flash", temperature=0.6, cache=False),
            prediction_strategy="cot",
            context_defaults={"track_usage": True},
        )
        # Planner produces executable subtasks for non-atomic goals
        self.planner = Planner(
            lm=scripted("gpt-4o-mini", temperature=0.85, cache=True),
            prediction_strategy="cot",
            context_defaults={"track_usage": True},
        )
        self.aggregator = Aggregator(lm=scripted("gpt-4o-mini", temperature=0.65), prediction_strategy="cot")
        self.verifier = Verifier(lm=scripted("gpt-4o-mini", temperature=0.0))

    def run(self, goal: str) -> str:
        atomized = self.atomizer.forward(goal)
        if atomized.is_atomic or atomized.node_type.is_execute:
            execution = self.executor.forward(goal)
            candidate = execution.output
        else:
            plan = self.planner.forward(goal)
            results = []
            for _idx, subtask in enumerate(plan.subtasks, start=1):
                execution = self.executor.forward(subtask.goal)
                results.append(
                    SubTask(
                        goal=subtask.goal,
                        task_type=subtask.task_type,
                        dependencies=subtask.dependencies,
                        result=execution.output,
                    )
                )
            aggregated = self.aggregator.forward(goal, results)
            candidate = aggregated.synthesized_result

        verdict = self.verifier.forward(goal, candidate)
        if verdict.verdict:
            return candidate
        return f"Verifier flagged the output: {verdict.feedback or 'no feedback returned'}"


@pytest.fixture(autouse=True)
def _no_cache_between_tests():
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    dspy.cache.reset_memory_cache()


def test_the_quickstart_plans_executes_with_a_tool_aggregates_and_verifies(scripted):
    answer = Pipeline(scripted.base_url).run("Plan a weekend in Barcelona and include a packing list. N=2")
    assert answer.startswith("SYN-")
    assert answer.count("OUT-") == 2
    # A tool loop is three calls: the tool, finish, and the answer.
    assert scripted.stats()["by_role"] == {"atomizer": 1, "planner": 1, "executor": 6, "aggregator": 1, "verifier": 1}


def test_an_atomic_goal_goes_straight_to_the_executor(scripted):
    answer = Pipeline(scripted.base_url).run("What is the weather in Paris?")
    assert answer.startswith("OUT-")
    assert scripted.stats()["by_role"] == {"atomizer": 1, "executor": 3, "verifier": 1}


def test_a_refused_candidate_comes_back_with_the_verifiers_feedback(scripted):
    assert (
        Pipeline(scripted.base_url).run("Say hello. VERDICT=false").startswith("Verifier flagged the output: Rejected")
    )


async def test_every_role_works_asynchronously_and_aggregates_without_results(scripted):
    pipeline = Pipeline(scripted.base_url)
    aggregated = await pipeline.aggregator.aforward(
        original_goal="Plan a data migration",
        subtasks_results=[
            SubTask(goal="Inventory current databases", task_type=TaskType.RETRIEVE),
            SubTask(goal="Draft migration timeline", task_type=TaskType.WRITE),
        ],
    )
    assert aggregated.synthesized_result.startswith("SYN-")
    assert (await pipeline.executor.aforward("What is the weather in Amman?")).output.startswith("OUT-")
