"""`python -m tests.scripted.server --port 0`: an OpenAI-compatible chat server that answers by rule.

It prints one JSON line with its URL when it is ready. `POST /v1/chat/completions` and `GET /v1/models` are the API;
`GET /stats`, `GET /log`, `POST /reset` and `POST /release` are for tests (see `client.py`). Times are wall-clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
from aiohttp import web

from tests.scripted.answers import echo_of, render, values_for, with_wrong_types, wrapped_in_thoughts
from tests.scripted.directives import MODIFIERS, Fault, read_directives
from tests.scripted.prompts import Ask, read_ask, text_of

_MESSAGE_CHARS = 20_000
_BODY_BYTES = 256 * 2**20
_CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class Settings:
    """What `/reset` can set. `directives` hold for every goal, in addition to its own."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    seed: int = 0
    keep_messages: bool = True
    directives: str = ""
    api_key: str = ""
    """When set, any other key is refused with 401."""


@dataclass(slots=True)
class Entry:
    """One request; `t_answered` is None until the answer is written, `gone` says that the client left before,
    `dropped` that the server hung up on it.
    """

    id: int
    role: str
    goal: str
    t_received: float
    prompt_tokens: int
    messages: list[dict[str, str]]
    t_answered: float | None = None
    status: int | None = None
    completion_tokens: int = 0
    gone: bool = False
    dropped: bool = False


@dataclass(slots=True)
class State:
    """Everything that `/reset` forgets."""

    settings: Settings = field(default_factory=Settings)
    log: list[Entry] = field(default_factory=list)
    open_ids: set[int] = field(default_factory=set)
    max_open: int = 0
    asks: Counter[tuple[str, str]] = field(default_factory=Counter)
    used: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    random: random.Random = field(default_factory=random.Random)


class Server:
    """The handlers around one State."""

    def __init__(self, settings: Settings) -> None:
        self.state = State(settings, random=random.Random(settings.seed))
        self._next_id = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/stats", self.stats)
        app.router.add_get("/log", self.log)
        app.router.add_post("/reset", self.reset)
        app.router.add_post("/release", self.release)
        return app

    async def chat(self, request: web.Request) -> web.StreamResponse:
        state = self.state
        body = orjson.loads(await request.read())
        ask = read_ask(body)
        entry = self._received(body, ask, state)
        try:
            response = await self._answer(request, body, ask, entry, state)
            if response is None:
                entry.dropped = True
                return _hang_up(request)
            await response.prepare(request)
            await response.write_eof()
            entry.t_answered = time.time()
            entry.status = response.status
            return response
        except (asyncio.CancelledError, ConnectionError):
            entry.gone = True
            raise
        finally:
            state.open_ids.discard(entry.id)

    def _received(self, body: dict[str, Any], ask: Ask, state: State) -> Entry:
        self._next_id += 1
        texts = [(message["role"], text_of(message)) for message in body["messages"]]
        kept = [{"role": r, "content": t[:_MESSAGE_CHARS]} for r, t in texts] if state.settings.keep_messages else []
        tokens = max(1, sum(len(text) for _, text in texts) // _CHARS_PER_TOKEN)
        entry = Entry(self._next_id, ask.role, ask.goal, time.time(), tokens, kept)
        state.log.append(entry)
        state.open_ids.add(entry.id)
        state.max_open = max(state.max_open, len(state.open_ids))
        state.asks[ask.role, ask.goal] += 1
        return entry

    async def _answer(
        self, request: web.Request, body: dict[str, Any], ask: Ask, entry: Entry, state: State
    ) -> web.Response | None:
        """The response, or None where the connection is to be dropped."""
        key = state.settings.api_key
        if key and request.headers.get("Authorization") != f"Bearer {key}":
            return _error(Fault("", "FAIL", "401"), entry)
        # Numbers are taken before the first await: what the n-th ask gets must not depend on who waits longest.
        ask_number = state.asks[ask.role, ask.goal]
        faults = [f for f in (*read_directives(ask.goal).faults, *_general(state)) if f.concerns(ask.role)]
        modifiers = {fault.kind: fault for fault in faults if fault.kind in MODIFIERS}
        fault = _next_fault(faults, ask, state)
        await self._wait(modifiers, fault, state)
        if "WINDOW" in modifiers and entry.prompt_tokens > float(modifiers["WINDOW"].value):
            return _error(Fault("", "FAIL", "context"), entry)
        if fault and fault.kind == "FAIL":
            return _error(fault, entry)
        if fault and fault.kind == "DROP":
            return None
        content, finish_reason = _content(ask, fault, ask_number)
        if "THINK" in modifiers:
            content = wrapped_in_thoughts(content, ask)
        return _completion(body, entry, content, finish_reason)

    async def _wait(self, modifiers: dict[str, Fault], fault: Fault | None, state: State) -> None:
        settings = state.settings
        latency_s = float(modifiers["LAT"].value) if "LAT" in modifiers else settings.latency_s
        if settings.jitter_s:
            latency_s += state.random.random() * settings.jitter_s
        if fault and fault.kind == "HANG":
            latency_s = float(fault.value)
        if latency_s:
            await asyncio.sleep(latency_s)
        if "HOLD" in modifiers:
            await state.released.wait()

    async def models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "tests"}]})

    async def stats(self, request: web.Request) -> web.Response:
        log = self.state.log
        answered = [entry for entry in log if entry.status == 200]
        return _json(
            {
                "requests": len(log),
                "by_role": Counter(entry.role for entry in log),
                "answered_by_role": Counter(entry.role for entry in answered),
                "by_status": Counter(str(entry.status) for entry in log if entry.status),
                "open": len(self.state.open_ids),
                "max_open": self.state.max_open,
                "answered": len(answered),
                "failed": sum(entry.status not in (None, 200) for entry in log),
                "gone": sum(entry.gone for entry in log),
                "dropped": sum(entry.dropped for entry in log),
                "prompt_tokens": sum(entry.prompt_tokens for entry in answered),
                "completion_tokens": sum(entry.completion_tokens for entry in answered),
                "open_ids": sorted(self.state.open_ids),
                "answered_ids": [entry.id for entry in answered],
            }
        )

    async def log(self, request: web.Request) -> web.Response:
        return _json([asdict(entry) for entry in self.state.log])

    async def reset(self, request: web.Request) -> web.Response:
        """Forget everything, give up held requests, and take new settings; those not named get their defaults."""
        settings = Settings(**(await request.json() if request.can_read_body else {}))
        self.state.released.set()
        self.state = State(settings, random=random.Random(settings.seed))
        return _json({"ok": True})

    async def release(self, request: web.Request) -> web.Response:
        """Let every held request go on, and hold none from now on."""
        self.state.released.set()
        return _json({"ok": True})


def _general(state: State) -> tuple[Fault, ...]:
    return read_directives(state.settings.directives).faults


def _next_fault(faults: list[Fault], ask: Ask, state: State) -> Fault | None:
    """The first fault that is not used up, counted per role and goal."""
    for position, fault in enumerate(faults):
        if fault.kind in MODIFIERS:
            continue
        key = (ask.role, ask.goal, position)
        if fault.times is None or state.used[key] < fault.times:
            state.used[key] += 1
            return fault
    return None


def _content(ask: Ask, fault: Fault | None, ask_number: int) -> tuple[str, str]:
    """The text of the answer and its finish reason."""
    values = values_for(ask, ask_number, _verdict(ask, ask_number))
    right = render(values, ask)
    match fault.kind if fault else "":
        case "MALFORMED":
            return "I would rather not follow a format today.", "stop"
        case "EMPTY":
            return "", "stop"
        case "TRUNCATED":
            return right[: len(right) * 3 // 5], "length"
        case "ECHO":
            return echo_of(ask), "stop"
        case "WRONGTYPES":
            return render(with_wrong_types(values), ask), "stop"
        case _:
            return right, "stop"


def _verdict(ask: Ask, ask_number: int) -> bool:
    said, _, times = read_directives(ask.goal).words.get("VERDICT", "true").partition(":")
    return said == "true" or bool(times and ask_number > int(times))


_NAMED_FAILURES: dict[str, tuple[int, str, str]] = {
    "context": (400, "context_length_exceeded", "This model's maximum context length is exceeded by your messages."),
    "quota": (429, "rate_limit_exceeded", "Request too large on tokens per min (TPM): Limit 10, Requested 100."),
    "broke": (
        429,
        "insufficient_quota",
        "You exceeded your current quota, check your plan and billing details.",
    ),
}
_REASONS = {
    400: ("invalid_request", "The request is not valid."),
    401: ("invalid_api_key", "Incorrect API key provided."),
    402: ("insufficient_funds", "Insufficient credits: add money to go on."),
    404: ("model_not_found", "The model does not exist."),
    429: ("rate_limit_exceeded", "Rate limit reached, try again later."),
    503: ("overloaded", "The server is overloaded."),
}


def _error(fault: Fault, entry: Entry) -> web.Response:
    if fault.value in _NAMED_FAILURES:
        status, code, message = _NAMED_FAILURES[fault.value]
    else:
        status = int(fault.value)
        code, message = _REASONS.get(status, ("server_error", "Something broke."))
    kind = "tokens" if fault.value == "quota" else "server_error" if status >= 500 else "invalid_request_error"
    headers = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
    error = {"message": f"{message} (request {entry.id})", "type": kind, "code": code, "param": None}
    return _json({"error": error}, status=status, headers=headers)


def _completion(body: dict[str, Any], entry: Entry, content: str, finish_reason: str) -> web.Response:
    wanted = body.get("n") or 1
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": finish_reason}
    entry.completion_tokens = max(1, len(content) // _CHARS_PER_TOKEN) * wanted
    usage = {"prompt_tokens": entry.prompt_tokens, "completion_tokens": entry.completion_tokens}
    usage["total_tokens"] = sum(usage.values())
    return _json(
        {
            "id": f"scripted-{entry.id}",
            "object": "chat.completion",
            "created": int(entry.t_received),
            "model": body.get("model", "scripted"),
            "choices": [{"index": index, **choice} for index in range(wanted)],
            "usage": usage,
        }
    )


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _json(data: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def serve(settings: Settings, port: int, *, stop_with_stdin: bool) -> None:
    """Serve on 127.0.0.1 until cancelled, or until stdin ends where that is asked for."""
    # Without handler cancellation a request whose client has gone would count as open until its latency is over.
    runner = web.AppRunner(Server(settings).app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    real_port = runner.addresses[0][1]
    print(json.dumps({"url": f"http://127.0.0.1:{real_port}/v1"}), flush=True)
    if stop_with_stdin:
        await asyncio.to_thread(sys.stdin.read)
    else:
        await asyncio.Event().wait()
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description="An OpenAI-compatible chat server that answers by rule.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--answer-delay", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--jitter", type=float, default=0.0, help="up to so many seconds more, by a seeded draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-messages", action="store_true", help="keep no prompts in the log")
    parser.add_argument("--stop-with-stdin", action="store_true", help="end when stdin ends")
    args = parser.parse_args()
    settings = Settings(args.answer_delay, args.jitter, args.seed, not args.no_messages)
    try:
        asyncio.run(serve(settings, args.port, stop_with_stdin=args.stop_with_stdin))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
