"""Embeddings: the bag of a text's words hashed to a unit vector, so that similar texts are near each other.

Each word adds or subtracts one in a few dimensions that its hash picks. It must not know HTTP. Invariant: the same text
gives the same vector of length 1, in every process.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from hashlib import blake2b
from typing import Any

from gateway.emulator.answers.reply import EmulatedReply, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.responses.writer.writer import Writer

_WORD = re.compile(r"\w+")
_DEFAULT_DIMENSIONS = 1536
_LARGE_DIMENSIONS = 3072


def answer_embedding(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with an embeddings list, as floats or base64 of little-endian float32."""
    default = _LARGE_DIMENSIONS if "large" in request.model else _DEFAULT_DIMENSIONS
    dimensions = min(request.data.get("dimensions") or default, _LARGE_DIMENSIONS)
    is_base64 = request.data.get("encoding_format") == "base64"
    vectors = (unit_vector(text, dimensions) for text in request.inputs)
    data = [
        {"object": "embedding", "index": index, "embedding": _base64(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": request.prompt_tokens, "total_tokens": request.prompt_tokens}
    return json_reply({"object": "list", "data": data, "model": request.model, "usage": usage})


def answer_moderation(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with a moderation list; a text with the word `violence` is flagged."""
    results = [_verdict(text) for text in request.inputs]
    return json_reply({"id": writer.new_id("modr-"), "model": request.model, "results": results})


def unit_vector(text: str, dimensions: int) -> list[float]:
    """Returns the vector of `text`; texts that share words share directions."""
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [text]:
        for chunk in struct.unpack("<8I", blake2b(word.encode("utf-8", "replace"), digest_size=32).digest()):
            vector[(chunk >> 1) % dimensions] += 1.0 if chunk & 1 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    if not length:  # the words cancelled each other
        vector[0] = length = 1.0
    return [value / length for value in vector]


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)


def _verdict(text: str) -> dict[str, Any]:
    is_violent = "violence" in text.lower()
    found = {name: is_violent and name == "violence" for name in _CATEGORIES}
    return {
        "flagged": is_violent,
        "categories": found,
        "category_scores": {name: 0.98 if flagged else 0.0001 for name, flagged in found.items()},
        "category_applied_input_types": {name: ["text"] for name in _CATEGORIES},
    }
