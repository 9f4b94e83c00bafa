"""Frames of `application/vnd.amazon.eventstream`, as Bedrock streams.

A frame is a prelude (length of the whole and of the headers, CRC of both), headers, a payload, and a CRC over all before.
Source: "Event stream encoding" in the Amazon Transcribe and Bedrock documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import orjson

EVENT_STREAM = b"application/vnd.amazon.eventstream"
_STRING = 7


def event(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Returns the frame of one event."""
    return frame_of(
        {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}, orjson.dumps(payload)
    )


def exception(kind: str, payload: bytes) -> bytes:
    """Returns the frame of an exception in the middle of a stream; `payload` is its JSON."""
    return frame_of(
        {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}, payload
    )


def frame_of(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns one frame."""
    head = b"".join(
        struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), _STRING, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    told = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return told + struct.pack("!I", crc32(told))
