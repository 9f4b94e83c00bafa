"""Providers whose wire is odd: packed bodies that nobody asked for, ends without a goodbye, certificates that prove nothing."""

from __future__ import annotations

import datetime
import gzip
import socket
import ssl
import zlib
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme
from openai import APIStatusError, AsyncOpenAI

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import WEB_KEY, chat, config_of, connect, post
from tests.loopback import plain_http
from tests.support.raw_server import CLOSE, DROP, READ, RawServer, Script, Step

ANSWER = orjson.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}],
    }
)
EVENTS = [
    b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % number
    for number in range(3)
]
DONE = b'data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def head(*headers: bytes, status: bytes = b"200 OK") -> bytes:
    return b"\r\n".join([b"HTTP/1.1 " + status, *headers, b"", b""])


def sized(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> bytes:
    kind = b"content-type: application/json"
    return head(kind, b"content-length: %d" % len(body), *headers, status=status) + body


def two_providers(odd: str, fallback: str | None, **provider: Any) -> dict[str, Any]:
    """A model at the odd provider, and another one where it may go instead."""
    key = {"dialect": "openai", "api_key": "sk-provider-secret-key"}
    providers = {"odd": {**key, "base_url": odd, **provider}, "good": {**key, "base_url": fallback or odd}}
    targets = ["odd/m", *(["good/m"] if fallback else [])]
    config = config_of(odd, providers=providers, models={"m": {"targets": targets, "choose": "in_order"}})
    config.pop("passthrough", None)
    return config


async def ask(url: str) -> Any:
    """What the SDK makes of an answer, and its headers."""
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=WEB_KEY, max_retries=0, http_client=plain_http()) as client:
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        return raw.parse(), raw.headers


MESSAGES: Any = chat()["messages"]


@pytest.mark.parametrize("coding", [b"gzip", b"x-gzip", b"deflate", b"GZIP"])
async def test_a_packed_answer_is_unpacked(start: StartGateway, coding: bytes) -> None:
    """A provider that packs what it was asked not to is served from once, and what clients get is plain."""
    body = zlib.compress(ANSWER) if coding == b"deflate" else gzip.compress(ANSWER)
    async with RawServer([[READ, sized(body, b"content-encoding: " + coding)]]) as server:
        running = await start(lambda _: two_providers(server.url, None))
        async with connect(running.url) as peer:
            response = await peer.exchange(post("/v1/chat/completions", chat("m"), f"authorization: Bearer {WEB_KEY}"))
        assert (response.status, response.body) == (200, ANSWER)
        assert response.header("content-encoding") is None
        assert response.header("content-length") == str(len(ANSWER))
        assert len(server.requests) == 1


async def test_a_packed_stream_is_unpacked_as_it_comes(start: StartGateway) -> None:
    """Event by event: the SDK reads a stream that was packed on its way to the gateway."""
    packer = zlib.compressobj(wbits=31)
    steps: list[bytes | Step] = [READ, head(b"content-type: text/event-stream", b"content-encoding: gzip")]
    steps += [packer.compress(event) + packer.flush(zlib.Z_SYNC_FLUSH) for event in EVENTS]
    steps += [packer.compress(DONE) + packer.flush(), CLOSE]
    async with RawServer([steps]) as server:
        running = await start(lambda _: two_providers(server.url, None))
        async with AsyncOpenAI(
            base_url=f"{running.url}/v1", api_key=WEB_KEY, max_retries=0, http_client=plain_http()
        ) as client:
            stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            said = [chunk.choices[0].delta.content async for chunk in stream]
        assert said[:3] == ["0", "1", "2"]
        assert len(server.requests) == 1


async def test_a_secret_is_masked_in_what_was_packed(start: StartGateway) -> None:
    """Whole and in a stream: nobody could see it before it was unpacked."""
    secret = b"sk-provider-secret-key"
    body = gzip.compress(ANSWER.replace(b'"hi"', b'"' + secret + b'"'))
    events = gzip.compress(EVENTS[0].replace(b'"0"', b'"' + secret + b'"') + DONE)
    stream = head(b"content-type: text/event-stream", b"content-encoding: gzip") + events
    async with RawServer([[READ, sized(body, b"content-encoding: gzip"), READ, stream, CLOSE]]) as server:
        running = await start(lambda _: two_providers(server.url, None))
        for is_stream in (False, True):
            async with connect(running.url) as peer:
                request = post("/v1/chat/completions", chat("m", stream=is_stream), f"authorization: Bearer {WEB_KEY}")
                response = await peer.exchange(request)
            assert b"*" * len(secret) in response.body
            assert secret not in response.body


async def test_a_packed_error_is_read(start: StartGateway) -> None:
    """What the provider says is wrong reaches the client, whatever it is wrapped in."""
    error = b'{"error":{"message":"no such tool","type":"invalid_request_error","param":null,"code":"bad_tool"}}'
    packed = sized(gzip.compress(error), b"content-encoding: gzip", status=b"400 Bad Request")
    async with RawServer([[READ, packed]]) as server:
        running = await start(lambda _: two_providers(server.url, None))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)
        assert (caught.value.status_code, caught.value.code) == (400, "bad_tool")


@pytest.mark.parametrize(
    ("body", "coding"),
    [(gzip.compress(ANSWER)[:-12], b"gzip"), (ANSWER, b"gzip"), (b"\x0b\x02", b"br")],
    ids=["cut short", "not packed", "brotli"],
)
async def test_what_cannot_be_unpacked_is_bought_once(start: StartGateway, body: bytes, coding: bytes) -> None:
    """Another request would be answered alike: the next target gets the call, or the client hears of it."""
    packed: Script = [READ, sized(body, b"content-encoding: " + coding)]
    async with RawServer([packed]) as odd, RawServer([[READ, sized(ANSWER)]]) as good:
        running = await start(lambda _: two_providers(odd.url, good.url))
        answer, _ = await ask(running.url)
        assert answer.choices[0].message.content == "hi"
        assert len(odd.requests) == 1
    async with RawServer([packed]) as odd:
        running = await start(lambda _: two_providers(odd.url, None))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)
        assert (caught.value.status_code, caught.value.code) == (502, "no_target_available")
        assert "packed" in caught.value.message
        assert len(odd.requests) == 1


# TLS.


def served_with(authority: trustme.CA, **options: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", **options).configure_cert(context)
    return context


def trusted(authority: trustme.CA, folder: Path) -> str:
    path = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.mark.parametrize("transport", ["http1", "httpx"])
async def test_an_answer_cut_without_a_goodbye_is_never_given_or_kept(
    start: StartGateway, tmp_path: Path, transport: str
) -> None:
    """Whole or streamed: over TLS only a close_notify ends an answer without a length (RFC 8446, 6.1)."""
    authority = trustme.CA()
    whole: Script = [READ, head(b"content-type: application/json") + ANSWER, DROP]
    stream: Script = [READ, head(b"content-type: text/event-stream") + EVENTS[0], DROP]
    async with RawServer([whole, whole, whole, stream], tls=served_with(authority)) as server:
        url = f"https://localhost:{server.port}"
        options = {"ca_file": trusted(authority, tmp_path), "transport": transport}
        running = await start(lambda _: two_providers(url, None, **options))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)
        assert caught.value.status_code == 502
        async with connect(running.url) as peer:
            body = chat("m", stream=True)
            response = await peer.exchange(post("/v1/chat/completions", body, f"authorization: Bearer {WEB_KEY}"))
        assert response.body.startswith(EVENTS[0])
        assert b'"stream_interrupted"' in response.body
        assert b"[DONE]" not in response.body


EXPIRED = {"not_after": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)}


@pytest.mark.parametrize("transport", ["http1", "httpx"])
@pytest.mark.parametrize("fault", ["has expired", "of an unknown authority", "for another name"])
async def test_a_certificate_that_proves_nothing_is_said_and_not_asked_for_again(
    start: StartGateway, tmp_path: Path, transport: str, fault: str
) -> None:
    """One look is enough: the call goes on to the next target, and the target is shown with what is wrong with it."""
    authority = trustme.CA()
    tls = served_with(authority, **(EXPIRED if fault == "has expired" else {}))
    async with RawServer([[READ]], tls=tls) as odd, RawServer([[READ, sized(ANSWER)]]) as good:
        host = "127.0.0.1" if fault == "for another name" else "localhost"
        options: dict[str, Any] = {"transport": transport}
        if fault != "of an unknown authority":
            options["ca_file"] = trusted(authority, tmp_path)
        running = await start(lambda _: two_providers(f"https://{host}:{odd.port}", good.url, **options))
        _, headers = await ask(running.url)
        attempts = headers["x-gateway-attempts"]
        assert attempts.count("odd/m:connection") == 1
        assert "good/m:200" in attempts
        targets = running.gateway._admission.gates.lines
        assert targets["odd/m"].gate.health.breaker.state == "open"
        assert fault in targets["odd/m"].gate.health.breaker.reason
    async with RawServer([[READ]], tls=tls) as odd:
        running = await start(lambda _: two_providers(f"https://{host}:{odd.port}", None, **options))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)
        assert caught.value.status_code == 502
        assert fault in caught.value.message
        assert host not in caught.value.message


# A wrong address.


async def test_a_wrong_address_is_named_with_the_reason(start: StartGateway) -> None:
    """The provider, its host and what happened there; never a credential."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = closed.getsockname()[1]
        running = await start(lambda _: two_providers(f"http://127.0.0.1:{port}/v1", None))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)

    assert caught.value.status_code == 502
    assert (
        f"provider 'odd' at 127.0.0.1:{port} cannot be reached: connection refused; check its base_url"
        in caught.value.message
    )
    assert "sk-provider" not in caught.value.message


@pytest.mark.parametrize(
    "body", [b'{"detail":"Not Found"}', b"404 page not found", b'{"error":{"message":"Invalid URL (POST /chat)"}}']
)
async def test_a_wrong_path_is_the_providers(start: StartGateway, body: bytes) -> None:
    """The 404 of an address without `/v1` names the provider and what to look at."""
    async with RawServer([[READ, sized(body, b"connection: close", status=b"404 Not Found"), CLOSE]] * 3) as server:
        running = await start(lambda _: two_providers(server.url, None))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)

    assert (caught.value.status_code, caught.value.code) == (404, "not_found")
    assert "The provider 'odd' knows no such path: its base_url is wrong (most end in /v1)" in caught.value.message


async def test_a_404_about_what_was_asked_for_stays(start: StartGateway) -> None:
    """The provider's own word, to the byte."""
    body = (
        b'{"error":{"message":"No such File object: file-1","type":"invalid_request_error","param":"id","code":null}}'
    )
    async with RawServer([[READ, sized(body, status=b"404 Not Found")]]) as server:
        running = await start(lambda _: two_providers(server.url, None))
        with pytest.raises(APIStatusError) as caught:
            await ask(running.url)

    assert caught.value.response.content == body
