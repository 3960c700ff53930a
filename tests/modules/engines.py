"""A DSPy engine that answers from a list, and notes what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import dspy
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from roma_ray.lm import scope

Reply = str | BaseException | Callable[[Request], str]


class Engine:
    """The sync engine. The last of `replies` is given again and again; an exception among them is raised.

    A reply that starts with CUT ends with finish_reason `length`.
    """

    supported_params = frozenset({"response_format"})

    def __init__(self, replies: Sequence[Reply], *, obeys_schema: bool = False) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        self.supports_response_schema = obeys_schema

    def complete(self, request: Request) -> Response:
        reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(request)
        if isinstance(reply, BaseException):
            raise reply
        text = reply(request) if callable(reply) else reply
        cut, text = text.startswith("CUT"), text.removeprefix("CUT")
        reason = "length" if cut else "stop"
        current = scope.current.get()
        if current is not None:
            # What the call gate does.
            current.last_finish_reason, current.last_text = reason, text
        message = Message(role="assistant", parts=(TextPart(text=text),))
        usage = Usage(input_tokens=7, output_tokens=3)
        return Response(id="r", model=request.model, message=message, finish_reason=reason, usage=usage)

    def stream(self, request: Request) -> Any:
        raise NotImplementedError

    def close(self) -> None: ...

    def __deepcopy__(self, memo: object) -> Engine:
        return self


class AsyncEngine:
    """The same engine, awaited; it lets others run before it answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def complete(self, request: Request) -> Response:
        await asyncio.sleep(0)
        return self.engine.complete(request)

    def stream(self, request: Request) -> Any:
        raise NotImplementedError

    async def aclose(self) -> None: ...


def lm_saying(*replies: Reply, obeys_schema: bool = False, **settings: Any) -> tuple[dspy.LM, Engine]:
    """An LM that gives `replies` in turn, and its engine."""
    engine = Engine(replies, obeys_schema=obeys_schema)
    lm = dspy.LM("openai/test", engine=engine, async_engine=AsyncEngine(engine), cache=False, num_retries=0, **settings)
    return lm, engine


def chat(**fields: Any) -> str:
    """An answer in the chat form."""
    return "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items()) + "\n\n[[ ## completed ## ]]"


def prompt_of(request: Request) -> str:
    """Everything that the model reads, as one text."""
    parts = [part.text for message in request.messages for part in message.parts if isinstance(part, TextPart)]
    return "\n".join([str(request.system or ""), *parts])
