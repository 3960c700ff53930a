"""The five roles: each is BaseModule with its own signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import dspy

from roma_ray.modules.base import BaseModule
from roma_ray.modules.signatures import (
    AggregatorSignature,
    AtomizerSignature,
    ExecutorSignature,
    PlannerSignature,
    VerifierSignature,
)
from roma_ray.types import NodeType


def _decided(goal: str, node_type: NodeType, reasoning: str) -> dspy.Example:
    example = dspy.Example(goal=goal, reasoning=reasoning, is_atomic=node_type.is_execute, node_type=node_type.value)
    return example.with_inputs("goal")


class Atomizer(BaseModule):
    """Decides whether a goal is done at once: `goal` → `is_atomic`, `node_type`."""

    signature_class = AtomizerSignature
    # Without them a 1.5B model calls nearly every question PLAN; with them it told 11 of 12 goals apart.
    default_demos: ClassVar[Sequence[dspy.Example]] = (
        _decided("How many minutes are in three hours?", NodeType.EXECUTE, "One multiplication answers it."),
        _decided(
            "Research three electric cars, compare their range and price, and write a buying guide.",
            NodeType.PLAN,
            "Three separate researches, a comparison and a text are asked for.",
        ),
        _decided("Who wrote Hamlet?", NodeType.EXECUTE, "It is one fact."),
        _decided("Write a limerick about rain.", NodeType.EXECUTE, "It is one short text."),
    )


class Planner(BaseModule):
    """Splits a goal: `goal` → `subtasks`, `dependencies_graph` (positions as text)."""

    signature_class = PlannerSignature


class Executor(BaseModule):
    """Does an atomic goal: `goal` → `output`, `sources`."""

    signature_class = ExecutorSignature


class Aggregator(BaseModule):
    """Puts results together: `original_goal`, `subtasks_results` → `synthesized_result`."""

    signature_class = AggregatorSignature


class Verifier(BaseModule):
    """Checks a candidate: `goal`, `candidate_output` → `verdict`, `feedback`."""

    signature_class = VerifierSignature
