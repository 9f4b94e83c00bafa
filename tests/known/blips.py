"""Short trouble at a lone provider: the openai SDK straight, and through a new gateway each time, all in one process.

Calls are under way when the provider begins to answer 503, for a while, at once; it takes 0.3 s for an answer otherwise.

    python -m tests.known.blips     # a minute and a half; the table of docs/benchmarks.md
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import openai
import uvicorn

from gateway.demo.storm.storm import gateway_of
from tests.e2e.harness import chat

WARM = 10
ANSWER_S = 0.3
TRIALS = ((10, 1.0), (50, 0.3), (50, 1.0), (50, 3.0), (50, 20.0), (200, 1.0))
"""Calls under way, and for how many seconds the provider is in trouble."""
_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}
_ERROR = {"error": {"message": "The server is overloaded", "type": "server_error"}}


class Provider:
    """Answers chats; 503 while it is in trouble."""

    def __init__(self) -> None:
        self.requests = 0
        self._well_at = 0.0

    def stumble(self, for_s: float) -> None:
        self._well_at = time.monotonic() + for_s

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        self.requests += 1
        is_well = time.monotonic() >= self._well_at
        if is_well:
            await asyncio.sleep(ANSWER_S)
        body = json.dumps(_ANSWER if is_well else _ERROR).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200 if is_well else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the calls."""

    served: int
    slowest_s: float
    requests: int

    def __str__(self) -> str:
        return f"{self.served} ({self.slowest_s:.1f} s, {self.requests} requests)"


async def trial(provider: Provider, base_url: str, calls: int, lasts_s: float) -> Outcome:
    """So many calls of the SDK at its defaults, made when the trouble begins."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused") as sdk:
        for _ in range(WARM):
            await sdk.chat.completions.create(**chat())
        began_at, before = time.monotonic(), provider.requests
        provider.stumble(lasts_s)
        made = [sdk.chat.completions.create(**chat()) for _ in range(calls)]
        answers = await asyncio.gather(*made, return_exceptions=True)
        served = sum(not isinstance(answer, BaseException) for answer in answers)
        return Outcome(served, time.monotonic() - began_at, provider.requests - before)


async def main() -> None:
    """Run all trials, and print them as rows of a table."""
    provider = Provider()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(provider, log_level="error"))
    serving = asyncio.create_task(server.serve([listener]))
    base_url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    config = {
        "providers": {"lone": {"dialect": "openai", "base_url": base_url, "api_key": "unused"}},
        "models": {"gpt-4o": {"targets": [{"provider": "lone"}]}},
    }
    sys.stdout.write("| calls under way | 503 for | straight | through the gateway |\n|---|---|---|---|\n")
    for calls, lasts_s in TRIALS:
        straight = await trial(provider, base_url, calls, lasts_s)
        await asyncio.sleep(max(0.0, lasts_s - straight.slowest_s))  # the trouble may last longer than the SDK's tries
        async with gateway_of(config) as through_url:
            through = await trial(provider, through_url, calls, lasts_s)
        sys.stdout.write(f"| {calls} | {lasts_s:g} s | {straight} | {through} |\n")
        sys.stdout.flush()
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
