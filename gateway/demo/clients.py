"""The app's client: the openai SDK with its defaults, or its documented retry rules where it is not installed.

It must not know what it calls. Invariant: `on_answer` is called with every response, retried ones included.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from importlib.util import find_spec
from math import isfinite
from typing import Any, Protocol

import httpx

from gateway.core.http.client.transport import Http1Transport

MODEL = "gpt-4o"
API_KEY = "sk-demo"
MAX_RETRIES = 2
_CONNECT_S, _READ_S = 5.0, 600.0
_LONGEST_WAIT_S = 120.0

OnAnswer = Callable[[int, Mapping[str, str]], None]
"""Is called with the status and headers of a response."""
Ask = Callable[[int], Awaitable[int]]
"""Makes the call of this number and returns its tokens; raises CallFailedError."""
Connect = Callable[[str, OnAnswer], AbstractAsyncContextManager[Ask]]
"""Opens a client of a base URL."""


@dataclass(frozen=True, slots=True)
class Habits:
    """An app's settings of its client where they differ from the defaults; `sent` is called for every request."""

    is_streamed: Callable[[int], bool] = lambda _number: False
    """Returns whether the call of this number is streamed."""
    timeout_s: float | None = None
    """The timeout in seconds of a try; None: the SDK's."""
    sent: Callable[[], None] = lambda: None


class CallFailedError(Exception):
    """The app's error when its client gives up."""


def choose_client() -> tuple[str, Client]:
    """Returns the name of the demo's client, and the client."""
    if find_spec("openai") is not None:
        return f"openai {version('openai')} and its own {MAX_RETRIES} retries", sdk_client
    return f"the openai SDK's rules for {MAX_RETRIES} retries over httpx (the SDK is not installed)", plain_client


class AnswerBrokenError(CallFailedError):
    """The client's error after the answer had begun."""


class Client(Protocol):
    """A `Connect` with habits."""

    def __call__(
        self, base_url: str, on_answer: OnAnswer, /, *, habits: Habits = ...
    ) -> AbstractAsyncContextManager[Ask]: ...


@asynccontextmanager
async def sdk_client(base_url: str, on_answer: OnAnswer, *, habits: Habits = Habits()) -> AsyncIterator[Ask]:
    """Returns the openai SDK with its defaults."""
    import openai  # optional, and slow to import: the other commands must not wait for it

    async def leave(_request: Any) -> None:
        habits.sent()

    async def listen(response: Any) -> None:
        on_answer(response.status_code, response.headers)

    async def ask(number: int) -> int:
        try:
            if habits.is_streamed(number):
                return await read(await client.chat.completions.create(**_body(number), stream=True))
            answer = await client.chat.completions.create(**_body(number))
        except CallFailedError:
            raise
        except Exception as error:  # the SDK's own, or of its HTTP library where a connection dies under it
            raise CallFailedError(str(error)) from error
        return answer.usage.total_tokens if answer.usage else 0

    async def read(stream: Any) -> int:
        tokens, is_whole = 0, False
        try:
            async for chunk in stream:
                for choice in chunk.choices:
                    tokens += bool(choice.delta.content)
                    is_whole = is_whole or choice.finish_reason is not None
        except Exception as error:  # the SDK lets errors of its HTTP library through
            raise AnswerBrokenError(str(error)) from error
        if not is_whole:
            raise AnswerBrokenError("the stream ended without an end")
        return tokens

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [leave], "response": [listen]}
    http = openai.DefaultAsyncHttpxClient(event_hooks=hooks, trust_env=False)
    timeout = openai.NOT_GIVEN if habits.timeout_s is None else habits.timeout_s
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key=API_KEY, max_retries=MAX_RETRIES, http_client=http, timeout=timeout
    ) as client:
        yield ask


@asynccontextmanager
async def plain_client(
    base_url: str,
    on_answer: OnAnswer,
    *,
    habits: Habits = Habits(),
    transport: httpx.AsyncBaseTransport | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    draw: Callable[[], float] = random.random,
) -> AsyncIterator[Ask]:
    """Returns a client with only the SDK's retry rules, which is many times faster; `draw` returns numbers from 0 to 1."""

    read_timeout_s = _READ_S if habits.timeout_s is None else habits.timeout_s

    async def attempt(number: int, retries: int) -> httpx.Response | None:
        headers = {
            "authorization": f"Bearer {API_KEY}",
            "x-stainless-retry-count": str(retries),
            "x-stainless-read-timeout": f"{read_timeout_s:g}",
        }
        body = _body(number) | ({"stream": True} if habits.is_streamed(number) else {})
        timeouts = {"connect": _CONNECT_S, "read": read_timeout_s}
        request = httpx.Request(
            "POST", f"{base_url}/chat/completions", json=body, headers=headers, extensions={"timeout": timeouts}
        )
        habits.sent()
        try:
            response = await sender.handle_async_request(request)
        except httpx.TransportError:
            return None
        on_answer(response.status_code, response.headers)
        try:
            await response.aread()
        except httpx.TransportError as error:
            if habits.is_streamed(number):
                raise AnswerBrokenError(str(error)) from error
            return None
        return response

    def tokens_of(number: int, answer: httpx.Response) -> int:
        if not habits.is_streamed(number):
            return int(answer.json()["usage"]["total_tokens"])
        if b"data: [DONE]" not in answer.content:
            raise AnswerBrokenError("the stream ended without an end")
        return answer.content.count(b'"content":"') - 1  # the first names the role and says nothing

    async def ask(number: int) -> int:
        for retries in range(MAX_RETRIES + 1):
            response = await attempt(number, retries)
            if response is not None and response.is_success:
                return tokens_of(number, response)
            wait_s = retry_wait_s(response, retries, draw(), time.time())
            if wait_s is None or retries == MAX_RETRIES:
                break
            await sleep(wait_s)
        raise CallFailedError

    async with transport or Http1Transport(max_connections=1000) as sender:
        yield ask


def retry_wait_s(response: httpx.Response | None, retries: int, u: float, now_wall: float) -> float | None:
    """Returns the seconds that the SDK waits before its next try, after `retries` of them; None: it gives up.

    A `response` of None means no connection or a timeout; `u` is a draw from 0 to 1.
    """
    headers = httpx.Headers() if response is None else response.headers
    header_s = _header_wait_s(headers, now_wall)
    if header_s is not None and isfinite(header_s) and header_s > _LONGEST_WAIT_S:
        return None
    if response is not None and not _is_retried(response.status_code, headers.get("x-should-retry")):
        return None
    if header_s is not None and 0 < header_s <= _LONGEST_WAIT_S:
        return header_s
    return min(0.5 * 2.0**retries, 8.0) * (1 - 0.25 * u)


def _is_retried(status: int, should_retry: str | None) -> bool:
    if should_retry in ("true", "false"):
        return should_retry == "true"
    return status in (408, 409, 429) or status >= 500


def _header_wait_s(headers: Mapping[str, str], now_wall: float) -> float | None:
    for name, divisor in (("retry-after-ms", 1000), ("retry-after", 1)):
        try:
            return float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
    try:
        return parsedate_to_datetime(headers["retry-after"]).timestamp() - now_wall
    except (KeyError, ValueError):
        return None


def _body(number: int) -> dict[str, Any]:
    """Returns the body of a call, different for every number so that no cache may answer it."""
    return {"model": MODEL, "messages": [{"role": "user", "content": f"Tell me about the number {number}."}]}
