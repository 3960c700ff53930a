from __future__ import annotations

from typing import Optional

import pytest

from roma_ray import NodeType, SubTask
from roma_ray.modules import (
    AggregatorSignature,
    AtomizerSignature,
    ExecutorSignature,
    PlannerSignature,
    VerifierSignature,
)

# ruff: noqa: UP045
_TEXT = Optional[str]
_FIELDS = {
    AtomizerSignature: ({"goal": str, "context": _TEXT}, {"is_atomic": bool, "node_type": NodeType}),
    PlannerSignature: (
        {"goal": str, "context": _TEXT},
        {"subtasks": list[SubTask], "dependencies_graph": Optional[dict[str, list[str]]]},
    ),
    ExecutorSignature: ({"goal": str, "context": _TEXT}, {"output": str, "sources": Optional[list[str]]}),
    AggregatorSignature: (
        {"original_goal": str, "subtasks_results": list[SubTask], "context": _TEXT},
        {"synthesized_result": str},
    ),
    VerifierSignature: (
        {"goal": str, "candidate_output": str, "context": _TEXT},
        {"verdict": bool, "feedback": _TEXT},
    ),
}


@pytest.mark.parametrize("signature", _FIELDS, ids=lambda signature: signature.__name__)
def test_a_signature_has_exactly_the_fields_of_the_contract(signature):
    inputs, outputs = _FIELDS[signature]
    assert {name: field.annotation for name, field in signature.input_fields.items()} == inputs
    assert {name: field.annotation for name, field in signature.output_fields.items()} == outputs
    assert len(signature.instructions) > 100
