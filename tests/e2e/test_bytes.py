"""Bytes in, the same bytes out: what no rule needs to change is not re-encoded on its way, in either direction."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Running, config_of, connect, post
from tests.support.raw_server import READ, RawServer

CHAT = "/v1/chat/completions"
ODD = (
    b'{ "messages" : [ {"role":"user","content":"\\u00e9 \\ud83d\\ude80 \xc3\xa9 \\"model\\": \\"x\\""} ],\r\n'
    b'\t"zebra": 1.0e+2, "big": 12345678901234567890, "model" :"renamed" , "user": {"model":"gpt","stream":true}, "a":[] }\n'
)
ANSWER = b'\n{ "id" :"x", "object":"chat.completion","choices":[ {} ],"price":1.10, "text":"\\u00e9\\/", "usage":null }\r\n\r\n'
STREAM = (
    b": hello\n\n"
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"\\u00e9 \xc3\xa9"},"finish_reason":null}]}\n\n'
    b'data:{"id":"1", "choices":[{"index":0,"delta":{"content":"[DONE]"}}]}\r\n\r\n'
    b'id: 7\nretry: 10\ndata: {"id":"1",\ndata: "choices":[{"index":0,"delta":{}}]}\n\n'
    b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b"data: [DONE]\n\n"
)
USAGE = b'data: {"id":"1","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}\n\n'


def received(gateway: Running) -> bytes:
    """The body of the only request that reached the provider."""
    (request,) = gateway.received()
    body: str = request["body"]
    return body.encode()


async def test_a_body_is_forwarded_as_it_came(gateway: Running) -> None:
    """Whitespace, escapes, number spellings, unknown fields and the order of keys."""
    body = ODD.replace(b"renamed", b"gpt-4o")
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post(CHAT, body))).status == 200

    assert received(gateway) == body


async def test_another_model_name_changes_that_value_alone(gateway: Running) -> None:
    """The word `model` elsewhere in the body is left alone."""
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post(CHAT, ODD))).status == 200

    assert received(gateway) == ODD.replace(b'"renamed"', b'"gpt-4o-mini"')


async def test_asking_for_usage_adds_that_field_alone(gateway: Running) -> None:
    """In front, where nothing has to be parsed to find its place."""
    body = ODD.replace(b"renamed", b"gpt-4o").replace(b'"a":[]', b'"stream":true')
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post(CHAT, body))).status == 200

    assert received(gateway).replace(b'"stream_options":{"include_usage":true},', b"", 1) == body
    assert orjson.loads(received(gateway))["stream_options"] == {"include_usage": True}


async def test_a_form_is_forwarded_as_it_came_but_for_the_model(gateway: Running) -> None:
    """Bytes that are no text, line ends inside a file, a field before and behind."""
    file = bytes(range(256)) * 10 + b"\r\n--other\r\n"
    body = b"".join((
        b'--b b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n', file, b"\r\n",
        b'--b b\r\nContent-Disposition: form-data; name="model"\r\n\r\nrenamed\r\n',
        b'--b b\r\nContent-Disposition: form-data; name="language"\r\n\r\n\r\n--b b--\r\nepilogue',
    ))  # fmt: skip
    async with connect(gateway.url) as peer:
        request = post("/v1/audio/transcriptions", body, 'content-type: multipart/form-data; boundary="b b"')
        assert (await peer.exchange(request)).status == 200

    recorded = gateway.emulator.emulator.recorder._kept[0]
    assert recorded.body == body.replace(b"\r\n\r\nrenamed\r\n", b"\r\n\r\ngpt-4o-mini\r\n")
    assert dict(recorded.headers)[b"content-type"] == b'multipart/form-data; boundary="b b"'


def whole(body: bytes, content_type: bytes = b"application/json") -> bytes:
    """An answer with a length."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (content_type, len(body), body)


def chunked(body: bytes, size: int, content_type: bytes = b"application/json") -> bytes:
    """The same in chunks of this size."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n%s0\r\n\r\n" % (
        content_type,
        chunks,
    )


async def ask(start: StartGateway, answer: bytes, request: bytes, **sections: Any) -> tuple[int, bytes]:
    """What a client gets when the provider answers these bytes, however often it is asked."""
    async with RawServer([[READ, answer] * 4]) as provider:
        gateway = await start(lambda _url: config_of(f"{provider.url}/v1", **sections))
        async with connect(gateway.url) as peer:
            found = await peer.exchange(request)
        return found.status, found.body


@pytest.mark.parametrize("answer", [whole(ANSWER), chunked(ANSWER, 7), chunked(ANSWER, 1)], ids=["whole", "7", "1"])
async def test_a_json_answer_is_returned_as_it_came(start: StartGateway, answer: bytes) -> None:
    """However it was framed, whatever its whitespace and escapes."""
    assert await ask(start, answer, post()) == (200, ANSWER)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
async def test_a_stream_is_returned_as_it_came(start: StartGateway, size: int) -> None:
    """Comments, ids, CRLF and LF, data over several lines, cut anywhere."""
    body = STREAM.replace(b"data: [DONE]", USAGE + b"data: [DONE]")
    request = post(CHAT, orjson.dumps({"model": "gpt-4o", "stream": True, "stream_options": {"include_usage": True}}))

    assert await ask(start, chunked(body, size, b"text/event-stream"), request) == (200, body)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
async def test_only_the_usage_that_nobody_asked_for_is_taken_out_of_a_stream(start: StartGateway, size: int) -> None:
    """The gateway asked for it on its own account: every other byte is the provider's."""
    body = STREAM.replace(b"data: [DONE]", USAGE + b"data: [DONE]")
    request = post(CHAT, orjson.dumps({"model": "gpt-4o", "stream": True}))

    assert await ask(start, chunked(body, size, b"text/event-stream"), request) == (200, STREAM)


async def test_a_binary_answer_is_returned_as_it_came(start: StartGateway) -> None:
    """Speech, with every byte there is."""
    audio = bytes(range(256)) * 1000
    request = post("/v1/audio/speech", orjson.dumps({"model": "gpt-4o", "input": "hi", "voice": "x"}))

    assert await ask(start, whole(audio, b"audio/mpeg"), request) == (200, audio)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 413, 422, 500, 503, 529])
async def test_a_providers_error_is_returned_as_it_came(start: StartGateway, status: int) -> None:
    """Status and bytes, when there is no other target and another try would not help; of a 401 see refused credentials."""
    body = b'{ "error" : {"message":"no \\u00e9","type":"t","param":null,"code":"c", "extra": [1.0]}}\n'
    answer = whole(body).replace(b"200 OK", b"%d Whatever\r\nx-should-retry: false" % status)

    assert await ask(start, answer, post()) == (status, body)


async def test_a_relayed_path_keeps_method_query_and_body(start: StartGateway) -> None:
    """Pass-through: what the gateway does not know goes to the provider as it is."""
    body = b'{"any": "thing", "model": 1}'
    async with RawServer([[READ, whole(ANSWER)]]) as provider:
        gateway = await start(lambda _url: config_of(f"{provider.url}/base/v1", passthrough="main"))
        async with connect(gateway.url) as peer:
            found = await peer.exchange(post("/v1/vector_stores/a%2Db?after=x%20y&order=desc", body, method="PUT"))

    assert (found.status, found.body) == (200, ANSWER)
    assert provider.requests[0].line == b"PUT /base/v1/vector_stores/a%2Db?after=x%20y&order=desc HTTP/1.1"
    assert provider.requests[0].body == body
