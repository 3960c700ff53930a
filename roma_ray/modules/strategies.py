"""From a prediction strategy to the DSPy module that carries it out; every one is awaitable."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dspy

from roma_ray.errors import ConfigError
from roma_ray.modules.sampling import BestOfN, Majority, MultiChainComparison, NearestDemos, Refine, Reward
from roma_ray.modules.sources import load_demos, load_variable
from roma_ray.types import PredictionStrategy

Signature = type[dspy.Signature]
Options = Mapping[str, Any]

log = logging.getLogger(__name__)

TOOL_STRATEGIES = frozenset({PredictionStrategy.REACT, PredictionStrategy.REACT_V2})

_UNSUPPORTED = {
    PredictionStrategy.CODE_ACT: "runs code and needs the sandbox, which this version does not have",
    PredictionStrategy.PROGRAM_OF_THOUGHT: "runs code and needs the sandbox, which this version does not have",
    PredictionStrategy.RLM: "runs code and needs the sandbox, which this version does not have",
    PredictionStrategy.PARALLEL: "maps one module over many inputs; independent subtasks run in parallel anyway",
}
_CURE = "choose one of: Predict, ChainOfThought, ReAct, ReActV2, BestOfN, Refine, MultiChainComparison, majority, KNN"


def supported_strategy(value: str | PredictionStrategy) -> PredictionStrategy:
    """The strategy that `value` names. Raises ConfigError for an unknown one and for one that cannot be used here."""
    try:
        strategy = PredictionStrategy.parse(value)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if strategy in _UNSUPPORTED:
        raise ConfigError(f"strategy {strategy.value} {_UNSUPPORTED[strategy]}", cure=_CURE)
    return strategy


def build_predictor(
    strategy: PredictionStrategy,
    signature: Signature,
    *,
    tools: Sequence[dspy.Tool] = (),
    options: Options | None = None,
) -> dspy.Module:
    """The DSPy module for `strategy` over `signature`.

    `options` is what strategy_config says: any strategy takes LM settings such as `temperature`; sampling ones take
    `base` (the strategy of one sample, default ChainOfThought where reasoning is compared, else Predict) and

    * majority: `n` (5), `vote_on` (the last required output), `temperature` (0.7)
    * BestOfN, Refine: `n` (3), `reward` (a function of inputs and prediction, or `module:FUNCTION`; default: every
      required output is filled), `threshold` (1.0), `temperature` (0.7)
    * MultiChainComparison: `m` (3), `temperature` (0.7)
    * KNN: `trainset` (list of dspy.Example, or `module:VARIABLE`), `k` (3)
    * ReAct, ReActV2: `max_iters` (20)

    Raises ConfigError when an option is missing or not known to the strategy.
    """
    left = dict(options or {})
    # N and M are how DSPy spells them.
    left = {{"N": "n", "M": "m", "reward_fn": "reward"}.get(name, name): value for name, value in left.items()}
    predictor = _BUILDERS[strategy](signature, tools, left)
    if left:
        raise ConfigError(f"strategy {strategy.value} has no option {', '.join(sorted(left))}")
    return predictor


def _predict(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    return dspy.Predict(signature, **_taken(options))


def _chain_of_thought(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    described = dspy.OutputField(desc="think step by step, in a few short sentences")
    return dspy.ChainOfThought(signature, rationale_field=described, **_taken(options))


def _react(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    return dspy.ReAct(signature, tools=list(tools), max_iters=options.pop("max_iters", 20))


def _react_v2(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    return dspy.ReActV2(signature, tools=list(tools), max_iters=options.pop("max_iters", 20))


def _majority(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    vote_on = options.pop("vote_on", main_output(signature))
    if vote_on not in signature.output_fields:
        raise ConfigError(f"vote_on={vote_on!r} is none of the outputs {', '.join(signature.output_fields)}")
    return Majority(
        _base(signature, tools, options),
        n=_count(options, "n", 5),
        vote_on=vote_on,
        temperature=options.pop("temperature", 0.7),
    )


def _best_of_n(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    return BestOfN(_base(signature, tools, options), **_rewarded(signature, options))


def _refine(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    advised = signature.append(
        "advice", dspy.InputField(desc="what to do better than the last time", default=None), type_=str | None
    )
    return Refine(_base(advised, tools, options), adviser=dspy.Predict(_Advice), **_rewarded(signature, options))


def _multi_chain(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    m = _count(options, "m", 3)
    temperature = options.pop("temperature", 0.7)
    return MultiChainComparison(
        _base(signature, tools, {"base": "ChainOfThought"} | options),
        compare=dspy.MultiChainComparison(signature, M=m, temperature=temperature).predict,
        m=m,
        answer_name=main_output(signature),
        temperature=temperature,
    )


def _knn(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    trainset = options.pop("trainset", None)
    if isinstance(trainset, str):
        trainset = load_demos(trainset)
    if not trainset:
        raise ConfigError("strategy KNN needs a trainset", cure="set strategy_config.trainset=module:VARIABLE")
    names = [name for name in signature.input_fields if name in trainset[0]]
    if not names:
        raise ConfigError(f"the trainset of KNN has none of the inputs {', '.join(signature.input_fields)}")
    examples = [example.with_inputs(*names) for example in trainset]
    return NearestDemos(_base(signature, tools, options), k=_count(options, "k", 3), trainset=examples)


class _Advice(dspy.Signature):
    """The answer to the task got a reward below the threshold. Say in a few sentences, concretely, what the next answer
    must do differently. Whoever reads the advice sees the task again, but not this answer."""

    task: str = dspy.InputField()
    answer: str = dspy.InputField()
    reward: float = dspy.InputField()
    threshold: float = dspy.InputField()
    advice: str = dspy.OutputField(desc="what to do differently")


_Builder = Callable[[Signature, Sequence[dspy.Tool], dict[str, Any]], dspy.Module]
_BUILDERS: dict[PredictionStrategy, _Builder] = {
    PredictionStrategy.PREDICT: _predict,
    PredictionStrategy.CHAIN_OF_THOUGHT: _chain_of_thought,
    PredictionStrategy.REACT: _react,
    PredictionStrategy.REACT_V2: _react_v2,
    PredictionStrategy.MAJORITY: _majority,
    PredictionStrategy.BEST_OF_N: _best_of_n,
    PredictionStrategy.REFINE: _refine,
    PredictionStrategy.MULTI_CHAIN_COMPARISON: _multi_chain,
    PredictionStrategy.KNN: _knn,
}


def _base(signature: Signature, tools: Sequence[dspy.Tool], options: dict[str, Any]) -> dspy.Module:
    base = supported_strategy(options.pop("base", PredictionStrategy.PREDICT))
    if base not in (PredictionStrategy.PREDICT, PredictionStrategy.CHAIN_OF_THOUGHT, PredictionStrategy.REACT):
        raise ConfigError(f"base {base.value!r} is no strategy of one sample", cure="Predict, ChainOfThought or ReAct")
    return _BUILDERS[base](signature, tools, {})


def _rewarded(signature: Signature, options: dict[str, Any]) -> dict[str, Any]:
    reward = options.pop("reward", None)
    if isinstance(reward, str):
        reward = load_variable(reward, what="reward")
    if reward is not None and not callable(reward):
        raise ConfigError(f"reward {reward!r} is not a function of inputs and prediction")
    return {
        "n": _count(options, "n", 3),
        "reward": reward or _filled(signature),
        "threshold": float(options.pop("threshold", 1.0)),
        "temperature": options.pop("temperature", 0.7),
    }


def _filled(signature: Signature) -> Reward:
    """The reward where none is given: the share of required outputs that are not empty."""
    names = required_outputs(signature)
    return lambda inputs, prediction: sum(prediction[name] not in (None, "", []) for name in names) / len(names)


def _count(options: dict[str, Any], name: str, default: int) -> int:
    value = options.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"strategy option {name}={value!r} is not a whole number above 0")
    return value


def _taken(options: dict[str, Any]) -> dict[str, Any]:
    taken = dict(options)
    options.clear()
    return taken


def required_outputs(signature: Signature) -> list[str]:
    """The names of the outputs that an answer cannot lack."""
    return [name for name, field in signature.output_fields.items() if field.is_required()]


def main_output(signature: Signature) -> str:
    """The output that the others lead to: the last required one."""
    return (required_outputs(signature) or list(signature.output_fields))[-1]
