"""Calls of the providers' own APIs over bare HTTP, and readers of what comes back that share nothing with the emulator."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import httpx
import orjson

from gateway.emulator.app import Emulator
from gateway.emulator.config import EmulatorConfig
from tests.emulator.conftest import FakeClock, client_of

VERSION = {"anthropic-version": "2023-06-01", "x-api-key": "sk-ant-test"}
MESSAGES = "/v1/messages"
GENERATE = "/v1beta/models/gemini-3-flash-preview:generateContent"
STREAMED = "/v1beta/models/gemini-3-flash-preview:streamGenerateContent?alt=sse"
CONVERSE = "/model/us.anthropic.claude-sonnet-5-v1:0/converse"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}


def message_body(text: str = "hello there", **extra: Any) -> dict[str, Any]:
    """A small Messages call."""
    body = {"model": "claude-sonnet-5", "max_tokens": 4000, "messages": [{"role": "user", "content": text}]}
    return {**body, **extra}


def content_body(text: str = "hello there", **extra: Any) -> dict[str, Any]:
    """A small call of generateContent."""
    return {"contents": [{"role": "user", "parts": [{"text": text}]}], **extra}


def turn_body(text: str = "hello there", **extra: Any) -> dict[str, Any]:
    """A small call of Converse."""
    return {"messages": [{"role": "user", "content": [{"text": text}]}], **extra}


def emulator(clock: FakeClock, **config: Any) -> Emulator:
    """An emulator on a clock that tests move."""
    return Emulator(EmulatorConfig(**config), now=clock.now, sleep=clock.sleep, wall=clock.wall)


async def post(
    served: Emulator, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Posts, with Anthropic's headers where it is asked and none are given."""
    if headers is None:
        headers = VERSION if "/messages" in path else {}
    async with client_of(served) as client:
        return await client.post(path, json=dict(body), headers=dict(headers))


def named_events(content: bytes) -> list[dict[str, Any]]:
    """The events of a Messages stream, pings left out; the name of each is the type in its data."""
    found = []
    for block in content.decode().split("\n\n"):
        if not block:
            continue
        name, _, data = block.partition("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] != "ping":
            found.append(event)
    return found


def data_chunks(content: bytes) -> list[dict[str, Any]]:
    """The chunks of a Gemini stream."""
    return [orjson.loads(each.removeprefix(b"data: ")) for each in content.split(b"\r\n\r\n") if each]


def frames(content: bytes) -> list[tuple[dict[str, str], bytes]]:
    """The frames of an event stream: headers and payload; lengths and checksums are right."""
    found = []
    while content:
        total, size, prelude_crc = struct.unpack("!III", content[:12])
        assert crc32(content[:8]) == prelude_crc
        whole, content = content[:total], content[total:]
        assert crc32(whole[:-4]) == struct.unpack("!I", whole[-4:])[0]
        headers, rest = {}, whole[12 : 12 + size]
        while rest:
            name, rest = rest[1 : 1 + rest[0]].decode(), rest[1 + rest[0] :]
            kind, length = struct.unpack("!BH", rest[:3])
            assert kind == 7
            headers[name], rest = rest[3 : 3 + length].decode(), rest[3 + length :]
        found.append((headers, whole[12 + size : -4]))
    return found


def converse_events(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    """The events of a Converse stream, without their padding."""
    found = []
    for headers, payload in frames(content):
        event = orjson.loads(payload)
        event.pop("p", None)
        found.append((headers.get(":event-type") or headers[":exception-type"], event))
    return found
