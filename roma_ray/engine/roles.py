"""What each role is asked, and what becomes of a model's second fault.

Atomizer    EXECUTE, with a warning
Planner     the plan as repaired, else atomic
Executor    its raw text if there is any, else failed
Aggregator  the children's results joined, partial
Verifier    no verdict, the candidate is kept, with a warning
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import orjson

from roma_ray.config import Config, Role
from roma_ray.engine.context import Material, build_context, build_results, in_groups
from roma_ray.engine.plan import PlanRules, check_plan, read_plan
from roma_ray.engine.request import SessionArgument, StepRequest
from roma_ray.errors import AllChildrenFailed, AnswerUnreadable, ContextTooLong, LimitReached, ModelError, WorldError
from roma_ray.modules import Asked, BaseModule, ask
from roma_ray.texts import whole
from roma_ray.types import Fault, Json, NodeStatus, NodeType, Plan, TaskType

_HALVINGS = 3
_ATOMIZER_SHARE_TOKENS = 1_000
_TEXT_TASK_TYPES = (TaskType.RETRIEVE, TaskType.WRITE, TaskType.THINK, TaskType.CODE_INTERPRET)


class Session(Protocol):
    """What the roles need of the node session."""

    argument: SessionArgument
    config: Config

    def module(self, role: Role, task_type: TaskType | None = None) -> BaseModule: ...


@dataclass(frozen=True, slots=True)
class Desk:
    """One step being worked on: its session, its request, and its inputs as texts."""

    session: Session
    request: StepRequest
    materials: Sequence[Material]


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A value with how good it is, before it is verified."""

    value: Json
    status: NodeStatus = NodeStatus.COMPLETED
    sources: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])
    fault: Fault | None = None
    limit_reached: str = ""


def offered_task_types(config: Config) -> tuple[TaskType, ...]:
    """What some Executor can do: text, and what the config has an Executor of its own for."""
    return tuple(dict.fromkeys((*_TEXT_TASK_TYPES, *config.agents.executor.by_type)))


async def atomize(desk: Desk) -> tuple[NodeType, list[str]]:
    """Whether the goal is planned or executed. `node_type` wins over `is_atomic` where the two contradict."""
    if desk.request.decided is not None:
        return desk.request.decided, []
    asked = await _ask(desk, "atomizer", share_tokens=_ATOMIZER_SHARE_TOKENS, goal=desk.request.goal)
    if asked.prediction is None:
        return NodeType.EXECUTE, [f"the Atomizer could not decide ({_said(asked)}); the goal is done at once"]
    return NodeType(asked.prediction.node_type), list(asked.warnings)


async def plan(desk: Desk) -> tuple[Plan | None, list[str]]:
    """A plan that passes all checks, or None where the goal has to be done at once; with what was repaired."""
    rules = PlanRules(
        max_subtasks=desk.request.max_subtasks,
        task_types=offered_task_types(desk.session.config),
        ancestors=(*desk.request.ancestors, desk.request.goal),
    )

    def check(prediction: Any) -> None:
        check_plan(prediction.subtasks, prediction.dependencies_graph, rules)

    note = f"Give at most {rules.max_subtasks} subtasks."
    asked = await _ask(desk, "planner", check=check, notes=(note,), goal=desk.request.goal)
    if asked.prediction is None:
        return None, [f"the Planner gave no plan ({_said(asked)}); the goal is done at once"]
    read = read_plan(asked.prediction.subtasks, asked.prediction.dependencies_graph, rules)
    return read.plan, [*asked.warnings, *(f"plan repaired: {repair}" for repair in read.repairs)]


async def execute(desk: Desk) -> Candidate:
    """The Executor's answer. Raises what the LM layer raises, and the model's own error when nothing came out."""
    notes, check = _answer_form(desk, "output")
    asked = await _ask(desk, "executor", check=check, notes=notes, goal=desk.request.goal)
    if asked.prediction is None:
        return _raw_candidate(asked)
    output, sources = _in_form(desk, asked.prediction.output), asked.prediction.sources or []
    candidate = Candidate(value=output, sources=[str(s) for s in sources], warnings=list(asked.warnings))
    if asked.fault is not None:
        candidate.status, candidate.fault = NodeStatus.PARTIAL, asked.fault
        candidate.warnings.append(f"the Executor's answer is kept although {asked.fault.message}")
    return candidate


async def aggregate(desk: Desk) -> Candidate:
    """One result out of the children's. Some child is there, else the coordinator would not ask."""
    missing = [m.spec for m in desk.materials if m.text is None]
    try:
        candidate = await _aggregate(desk, desk.materials)
    except (ModelError, WorldError, LimitReached) as error:
        candidate = _joined(desk, error.fault)
        candidate.limit_reached = error.limit if isinstance(error, LimitReached) else ""
    candidate.sources = [source for m in desk.materials for source in m.spec.sources]
    if any(m.spec.status is not NodeStatus.COMPLETED for m in desk.materials):
        candidate.status = NodeStatus.PARTIAL
    for spec in missing:
        reason = f": {spec.fault.message}" if spec.fault else ""
        candidate.warnings.append(f"made without {spec.node_id} ({spec.status}{reason})")
    return candidate


async def verify(desk: Desk, candidate: Candidate) -> tuple[bool | None, str]:
    """The Verifier's verdict on a candidate and its feedback; None where it could not give one."""
    try:
        asked = await _ask(desk, "verifier", goal=desk.request.goal, candidate_output=_text(candidate.value))
    except (ModelError, WorldError, LimitReached) as error:
        candidate.warnings.append(f"not verified: {error.message}")
        return None, ""
    if asked.prediction is None:
        candidate.warnings.append(f"not verified: {_said(asked)}")
        return None, ""
    feedback = str(asked.prediction.feedback or "")
    if not asked.prediction.verdict:
        candidate.warnings.append(f"the Verifier did not accept this: {feedback or 'no reason given'}")
    return bool(asked.prediction.verdict), feedback


def plain_value(value: Any) -> Json:
    """A model's output as plain data."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    try:
        return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))
    except (TypeError, orjson.JSONEncodeError):
        return str(value)


async def _aggregate(desk: Desk, materials: Sequence[Material]) -> Candidate:
    share = _share(desk, "aggregator")
    groups = in_groups([len(m.text or "") for m in materials], share_tokens=share)
    if len(groups) > 1:
        folded = [await _aggregate_once(desk, materials[g.start : g.stop]) for g in groups]
        warnings = [w for candidate in folded for w in candidate.warnings]
        # A group's result stands for its children; the name of the group's first child keeps the order readable.
        stand_ins = [
            Material(spec=materials[g.start].spec, text=_text(c.value)) for g, c in zip(groups, folded, strict=True)
        ]
        candidate = await _aggregate(desk, stand_ins)
        candidate.warnings[:0] = warnings
        return candidate
    return await _aggregate_once(desk, materials, final=True)


async def _aggregate_once(desk: Desk, materials: Sequence[Material], *, final: bool = False) -> Candidate:
    notes, check = _answer_form(desk, "synthesized_result") if final else ((), None)
    own = Desk(desk.session, desk.request, ())
    asked = await _ask(own, "aggregator", check=check, notes=notes, results=materials, original_goal=desk.request.goal)
    if asked.prediction is None:
        assert asked.fault is not None
        return _joined(Desk(desk.session, desk.request, materials), asked.fault)
    result = asked.prediction.synthesized_result
    candidate = Candidate(value=_in_form(desk, result) if final else str(result), warnings=list(asked.warnings))
    if asked.fault is not None:
        candidate.status, candidate.fault = NodeStatus.PARTIAL, asked.fault
        candidate.warnings.append(f"the Aggregator's answer is kept although {asked.fault.message}")
    return candidate


def _joined(desk: Desk, fault: Fault) -> Candidate:
    there = [m for m in desk.materials if m.text is not None]
    if not there:
        raise AllChildrenFailed("there is nothing to put together")
    return Candidate(
        value="\n\n".join(f"{m.spec.goal}\n{m.text}" for m in there),
        status=NodeStatus.PARTIAL,
        fault=fault,
        warnings=[f"the Aggregator gave no result ({fault.message}); its inputs are joined as they are"],
    )


def _raw_candidate(asked: Asked) -> Candidate:
    assert asked.fault is not None
    if not asked.raw.strip():
        return Candidate(value=None, status=NodeStatus.FAILED, fault=asked.fault)
    cut = asked.fault.code == "R0201"
    return Candidate(
        value=asked.raw.strip(),
        status=NodeStatus.PARTIAL if cut else NodeStatus.COMPLETED,
        fault=asked.fault if cut else None,
        warnings=[f"the Executor's text is taken as it is ({asked.fault.message})"],
    )


async def _ask(
    desk: Desk,
    role: Role,
    *,
    check: Callable[[Any], None] | None = None,
    notes: Sequence[str] = (),
    share_tokens: int | None = None,
    results: Sequence[Material] | None = None,
    **inputs: Any,
) -> Asked:
    """Ask one role; when the prompt does not fit the model, give the inputs half the room, at most three times."""
    module = desk.session.module(role, desk.request.task_type)
    share = min(share_tokens or _share(desk, role), _share(desk, role))
    for halving in range(_HALVINGS + 1):
        context = build_context(
            desk.request, desk.materials, day=desk.session.argument.day, share_tokens=share, notes=notes
        )
        if results is not None:
            inputs["subtasks_results"] = build_results(results, share_tokens=share)
        try:
            return _whole(await ask(module, check=check, context=context, **inputs))
        except ContextTooLong:
            if halving == _HALVINGS:
                raise
            share //= 2
    raise AssertionError("unreachable")


def _whole(asked: Asked) -> Asked:
    """What was asked, with texts that can be written down: in JSON half an emoji is well-formed until it is read."""
    if asked.prediction is not None:
        for name, value in list(asked.prediction.items()):
            asked.prediction[name] = whole(value)
    return replace(asked, warnings=whole(asked.warnings))


def _share(desk: Desk, role: Role) -> int:
    return desk.session.config.agents.of(role, desk.request.task_type).lm.context_tokens


def _answer_form(desk: Desk, output_field: str) -> tuple[tuple[str, ...], Callable[[Any], None] | None]:
    """How the final answer is to look; only the root's own answer is bound to it."""
    if not desk.request.is_root:
        return (), None
    schema: Mapping[str, Any] | None = desk.session.argument.answer_schema
    if schema is not None:
        text = orjson.dumps(schema).decode()
        return (f"`{output_field}` must be JSON that fits this schema: {text}",), lambda p: _fits(
            p, output_field, schema
        )
    if desk.session.config.answer == "short":
        return (f"`{output_field}` must be the bare answer: as few words as possible, no sentence.",), None
    return (), None


def _in_form(desk: Desk, value: Any) -> Json:
    """The final answer as what was asked for: JSON where there is a schema and it can be read, plain data elsewhere."""
    if desk.request.is_root and desk.session.argument.answer_schema is not None:
        try:
            return parse_json_answer(value)
        except ValueError:
            return plain_value(value)
    return plain_value(value)


def _fits(prediction: Any, output_field: str, schema: Mapping[str, Any]) -> None:
    # Imported here: only an answer with a schema pays for it.
    import jsonschema

    try:
        jsonschema.validate(parse_json_answer(getattr(prediction, output_field)), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        reason = error.message if isinstance(error, jsonschema.ValidationError) else str(error)
        raise AnswerUnreadable(f"`{output_field}` does not fit the schema: {reason}") from error


def parse_json_answer(value: Any) -> Json:
    """A final answer as JSON: text is parsed, with a code fence around it allowed. Raises ValueError."""
    if not isinstance(value, str):
        return plain_value(value)
    text = value.strip()
    if text.startswith("```"):
        text = text.split("\n", 1)[-1].rsplit("```", 1)[0]
    return orjson.loads(text)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _said(asked: Asked) -> str:
    return asked.fault.message if asked.fault else "no reason given"
