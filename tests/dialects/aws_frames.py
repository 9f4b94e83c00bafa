"""Frames of AWS's event streams, as its services send them; made here and by nothing of the gateway's."""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import orjson


def frame(payload: bytes, **headers: str) -> bytes:
    """Returns a frame; `event_type="x"` becomes the header `:event-type`."""
    head = b""
    for name, value in headers.items():
        told = f":{name.replace('_', '-')}".encode()
        head += struct.pack(">B", len(told)) + told + struct.pack(">BH", 7, len(value.encode())) + value.encode()
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    whole = prelude + struct.pack(">I", crc32(prelude)) + head + payload
    return whole + struct.pack(">I", crc32(whole))


def event(kind: str, payload: dict[str, Any]) -> bytes:
    padded = payload | {"p": "abcdefghij"[: 1 + len(kind) % 10]}
    return frame(orjson.dumps(padded), event_type=kind, content_type="application/json", message_type="event")


def exception(kind: str, message: str) -> bytes:
    payload = orjson.dumps({"message": message})
    return frame(payload, exception_type=kind, content_type="application/json", message_type="exception")


def stream_of(events: list[dict[str, Any]]) -> bytes:
    """Returns a recorded stream, whose events are objects with one name each, as its provider sends it."""
    return b"".join(event(kind, payload) for one in events for kind, payload in one.items())
