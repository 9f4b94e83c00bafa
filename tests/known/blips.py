"""Short trouble at a lone provider: the openai SDK straight, and through a new gateway each time, all in one process.

Calls are under way when the provider begins to answer 503, for a while, at once; it takes 0.3 s for an answer otherwise. Or it
answers 429 to more than ten a second, with the time to wait or without.

    python -m tests.known.blips     # four minutes; the tables of docs/benchmarks.md
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

from gateway.demo.storm import gateway_of
from tests.e2e.harness import chat

WARM = 10
ANSWER_S = 0.3
TRIALS = [(calls, lasts_s) for lasts_s in (0.3, 1.0, 3.0, 20.0) for calls in (10, 50, 200)]
"""Calls under way, and for how many seconds the provider is in trouble."""
LIMITED = [(calls, has_hint) for has_hint in (True, False) for calls in (10, 50, 200)]
"""Calls at once, and whether a 429 says when to come back; the limit stands nowhere in the gateway's config."""
PER_S, AT_ONCE = 10.0, 10.0
"""What a limited provider lets in: ten a second, ten at once (a token bucket)."""
_ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-4o",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
}
_ERROR = {"error": {"message": "The server is overloaded", "type": "server_error"}}
_TOO_MANY = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}


class Provider:
    """Answers chats; 503 while it is in trouble, 429 to what is more than its limit, where it has one."""

    def __init__(self) -> None:
        self.requests = 0
        self.is_limited = self.has_hint = False
        self._well_at = self._full_at = 0.0

    def stumble(self, for_s: float) -> None:
        self._well_at = time.monotonic() + for_s

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Any]) -> None:
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        self.requests += 1
        status, headers = 200, [(b"content-type", b"application/json")]
        said: Any = _ANSWER
        if time.monotonic() < self._well_at:
            status, said = 503, _ERROR
        elif self.is_limited and (wait_s := self._take()) > 0:
            status, said = 429, _TOO_MANY
            if self.has_hint:
                headers += (b"retry-after-ms", b"%d" % (wait_s * 1000 + 1)), (b"retry-after", b"%d" % (wait_s + 1))
        else:
            await asyncio.sleep(ANSWER_S)
        body = json.dumps(said).encode()
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _take(self) -> float:
        """Takes one request of the limit; returns the seconds until there is one, where there is none."""
        now = time.monotonic()
        full_at = max(self._full_at, now) + 1 / PER_S
        if full_at - now > AT_ONCE / PER_S:
            return full_at - now - AT_ONCE / PER_S
        self._full_at = full_at
        return 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the calls."""

    served: int
    slowest_s: float
    requests: int

    def __str__(self) -> str:
        return f"{self.served} ({self.slowest_s:.1f} s, {self.requests} requests)"


async def trial(provider: Provider, base_url: str, calls: int, lasts_s: float) -> Outcome:
    """So many calls of the SDK at its defaults, made when the trouble begins; 0 s: in a limit."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="unused") as sdk:
        provider.is_limited = False
        for _ in range(WARM):
            await sdk.chat.completions.create(**chat())
        provider.is_limited = not lasts_s
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
    sys.stdout.write("\n| calls at once | 429 | straight | through the gateway |\n|---|---|---|---|\n")
    for calls, provider.has_hint in LIMITED:
        straight = await trial(provider, base_url, calls, 0.0)
        async with gateway_of(config) as through_url:
            through = await trial(provider, through_url, calls, 0.0)
        hint = "with the time to wait" if provider.has_hint else "without"
        sys.stdout.write(f"| {calls} | {hint} | {straight} | {through} |\n")
        sys.stdout.flush()
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
