"""Images, speech and transcriptions: the smallest valid file of each kind.

It must not know HTTP. Invariant: the bytes are the same in every process.
"""

from __future__ import annotations

import base64
import io
import struct
import wave
import zlib

from gateway.emulator.answers.reply import EmulatedReply, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.responses.writer.writer import Writer


def answer_image(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with one grey pixel per image asked for, as base64 PNG."""
    image = {"b64_json": _PIXEL, "revised_prompt": request.prompt}
    usage = {"input_tokens": request.prompt_tokens, "output_tokens": request.choices, "total_tokens": 0}
    usage["total_tokens"] = usage["input_tokens"] + usage["output_tokens"]
    details = {"input_tokens_details": {"text_tokens": request.prompt_tokens, "image_tokens": 0}}
    return json_reply({"created": writer.created(), "data": [image] * request.choices, "usage": usage | details})


def answer_speech(_ask: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with a twentieth of a second of silence, as WAV whatever format was asked for."""
    return EmulatedReply(body=_SILENCE, content_type=b"audio/wav")


def answer_transcription(_ask: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with the text of any recording."""
    return json_reply({"text": "emulated transcription"})


def _png(grey: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, grey]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def _wav(frames: int) -> bytes:
    sink = io.BytesIO()
    with wave.open(sink, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(bytes(2 * frames))
    return sink.getvalue()


_PIXEL = base64.b64encode(_png(128)).decode()
_SILENCE = _wav(400)
