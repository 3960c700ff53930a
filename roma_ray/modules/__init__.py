"""The five roles as DSPy modules."""

from roma_ray.modules.asking import Asked, ask
from roma_ray.modules.base import BaseModule
from roma_ray.modules.factory import build_module
from roma_ray.modules.roles import Aggregator, Atomizer, Executor, Planner, Verifier
from roma_ray.modules.signatures import (
    AggregatorSignature,
    AtomizerSignature,
    ExecutorSignature,
    PlannerSignature,
    VerifierSignature,
)

__all__ = [
    "Aggregator",
    "AggregatorSignature",
    "Asked",
    "Atomizer",
    "AtomizerSignature",
    "BaseModule",
    "Executor",
    "ExecutorSignature",
    "Planner",
    "PlannerSignature",
    "Verifier",
    "VerifierSignature",
    "ask",
    "build_module",
]
