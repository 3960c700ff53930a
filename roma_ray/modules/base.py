"""BaseModule: a signature, a prediction strategy, an LM and tools, asked synchronously or not.

A module configures nothing globally. Each call enters its own `dspy.context`, so modules with different LMs can be
asked at the same time, in one event loop or in several threads.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import dspy
from dspy.dsp.utils.settings import DEFAULT_CONFIG
from dspy.signatures.signature import ensure_signature
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMUnexpectedError,
    LMUnsupportedFeatureError,
)

from roma_ray.errors import AnswerEmpty, AnswerUnreadable, ConfigError, ContextTooLong, KeyMissing, RomaError
from roma_ray.modules.adapters import UnreadableAnswer, make_adapter
from roma_ray.modules.memo import Memo
from roma_ray.modules.sources import load_demos, load_instructions
from roma_ray.modules.strategies import TOOL_STRATEGIES, build_predictor, supported_strategy
from roma_ray.modules.tools import ToolsType, as_tools, merged
from roma_ray.redact import MASK, is_secret_name
from roma_ray.types import PredictionStrategy

log = logging.getLogger(__name__)

# DSPy warns with the whole value in the line when an input is not of the declared type, and once per direct forward().
logging.getLogger("dspy").setLevel(logging.ERROR)

_SETTINGS = frozenset(DEFAULT_CONFIG)
_PREDICTOR_ARGUMENTS = frozenset({"max_iters"})
_KEPT_PREDICTORS = 16


@dataclass(frozen=True, slots=True)
class _Call:
    predictor: dspy.Module
    settings: dict[str, Any]
    inputs: dict[str, Any]


class BaseModule(dspy.Module):
    """What every role has in common; a subclass names its signature.

    Arguments of the constructor:

    * prediction_strategy: a PredictionStrategy, its name or an alias in any case
    * lm, or model with model_config (arguments of dspy.LM); with neither, the LM of the surrounding dspy settings
    * tools: list, tuple or mapping of callables, for strategies that call tools
    * context_defaults: DSPy settings for every call, such as {"track_usage": True}
    * adapter: `chat`, `json` or a dspy.Adapter
    * signature: another signature than the role's own (a class, or text such as `goal -> output`)
    * instructions: instead of the signature's docstring: text, a `.jinja` file, or `module:VARIABLE`
    * demos: a list of dspy.Example, or `module:VARIABLE`; None takes the role's own, where the signature is its own
    * everything else: options of the strategy (see `build_predictor`)

    Raises ConfigError for what cannot be used.
    """

    signature_class: ClassVar[type[dspy.Signature]]
    default_demos: ClassVar[Sequence[dspy.Example]] = ()

    def __init__(
        self,
        prediction_strategy: PredictionStrategy | str = PredictionStrategy.CHAIN_OF_THOUGHT,
        *,
        lm: dspy.BaseLM | None = None,
        model: str | None = None,
        model_config: Mapping[str, Any] | None = None,
        tools: ToolsType | None = None,
        context_defaults: Mapping[str, Any] | None = None,
        adapter: dspy.Adapter | str | None = None,
        signature: type[dspy.Signature] | str | None = None,
        instructions: str | None = None,
        demos: Sequence[dspy.Example] | str | None = None,
        **strategy_kwargs: Any,
    ) -> None:
        super().__init__()
        self.strategy = supported_strategy(prediction_strategy)
        self.signature = _chosen_signature(signature or self.signature_class, instructions)
        self._lm = _chosen_lm(lm, model, model_config)
        self._adapter = make_adapter(adapter)
        self._tools = as_tools(tools)
        self._context_defaults = dict(context_defaults or {})
        self._options = dict(strategy_kwargs)
        self._with_tools: Memo[tuple[Any, ...], dspy.Module] = Memo(_KEPT_PREDICTORS)
        if self._tools and self.strategy not in TOOL_STRATEGIES and "base" not in self._options:
            log.warning("%s: strategy %s calls no tools", type(self).__name__, self.strategy.value)
        self.predictor = self._build(self._tools)
        if demos is None and signature is None:
            demos = self.default_demos
        self.demos = load_demos(demos) if isinstance(demos, str) else list(demos or ())
        self._positional = [name for name in self.signature.input_fields if name != "context"]

    @property
    def lm(self) -> dspy.BaseLM | None:
        """The module's own LM, None when it takes the one of the surrounding settings."""
        return self._lm

    @property
    def adapter(self) -> dspy.Adapter:
        return self._adapter

    @property
    def tools(self) -> tuple[dspy.Tool, ...]:
        return self._tools

    def replace_lm(self, lm: dspy.BaseLM) -> Self:
        """The same module on another LM; this one stays as it is."""
        other = copy.copy(self)
        other._lm = lm
        return other

    def get_model_config(self) -> dict[str, Any]:
        """The LM's model and arguments, secrets masked; empty when the module has no LM of its own."""
        if self._lm is None:
            return {}
        config = {
            "model": self._lm.model,
            "model_type": self._lm.model_type,
            "cache": self._lm.cache,
            **self._lm.kwargs,
        }
        return {name: MASK if is_secret_name(name) and value else value for name, value in config.items()}

    def forward(
        self,
        *values: Any,
        context: str | Mapping[str, Any] | None = None,
        tools: ToolsType | None = None,
        config: Mapping[str, Any] | None = None,
        dspy_context: Mapping[str, Any] | None = None,
        call_params: Mapping[str, Any] | None = None,
        demos: Sequence[dspy.Example] = (),
        **kwargs: Any,
    ) -> dspy.Prediction:
        """Ask once. Inputs come by position or name, in the order of the signature without `context`.

        * context: as text, the input of that name; as a mapping, the same as dspy_context
        * tools: added to the module's own; one of the same name takes its place
        * config: LM settings of this call, such as {"temperature": 0.1, "max_tokens": 300}
        * dspy_context: DSPy settings of this call; names that are none of them count as LM settings
        * call_params and further keywords: inputs, arguments of the strategy (`max_iters`), or LM settings
        * demos: added to the module's own

        Raises ModelError when the answer cannot be read, what the LM raises, and ConfigError for wrong arguments.
        """
        call = self._prepare(values, context, tools, config, dspy_context, {**(call_params or {}), **kwargs}, demos)
        with _as_roma_errors(), dspy.context(**call.settings):
            return call.predictor(**call.inputs)

    async def aforward(
        self,
        *values: Any,
        context: str | Mapping[str, Any] | None = None,
        tools: ToolsType | None = None,
        config: Mapping[str, Any] | None = None,
        dspy_context: Mapping[str, Any] | None = None,
        call_params: Mapping[str, Any] | None = None,
        demos: Sequence[dspy.Example] = (),
        **kwargs: Any,
    ) -> dspy.Prediction:
        """`forward` without blocking the event loop."""
        call = self._prepare(values, context, tools, config, dspy_context, {**(call_params or {}), **kwargs}, demos)
        with _as_roma_errors(), dspy.context(**call.settings):
            return await call.predictor.acall(**call.inputs)

    def _prepare(
        self,
        values: Sequence[Any],
        context: str | Mapping[str, Any] | None,
        tools: ToolsType | None,
        config: Mapping[str, Any] | None,
        dspy_context: Mapping[str, Any] | None,
        further: dict[str, Any],
        demos: Sequence[dspy.Example],
    ) -> _Call:
        inputs = self._by_name(values)
        lm_settings = dict(config or {})
        settings = {"lm": self._lm or dspy.settings.lm, "adapter": self._adapter, "disable_history": True}
        settings |= self._context_defaults
        if isinstance(context, Mapping):
            dspy_context = {**context, **(dspy_context or {})}
        elif context is not None:
            inputs["context"] = context
        for name, value in (dspy_context or {}).items():
            (settings if name in _SETTINGS else lm_settings)[name] = value
        for name, value in further.items():
            own = name in self.signature.input_fields or name in _PREDICTOR_ARGUMENTS
            (inputs if own else lm_settings)[name] = value
        if settings["lm"] is None:
            raise KeyMissing(
                f"{type(self).__name__} has no LM", cure="give it lm= or model=, or enter dspy.context(lm=…)"
            )
        if lm_settings:
            inputs["config"] = lm_settings
        if self.demos or demos:
            inputs["demos"] = [*self.demos, *demos]
        return _Call(self._predictor_for(tools), settings, inputs)

    def _by_name(self, values: Sequence[Any]) -> dict[str, Any]:
        if len(values) > len(self._positional):
            raise ConfigError(f"{type(self).__name__} takes {', '.join(self._positional)}, not {len(values)} values")
        return dict(zip(self._positional, values, strict=False))

    def _predictor_for(self, tools: ToolsType | None) -> dspy.Module:
        if tools is None:
            return self.predictor
        together = merged(self._tools, as_tools(tools))
        # Tool objects made from the same functions ask for the same predictor.
        key = tuple((tool.name, tool.func) for tool in together)
        return self._with_tools.get(key, lambda: self._build(together))

    def _build(self, tools: Sequence[dspy.Tool]) -> dspy.Module:
        return build_predictor(self.strategy, self.signature, tools=tools, options=self._options)


def _chosen_signature(signature: type[dspy.Signature] | str, instructions: str | None) -> type[dspy.Signature]:
    try:
        chosen: Any = ensure_signature(signature)
    except ValueError as error:
        raise ConfigError(f"signature {signature!r} cannot be read: {error}") from error
    return chosen.with_instructions(load_instructions(instructions)) if instructions else chosen


def _chosen_lm(lm: dspy.BaseLM | None, model: str | None, model_config: Mapping[str, Any] | None) -> dspy.BaseLM | None:
    if lm is not None and (model is not None or model_config is not None):
        raise ConfigError("give either lm or model with model_config, not both")
    if model_config is not None and model is None:
        raise ConfigError("model_config needs a model")
    return dspy.LM(model, **(model_config or {})) if model is not None else lm


@contextmanager
def _as_roma_errors() -> Generator[None]:
    """Turn DSPy's errors into ours where we have one for the cause; every other error passes as it is."""
    try:
        yield
    except LMUnexpectedError as error:
        # DSPy wraps what an engine raises; our LM layer raises our errors.
        if isinstance(error.__cause__, RomaError):
            raise error.__cause__ from None
        raise
    except LMUnsupportedFeatureError as error:
        raise ConfigError(
            f"the model's endpoint takes no such setting: {str(error).splitlines()[0]}",
            cure="correct strategy_config: its other keys are settings of the model, such as temperature",
        ) from error
    except ContextWindowExceededError as error:
        raise ContextTooLong(str(error)) from error
    except UnreadableAnswer as error:
        kind = AnswerUnreadable if error.lm_response else AnswerEmpty
        raise kind(f"the answer cannot be used: {error.reason}") from error
    except AdapterParseError as error:
        raise AnswerUnreadable(str(error).splitlines()[0]) from error
