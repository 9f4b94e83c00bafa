"""Answers that nobody can use are gone with their call: no error keeps a body, of a request or an answer, for the collector."""

from __future__ import annotations

import gc
import gzip
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.core.http.writing import AsgiCycle
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import PROVIDER_KEY, chat, config_of, connect, get, post, to_yaml, until
from tests.support.raw_server import CLOSE, READ, RawServer

BODY = b'{"id":"' + b"a" * 100_000
PACKED = gzip.compress(BODY + bytes(range(256)) * 100, 0)
JSON, EVENTS = b"application/json", b"text/event-stream"
HELD_BYTES = 4000
"""Whatever holds so many at once holds a body."""


def answer(body: bytes, kind: bytes = JSON, *, coding: bytes = b"", lacks: int = 0, status: bytes = b"200 OK") -> bytes:
    """An answer whose body lacks so many bytes of what its head says."""
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, b"content-length: %d" % (len(body) + lacks)]
    if coding:
        lines.append(b"content-encoding: " + coding)
    return b"\r\n".join([*lines, b"", body])


UNUSABLE = {
    "none": b"",
    "half_a_head": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
    "no_http": b"hello\r\n\r\n",
    "bad_head": b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
    "malformed": answer(BODY),
    "no_choices": answer(BODY[:5000] + b'"}'),
    "html": answer(b"<html>" + BODY, b"text/html"),
    "truncated": answer(BODY, lacks=100),
    "gzip_malformed": answer(PACKED, coding=b"gzip"),
    "gzip_cut": answer(PACKED[:50_000], coding=b"gzip"),
    "gzip_wrong": answer(PACKED[:50_000] + b"x" * 50_000, coding=b"gzip"),
    "unknown_coding": answer(BODY, coding=b"zstd"),
    "bad_chunk": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\nxyz\r\n" % (len(BODY), BODY),
    "error": answer(BODY, status=b"500 No"),
    "error_cut": answer(BODY, status=b"429 No", lacks=100),
    "redirect": answer(BODY, status=b"307 No"),
    "events_malformed": answer(b"data: " + BODY + b"\n\n", EVENTS),
    "events_cut": answer(b"data: " + BODY, EVENTS, lacks=100),
    "events_gzip_cut": answer(PACKED[:50_000], EVENTS, coding=b"gzip"),
    "events_error": answer(b'data: {"error":{"message":"' + b"a" * 50_000 + b'"}}\n\n', EVENTS),
}
PROVIDERS: dict[str, dict[str, Any]] = {
    "openai": {"dialect": "openai"},
    "responses": {"dialect": "openai", "speaks": ["responses"]},
    "anthropic": {"dialect": "anthropic"},
    "gemini": {"dialect": "gemini"},
    "bedrock": {"dialect": "bedrock", "region": "us-east-1"},
}
LONG = "u" * 20_000
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", chat(model="m", user=LONG)),
    "stream": ("/v1/chat/completions", chat(model="m", user=LONG, stream=True)),
    "responses": ("/v1/responses", {"model": "m", "input": LONG}),
    "messages": ("/v1/messages", {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": LONG}]}),
    "embeddings": ("/v1/embeddings", {"model": "m", "input": ["u" * 40] * 150}),
}


@pytest.fixture
def garbage() -> Iterator[list[Any]]:
    """What only the collector could free, once `gc.collect` has been asked while DEBUG_SAVEALL is set."""
    gc.collect()
    gc.freeze()  # to look at all of it again takes longer than the test
    gc.disable()
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.unfreeze()


@pytest.mark.parametrize(
    ("provider_name", "request_name", "others"),
    [
        ("openai", "chat", 0),
        ("openai", "chat", 1),
        ("openai", "stream", 0),
        ("openai", "stream", 1),
        ("anthropic", "chat", 1),
        ("gemini", "stream", 1),
        ("responses", "chat", 0),
        ("bedrock", "messages", 0),
        ("anthropic", "responses", 1),
        ("gemini", "embeddings", 0),
    ],
)
async def test_no_error_holds_a_body(
    start: StartGateway, provider_name: str, request_name: str, others: int, garbage: list[Any], tmp_path: Path
) -> None:
    """No frame of the gateway's is in a circle of references, nor any object that has a body."""
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "retries.yaml").write_text(
        to_yaml({"default": {"attempts": 1 + others, "backoff": {"base": "1ms", "max": "1ms"}}})
    )
    (rules / "breakers.yaml").write_text(to_yaml({"default": {"enabled": False}}))
    path, body = REQUESTS[request_name]
    sent = post(path, orjson.dumps(body), "connection: close")
    left = {}
    async with RawServer([]) as provider:

        def config(url: str) -> dict[str, Any]:
            bad = {**PROVIDERS[provider_name], "base_url": provider.url, "api_key": PROVIDER_KEY}
            targets = [
                {"provider": "bad", "model": "m", "order": 1},
                {"provider": "main", "model": "gpt-4o", "order": 2},
            ]
            made = config_of(url, models={"m": {"targets": targets[: 1 + others]}}, policies=str(rules))
            return {**made, "providers": {**made["providers"], "bad": bad}}

        gateway = await start(config)
        for name, said in UNUSABLE.items():
            provider.scripts[:] = [[READ, said, CLOSE]]
            async with connect(gateway.url) as peer:
                gc.collect()
                gc.set_debug(gc.DEBUG_SAVEALL)
                peer.send(sent)
                await peer.rest()
                gc.collect()
                gc.set_debug(0)
                held = [what for each in garbage if (what := _held_by(each))]
                garbage.clear()
                if held:
                    left[name] = held
    assert not left


def _held_by(each: Any) -> str:
    """What this object keeps of a call; empty: nothing, or nothing of ours."""
    if isinstance(each, types.FrameType):
        path = each.f_code.co_filename
        return str(each) if "/gateway/" in path and "/emulator/" not in path else ""
    has_body = any(isinstance(one, bytes | bytearray) and len(one) >= HELD_BYTES for one in gc.get_referents(each))
    return repr(each)[:200] if has_body and "emulator" not in type(each).__module__ else ""


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/models", "/v1/jobs", "/admin/targets", "/v1/files/x"])
async def test_no_request_to_the_application_is_left_to_the_collector(start: StartGateway, path: str) -> None:
    """Thousands can be sent at once on a connection, without a key."""
    gateway = await start(config_of)
    gc.collect()
    gc.disable()
    try:
        before = number_of_cycles()
        async with connect(gateway.url) as peer:
            for _ in range(3):
                await peer.exchange(get(path))
        await until(lambda: not gateway.connections)
        assert number_of_cycles() == before
    finally:
        gc.enable()


def number_of_cycles() -> int:
    return sum(isinstance(one, AsgiCycle) for one in gc.get_objects())
