"""The five roles: each is BaseModule with its own signature."""

from __future__ import annotations

from roma_ray.modules.base import BaseModule
from roma_ray.modules.signatures import (
    AggregatorSignature,
    AtomizerSignature,
    ExecutorSignature,
    PlannerSignature,
    VerifierSignature,
)


class Atomizer(BaseModule):
    """Decides whether a goal is done at once: `goal` → `is_atomic`, `node_type`."""

    signature_class = AtomizerSignature


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
