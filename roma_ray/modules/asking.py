"""One ask of a module, and at most one more that tells the model what was wrong with its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dspy

from roma_ray.errors import AnswerEmpty, AnswerTruncated, AnswerUnreadable, ContextTooLong, ModelError
from roma_ray.lm import scope
from roma_ray.modules.adapters import Heard, heard
from roma_ray.modules.base import BaseModule
from roma_ray.modules.strategies import required_outputs
from roma_ray.types import Fault

Check = Callable[[dspy.Prediction], None]

_SHOWN_CHARS = 1500
_REPEATED_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an ask brought.

    `prediction` is None when neither answer could be read. `fault` is the last fault of the model, None when all went
    well; it stands beside a prediction that was truncated or failed the check. `raw` is the text of the last answer
    without thinking, empty when it was empty.
    """

    prediction: dspy.Prediction | None
    fault: Fault | None
    raw: str
    warnings: tuple[str, ...]


async def ask(module: BaseModule, *, check: Check | None = None, **inputs: Any) -> Asked:
    """Ask `module`; when its answer is at fault, show the model the reason and ask exactly once more.

    At fault is an answer that cannot be read, is empty or truncated, repeats the schema, or for which `check` raises a
    ModelError. The reason goes to the end of the `context` input, so that the beginning of the prompt stays the same.
    Raises ContextTooLong and every error that is not the model's fault: those of the provider, the network, the limits.
    """
    first = await _attempt(module, check, inputs)
    if first.error is None:
        return Asked(prediction=first.prediction, fault=None, raw=first.raw, warnings=())
    told = "\n\n".join(filter(None, (inputs.get("context"), _correction(first))))
    second = await _attempt(module, check, {**inputs, "context": told})
    warning = f"{type(module).__name__} was asked again: {first.error.message}"
    return Asked(
        prediction=second.prediction or first.prediction,
        fault=second.error.fault if second.error else None,
        raw=second.raw,
        warnings=(warning,),
    )


@dataclass(frozen=True, slots=True)
class _Attempt:
    prediction: dspy.Prediction | None
    error: ModelError | None
    raw: str


async def _attempt(module: BaseModule, check: Check | None, inputs: dict[str, Any]) -> _Attempt:
    listener = Heard()
    token = heard.set(listener)
    calls = scope.current.get()
    if calls is not None:
        calls.last_finish_reason = ""
    prediction: dspy.Prediction | None = None
    error: ModelError | None = None
    try:
        prediction = await module.aforward(**inputs)
        _not_blank(module, prediction)
    except ContextTooLong:
        raise
    except ModelError as fault:
        error = fault
    finally:
        heard.reset(token)
    if calls is not None and calls.last_finish_reason == "length":
        error = AnswerTruncated("the answer was cut off at max_tokens")
    if error is None and check is not None and prediction is not None:
        try:
            check(prediction)
        except ModelError as fault:
            error = fault
    return _Attempt(prediction, error, listener.text)


def _not_blank(module: BaseModule, prediction: dspy.Prediction) -> None:
    for name in required_outputs(module.signature):
        value = prediction[name]
        if isinstance(value, str) and not value.strip():
            raise AnswerEmpty(f"the answer's {name} is empty")


def _correction(attempt: _Attempt) -> str:
    match attempt.error:
        case AnswerTruncated():
            return "Your last answer was cut off because it was too long. Answer again, complete but much shorter."
        case AnswerEmpty():
            return "Your last answer was empty. Answer again, in the asked form."
        case _:
            shown = attempt.raw[: _SHOWN_CHARS if not isinstance(attempt.error, AnswerUnreadable) else _REPEATED_CHARS]
            reason = attempt.error.message if attempt.error else ""
            return f"Your last answer was:\n{shown}\n\nIt is wrong: {reason}\nAnswer again, whole and corrected."
