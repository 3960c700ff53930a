"""An endpoint that has one answer to everything, for texts that the scripted server cannot send."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def answering(content: str) -> AsyncGenerator[str]:
    """The address, for `lm.api_base`, of an endpoint that answers `content` while the block lasts."""

    async def answer(_: web.Request) -> web.Response:
        message = {"role": "assistant", "content": content}
        # The standard library writes a lone surrogate as its escape, as servers do.
        body = json.dumps({"id": "1", "model": "m", "choices": [{"index": 0, "message": message}]})
        return web.Response(text=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
