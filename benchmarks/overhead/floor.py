"""The floor: the same model calls by asyncio and DSPy alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

_OPEN_AT_ONCE = 1000


def native_predict(api_base: str) -> tuple[Any, Any]:
    """A dspy.Predict and its LM over DSPy's native engine, with room for all calls at once."""
    import dspy
    from dspy.clients.engines.lm15_engine import AsyncLM15Engine, LM15Engine
    from dspy.lm15 import RouterConfig

    router = RouterConfig(
        api_keys={"openai-chat": "none"}, base_urls={"openai-chat": api_base}, max_connections=_OPEN_AT_ONCE
    )
    lm = dspy.LM("openai/scripted", cache=False, engine=LM15Engine(router), async_engine=AsyncLM15Engine(router))
    return dspy.Predict("goal, context -> output, sources: list[str]"), lm


class Floor:
    """Makes calls on a loop of its own; the loop, the LM and its connections stay from one time to the next."""

    def __init__(self, api_base: str) -> None:
        self._runner = asyncio.Runner()
        self._predict, self._lm = native_predict(api_base)

    def call_in_stages(self, stages: Sequence[int]) -> None:
        """Make `stages[i]` calls at once, one stage after the other."""
        self._runner.run(self._call_in_stages(stages))

    async def _call_in_stages(self, stages: Sequence[int]) -> None:
        import dspy

        gate = asyncio.Semaphore(_OPEN_AT_ONCE)

        async def call(stage: int, index: int) -> None:
            async with gate:
                context = "What is known so far: nothing."
                await self._predict.acall(goal=f"Part {index} of stage {stage}", context=context)

        adapter = dspy.ChatAdapter(use_json_adapter_fallback=False)
        with dspy.context(lm=self._lm, adapter=adapter, disable_history=True):
            for stage, width in enumerate(stages):
                await asyncio.gather(*(call(stage, index) for index in range(width)))


async def first_call(api_base: str, goal: str) -> None:
    """Import DSPy and make one call."""
    import dspy

    predict, lm = native_predict(api_base)
    with dspy.context(lm=lm, disable_history=True):
        await predict.acall(goal=goal, context="")


def first_call_on_ray(api_base: str, goal: str) -> None:
    """Start Ray, and make one call from one actor."""
    import ray

    # Without it Ray writes a token file into the home folder.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(include_dashboard=False, log_to_driver=False)

    class Caller:
        async def call(self) -> None:
            await first_call(api_base, goal)

    actor: Any = ray.remote(num_cpus=0)(Caller)
    ray.get(actor.remote().call.remote())
