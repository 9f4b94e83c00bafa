"""Large bodies: relayed as they came, read without holding anybody up, and not kept longer than they are needed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import orjson
import pytest

from gateway.core.errors import BodyTooComplex, GatewayError
from gateway.core.request_fields import LargeBodies
from gateway.dialects.endpoints import ENDPOINTS
from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, chat, config_of, connect, get, post, until

CHAT = "/v1/chat/completions"
PARSED = 1_000_000
PEEKED = 5_000_000
ENDPOINT = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "chat")


def large_chat(size: int, model: str = "renamed", **extra: Any) -> bytes:
    """A chat with so many bytes of text."""
    return orjson.dumps(chat(model, **extra) | {"x": "words " * (size // 6)})


@pytest.mark.parametrize("size", [PARSED, PEEKED])
@pytest.mark.parametrize("options", [..., None, {}, {"include_usage": True}, {"include_obfuscation": False}], ids=str)
async def test_only_what_a_rule_needs_is_changed(start: StartGateway, size: int, options: Any) -> None:
    """The model's name and the wish for usage; the answer streams as any other."""
    gateway = await start(emulator=EmulatorConfig(recorded_bytes=40_000_000))
    sent = large_chat(size, stream=True, **({} if options is ... else {"stream_options": options}))

    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, sent))

    assert answer.status == 200
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert (b'"usage":{' in answer.body) == (options == {"include_usage": True})
    wanted = {**orjson.loads(sent), "model": "gpt-4o-mini"}
    wanted["stream_options"] = (
        {**(options or {}), "include_usage": True} if options is not ... else {"include_usage": True}
    )
    received = gateway.received()[0]["body"].encode()
    assert orjson.loads(received) == wanted
    assert abs(len(received) - len(sent)) < 60


async def test_others_are_served_while_a_large_body_is_read() -> None:
    """Between any two pieces, and however many bodies come at once: they are read one after the other."""
    body = large_chat(PEEKED)
    bodies, turns, done = LargeBodies(), 0, False

    async def count() -> None:
        nonlocal turns
        while not done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    peeked = await asyncio.gather(*[bodies.peek(ENDPOINT, body, {}, 1_000_000) for _ in range(4)])
    done = True
    await counting

    assert [one.model for one in peeked] == ["renamed"] * 4
    assert turns > 4 * len(body) / 40_000


async def test_who_leaves_while_a_body_is_read_holds_nobody_up() -> None:
    """Its turn ends with it, as with a body that is refused."""
    body, bodies = large_chat(PEEKED), LargeBodies()
    leaving = asyncio.create_task(bodies.peek(ENDPOINT, body, {}, 1_000_000))
    await asyncio.sleep(0)
    leaving.cancel()

    with pytest.raises(GatewayError):
        await bodies.peek(ENDPOINT, body, {}, 3)
    assert (await bodies.peek(ENDPOINT, body, {}, 1_000_000)).model == "renamed"


@asynccontextmanager
async def silent_provider() -> AsyncIterator[tuple[str, list[int]]]:
    """A provider that reads and never answers: its base URL, and how many bytes it has read."""
    read = [0]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(1 << 20):
                read[0] += len(part)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", read
    finally:
        server.close()


def has_read(read: list[int], count: int) -> bool:
    """Whether the provider has read so many bytes."""
    return read[0] >= count


def parsed_canaries() -> int:
    """How many parsed messages of the canary are in memory."""
    return sum(type(one) is dict and "canary" in one for one in gc.get_objects())


async def test_a_call_in_flight_keeps_its_bytes_and_nothing_that_was_parsed(start: StartGateway) -> None:
    """As soon as it is known where it goes and what it costs, the bytes are enough, be the body large or small."""
    assert parsed_canaries() == 0
    async with silent_provider() as (base_url, read):
        gateway = await start(lambda _: config_of(base_url))
        for count in (10, 20_000):
            body = orjson.dumps({"model": "gpt-4o", "messages": [{"role": "user", "canary": [{"x": []}]}] * count})
            read[0] = 0
            async with connect(gateway.url) as peer:
                peer.send(post(CHAT, body))
                await until(partial(has_read, read, len(body)))
                assert parsed_canaries() == 0
            await gateway.idle()


async def test_a_held_call_keeps_its_bytes_and_nothing_that_was_parsed(start: StartGateway) -> None:
    """While it waits for its turn the queue knows how much it holds."""
    async with silent_provider() as (base_url, read):
        limited = {"gpt-4o": {"targets": [{"provider": "main", "model": "gpt-4o", "max_concurrency": 1}]}}
        gateway = await start(lambda _: config_of(base_url, models=limited))
        body = orjson.dumps({"model": "gpt-4o", "messages": [{"role": "user", "canary": [{"x": []}]}] * 20_000})
        async with connect(gateway.url) as first, connect(gateway.url) as second:
            first.send(post(CHAT, orjson.dumps(chat())))
            await until(lambda: read[0] > 0)
            second.send(post(CHAT, body))
            await until(lambda: gateway.gateway._admission.queue.occupancy.bytes == len(body))
            assert parsed_canaries() == 0


@pytest.mark.parametrize("size", [PARSED, PEEKED])
async def test_a_repeated_key_is_compared_by_all_that_was_sent(gateway: Running, size: int) -> None:
    """The same body gets the same answer; one that differs in a byte is refused."""
    body = large_chat(size)
    for sent, status, replayed in (
        (body, 200, None),
        (body, 200, "true"),
        (body.replace(b"there", b"these"), 422, None),
    ):
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(post(CHAT, sent, "idempotency-key: k1"))
            assert (answer.status, answer.header("idempotent-replayed")) == (status, replayed)


def form(boundary: bytes, content: bytes) -> bytes:
    """A transcription with so much sound."""
    part = b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    return part % (boundary, b"file", content) + part % (boundary, b"model", b"renamed") + b"--%b--\r\n" % boundary


@pytest.mark.parametrize("size", [PARSED, PEEKED])
async def test_a_large_form_is_compared_without_its_boundary(gateway: Running, size: int) -> None:
    """A repetition draws it anew."""
    sound = bytes(range(256)) * (size // 256)
    for boundary, content, status in ((b"b1", sound, 200), (b"b2", sound, 200), (b"b3", b"\1" + sound[1:], 422)):
        async with connect(gateway.url) as peer:
            kind = f"content-type: multipart/form-data; boundary={boundary.decode()}"
            sent = post("/v1/audio/transcriptions", form(boundary, content), kind, "idempotency-key: k1")
            assert (await peer.exchange(sent)).status == status
    assert gateway.upstream_calls() == 1


async def test_token_numbers_of_embeddings_pass() -> None:
    """2,048 texts of 512 tokens each are more than a million values, and usual; of a chat they are too much."""
    body = orjson.dumps({"model": "m", "input": [[50_256] * 512] * 2_048})
    embeddings = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "embeddings")

    assert (await LargeBodies().peek(embeddings, body, {}, 1_000_000)).model == "m"
    with pytest.raises(BodyTooComplex):
        await LargeBodies().peek(ENDPOINT, body, {}, 1_000_000)


async def test_the_bound_is_the_configs(start: StartGateway) -> None:
    """Smaller ones hold for small bodies, too; who is refused reads which field to change, and others go on."""
    gateway = await start(lambda url: config_of(url, server={"max_json_values": 8}))

    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post(CHAT, chat()))).status == 200
        answer = await peer.exchange(post(CHAT, chat(stop=["a", "b", "c", "d"])))
        assert (answer.status, answer.error["code"]) == (400, "body_too_complex")
        assert "more than 8 JSON values" in answer.error["message"]
        assert "server.max_json_values" in answer.error["message"]
        assert (await peer.exchange(get("/healthz"))).status == 200
