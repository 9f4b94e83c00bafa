"""SDKs retry by themselves; through the gateway one call of theirs is one call at the provider all the same.

Two things see to that: every error says whether to come again, and comes before the SDK has lost patience; and a retry of a
call that is still running gets that call's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Response, Running, chat, config_of, connect, post, until
from tests.loopback import plain_http

ANSWER = b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,"message":'
ANSWER += b'{"role":"assistant","content":"hi"},"finish_reason":"stop"}]}'


def sdk(url: str, **options: Any) -> AsyncOpenAI:
    """The SDK as it comes, with its own two retries."""
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-x", http_client=plain_http(), **options)


async def ask(client: AsyncOpenAI, **extra: Any) -> Any:
    return await client.chat.completions.create(**chat(**extra))


class Provider:
    """Answers every request with the same completion, but not before `answers` is set."""

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.requests = 0

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[str]:
        """Its base URL, while it is there."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                self.requests += 1
                await self.answers.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%b" % (len(ANSWER), ANSWER))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def deaf_proxy(url: str) -> AsyncIterator[str]:
    """A proxy that does not tell its server when a client leaves, as nginx with `proxy_ignore_client_abort`."""
    host, _, port = url.removeprefix("http://").partition(":")
    pipes: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(host, int(port))
        pipes.extend((asyncio.ensure_future(_pipe(reader, ahead)), asyncio.ensure_future(_pipe(behind, writer))))
        writers.extend((writer, ahead))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    for pipe in pipes:
        pipe.cancel()
    for writer in writers:
        writer.close()
    await asyncio.gather(*pipes, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_that_takes_too_long_is_asked_as_often_as_straight(gateway: Running, stream: bool) -> None:
    """The gateway's word that there is no answer comes before the SDK stops listening, which then tries again."""
    gateway.script(*["silence"] * 3)

    async with sdk(gateway.url, timeout=1.0, max_retries=2) as client:
        with pytest.raises(openai.InternalServerError) as failure:
            await ask(client, stream=stream)

    assert failure.value.status_code == 504
    assert failure.value.code == "deadline_exceeded"
    assert failure.value.response.headers["x-should-retry"] == "true"
    assert gateway.upstream_calls() == 3
    await gateway.stop()
    assert len(gateway.records) == 3


PASSING = {"e500": 500, "html502": 502, "reset": 502}
"""Trouble of the provider's own, which may come of what the call is all the same, or may have been paid."""
FAULTS = {
    "empty_200": 502,
    "quota": 429,
    "e401": 502,
    "e404": 404,
    "content_filter": 400,
    "context_length": 400,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_final_error_is_final_for_the_sdk(gateway: Running, fault: str) -> None:
    """What could be tried was tried: one request at the gateway, however many attempts behind it."""
    gateway.script(*[fault] * 20)

    async with sdk(gateway.url, max_retries=2) as client:
        with pytest.raises(openai.APIStatusError) as failure:
            await ask(client)

    assert failure.value.status_code == FAULTS[fault]
    assert failure.value.response.headers["x-should-retry"] == "false"
    await gateway.stop()
    assert len(gateway.records) == 1


@pytest.mark.parametrize("fault", PASSING)
async def test_passing_trouble_may_be_tried_again(gateway: Running, fault: str) -> None:
    """With the time at which another try may be served."""
    gateway.script(*[fault] * 4)

    async with sdk(gateway.url, max_retries=0) as client:
        with pytest.raises(openai.APIStatusError) as failure:
            await ask(client)
        headers = failure.value.response.headers
        assert failure.value.status_code == PASSING[fault]
        assert headers["x-should-retry"] == "true"
        assert 500 <= int(headers["retry-after-ms"]) <= 1000
        await ask(client)


@pytest.mark.parametrize("fault", ["e503", "e529"])
async def test_passing_trouble_for_which_nobody_pays_is_waited_for(gateway: Running, fault: str) -> None:
    """Although the call is alone, and there are as many failures as it has attempts."""
    gateway.script(*[fault] * 4)

    async with sdk(gateway.url, max_retries=0) as client:
        await ask(client)

    assert gateway.upstream_calls() == 5


async def test_a_retry_behind_a_deaf_proxy_is_not_paid_for_twice(start: StartGateway) -> None:
    """The SDK gives up, nobody tells the gateway, the SDK asks again: the provider is asked once, and that answer serves."""
    provider = Provider()
    async with provider.listen() as base_url:
        gateway = await start(lambda _url: config_of(base_url))
        patience = {"x-gateway-deadline-ms": "20000"}
        async with (
            deaf_proxy(gateway.url) as url,
            sdk(url, timeout=0.5, max_retries=2, default_headers=patience) as client,
        ):
            asking = asyncio.ensure_future(ask(client))
            await until(lambda: len(gateway.inflight) == 2)
            provider.answers.set()
            answer = await asking

        assert answer.id == "chatcmpl-1"
        assert provider.requests == 1
        await gateway.stop()
    assert [record["outcome"] for record in gateway.records] == ["ok", "ok"]
    assert [record.get("cache_layer") for record in gateway.records] == [None, "single_flight"]
    assert [record["cost_usd"] for record in gateway.records][1] is None


async def two(gateway: Running, provider: Provider, *second: str) -> tuple[Response, Response]:
    """The same question on two connections, the second with these header lines; then the provider answers all."""
    async with connect(gateway.url) as one, connect(gateway.url) as other:
        one.send(post("/v1/chat/completions", None, "x-request-id: first", "x-stainless-retry-count: 0"))
        await until(lambda: provider.requests == 1)
        other.send(post("/v1/chat/completions", None, *second))
        await until(lambda: len(gateway.inflight) == 2)
        await asyncio.sleep(0)
        provider.answers.set()
        return await one.response(), await other.response()


async def test_the_answer_of_another_is_told_as_such(start: StartGateway) -> None:
    """Its own request id and length, the same bytes, and the word in `x-gateway-cache`."""
    provider = Provider()
    async with provider.listen() as base_url:
        gateway = await start(lambda _url: config_of(base_url))

        first, again = await two(gateway, provider, "x-request-id: again", "x-stainless-retry-count: 1")
        await gateway.stop()

    assert first.body == again.body == ANSWER
    assert (first.header("x-gateway-cache"), again.header("x-gateway-cache")) == ("bypass", "coalesced")
    assert (first.header("x-request-id"), again.header("x-request-id")) == ("first", "again")
    assert again.header("content-length") == str(len(ANSWER))
    assert provider.requests == 1


@pytest.mark.parametrize("count", ["0", "-1", "x", "1e3", "99999"])
async def test_a_count_that_is_none_makes_no_retry(start: StartGateway, count: str) -> None:
    """Zero is the first try; nonsense is no news."""
    provider = Provider()
    async with provider.listen() as base_url:
        gateway = await start(lambda _url: config_of(base_url))

        first, other = await two(gateway, provider, f"x-stainless-retry-count: {count}")
        await gateway.stop()

    assert first.body == other.body == ANSWER
    assert provider.requests == 2


async def test_a_retry_takes_over_from_a_client_that_left(start: StartGateway) -> None:
    """It waits already when the first one is seen to leave: the work goes on, and is paid for once."""
    provider = Provider()
    async with provider.listen() as base_url:
        gateway = await start(lambda _url: config_of(base_url))
        async with connect(gateway.url) as one, connect(gateway.url) as other:
            one.send(post("/v1/chat/completions", None, "x-stainless-retry-count: 0"))
            await until(lambda: provider.requests == 1)
            other.send(post("/v1/chat/completions", None, "x-stainless-retry-count: 1"))
            await until(lambda: len(gateway.inflight) == 2)
            one.close()
            await until(lambda: any(one.call is not None and one.call.left for one in gateway.inflight.present()))
            provider.answers.set()
            answer = await other.response()
        await gateway.stop()

    assert orjson.loads(answer.body)["id"] == "chatcmpl-1"
    assert provider.requests == 1
    assert {record["outcome"] for record in gateway.records} == {"client_gone", "ok"}
