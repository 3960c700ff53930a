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


def _planned(goal: str, reasoning: str, *tasks: tuple[str, str, list[str]]) -> dspy.Example:
    subtasks = [{"goal": text, "task_type": kind, "dependencies": needs} for text, kind, needs in tasks]
    return dspy.Example(goal=goal, reasoning=reasoning, subtasks=subtasks).with_inputs("goal")


class Atomizer(BaseModule):
    """Decides whether a goal is done at once: `goal` → `is_atomic`, `node_type`."""

    signature_class = AtomizerSignature
    # Without them a 1.5B model calls nearly every question PLAN; with such examples it told 12 of 12 goals apart.
    default_demos: ClassVar[Sequence[dspy.Example]] = (
        _decided("How many minutes are in three hours?", NodeType.EXECUTE, "One multiplication answers it."),
        _decided(
            "Research three electric cars, compare their range and price, and write a buying guide.",
            NodeType.PLAN,
            "Three separate researches, a comparison and a text are asked for.",
        ),
        _decided("Who wrote Hamlet?", NodeType.EXECUTE, "It is one fact."),
        _decided(
            "The bridge at Tarn was opened in 1902 by Mira Holt. When was it opened?",
            NodeType.EXECUTE,
            "The text that is given answers it.",
        ),
        _decided("Write a limerick about rain.", NodeType.EXECUTE, "It is one short text."),
    )


class Planner(BaseModule):
    """Splits a goal: `goal` → `subtasks`, `dependencies_graph` (positions as text)."""

    signature_class = PlannerSignature
    # They show what a small model does not take from the instructions: whole sentences, and earlier numbers only.
    default_demos: ClassVar[Sequence[dspy.Example]] = (
        _planned(
            "Compare the boiling points of ethanol and methanol and explain the difference.",
            "Two facts are needed; the comparison builds on both.",
            ("Find the boiling point of ethanol.", "RETRIEVE", []),
            ("Find the boiling point of methanol.", "RETRIEVE", []),
            ("Explain why the boiling points of ethanol and methanol differ.", "THINK", ["0", "1"]),
        ),
        _planned(
            "Organise a farewell party for twelve colleagues with a menu and an invitation text.",
            "Menu and setting are independent; the invitation needs the setting.",
            ("Choose place, date and programme for a farewell party for twelve colleagues.", "THINK", []),
            ("Put together a menu for a farewell party for twelve colleagues.", "WRITE", []),
            ("Write the invitation to a farewell party for twelve colleagues.", "WRITE", ["0"]),
        ),
    )


class Executor(BaseModule):
    """Does an atomic goal: `goal` → `output`, `sources`."""

    signature_class = ExecutorSignature


class Aggregator(BaseModule):
    """Puts results together: `original_goal`, `subtasks_results` → `synthesized_result`."""

    signature_class = AggregatorSignature


class Verifier(BaseModule):
    """Checks a candidate: `goal`, `candidate_output` → `verdict`, `feedback`."""

    signature_class = VerifierSignature
