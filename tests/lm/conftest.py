"""What the tests of the model layer share: a hub, scopes that remember, and one role's question over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import dspy
import pytest

from roma_ray.config import LmConfig
from roma_ray.lm.hub import LmHub
from roma_ray.lm.scope import Allowance, CallScope, Grant, entered
from roma_ray.types import CallRecord
from tests.scripted.client import Scripted


@dataclass
class Step:
    """A scope with the records that it was given."""

    records: list[CallRecord] = field(default_factory=list)
    scope: CallScope = field(default_factory=lambda: CallScope(step=""))

    @classmethod
    def new(cls, *, grant: Grant | None = None, earlier: Step | None = None, **settings: Any) -> Step:
        """A fresh attempt at the step, with the answers of an `earlier` one known."""
        step = cls()
        known: dict[str, list[CallRecord]] = {}
        for record in earlier.records if earlier else []:
            if record.response is not None:
                known.setdefault(record.request_key, []).append(record)
        allowance = Allowance(grant or Grant())
        step.scope = CallScope(
            step="root/descend~0", known=known, allowance=allowance, emit=step.records.append, **settings
        )
        return step


async def ask(lm: dspy.LM, goal: str, step: Step | None = None) -> str:
    """The Executor's output for `goal`, asked in `step` where one is given."""
    predict = dspy.Predict("goal -> output")
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False), disable_history=True):
        if step is None:
            return (await predict.acall(goal=goal)).output
        with entered(step.scope):
            return (await predict.acall(goal=goal)).output


@pytest.fixture(autouse=True, scope="session")
def answer_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Answers of earlier test runs must not be found."""
    dspy.configure_cache(disk_cache_dir=str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
async def hub() -> AsyncGenerator[LmHub]:
    hub = LmHub({})
    yield hub
    await hub.aclose()


@pytest.fixture
def scripted_lm(hub: LmHub, scripted: Scripted) -> Callable[..., dspy.LM]:
    """`scripted_lm(max_retries=…)`: an LM of the scripted server."""

    def build(**settings: Any) -> dspy.LM:
        config = LmConfig(**{"model": "openai/scripted", "api_base": scripted.base_url, "max_retries": 1} | settings)
        return hub.lm("executor", config, default_max_tokens=500)

    return build
