"""Embeddings, of OpenAI, Gemini, and of Titan and Cohere on Bedrock: every API gives a text the same vector.

A vector is the bag of a text's words hashed to a unit vector, so that similar texts are near each other: each word adds or
subtracts one in a few dimensions that its hash picks. It must not know limits, faults or time. Invariant: the same text gives
the same vector of length 1, in every process.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from gateway.emulator.replies import (
    EmulatedReply,
    held,
    json_reply,
    objects,
    refused,
)
from gateway.emulator.requests import CheckedRequest
from gateway.emulator.writer import (
    Writer,
    tokens,
)

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


_GEMINI_DIMENSIONS, _TITAN_DIMENSIONS, _COHERE_DIMENSIONS = 3072, 1024, 1024
_MOST_DIMENSIONS, _MOST_GEMINI, _MOST_COHERE = 3072, 100, 96
_COHERE_KINDS = ("search_document", "search_query", "classification", "clustering", "image")


def read_embed(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of embedContent; raises ProblemError."""
    _gemini_size(data)
    return _request(data, model, (_gemini_text(data, "EmbedContentRequest"),))


def read_batch_embed(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of the Gemini API's batchEmbedContents, each text of which names the model; raises ProblemError."""
    for place, each in enumerate(objects(data.get("requests") or [], "requests", "expected a list of requests")):
        if str(each.get("model", "")).removeprefix("models/") != model:
            text = "model name must match the model of the batch"
            raise refused(f"* BatchEmbedContentsRequest.requests[{place}].model: {text}\n")
    return read_texts(data, model)


def read_texts(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of Vertex AI's batchEmbedContents; raises ProblemError."""
    requests = objects(data.get("requests") or [], "requests", "expected a list of requests")
    if not requests or len(requests) > _MOST_GEMINI:
        raise refused(f"* BatchEmbedContentsRequest.requests: from 1 to {_MOST_GEMINI} requests can be in one batch\n")
    for each in requests:
        _gemini_size(each)
    texts = tuple(_gemini_text(each, f"BatchEmbedContentsRequest.requests[{n}]") for n, each in enumerate(requests))
    return _request(data, model, texts)


def answer_embed(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with one embedding."""
    vector = unit_vector(request.inputs[0], _gemini_size(request.data))
    return json_reply({"embedding": {"values": vector}, "usageMetadata": _gemini_usage(request)})


def answer_batch_embed(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with an embedding of each request."""
    sizes = [_gemini_size(each) for each in request.data["requests"]]
    vectors = [unit_vector(text, size) for text, size in zip(request.inputs, sizes, strict=True)]
    shown = [{"values": vector} for vector in vectors]
    return json_reply({"embeddings": shown, "usageMetadata": _gemini_usage(request)})


def read_predict(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a call of Vertex AI's predict, of a model that embeds; raises ProblemError."""
    instances = objects(data.get("instances") or [], "instances", "expected a list of instances")
    if not instances or not all(isinstance(each.get("content"), str) and each["content"] for each in instances):
        raise refused("Invalid value at 'instances': each must have a `content`.")
    _gemini_size(held(data, "parameters"))
    return _request(data, model, tuple(each["content"] for each in instances))


def answer_predict(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with a prediction of each instance, and the tokens of its text."""
    size = _gemini_size(request.data.get("parameters") or {})
    predictions = [
        {"embeddings": {"values": unit_vector(text, size), "statistics": {"truncated": False, "token_count": count}}}
        for text in request.inputs
        for count in (tokens(len(text)),)
    ]
    return json_reply({"predictions": predictions, "metadata": {"billableCharacterCount": len(request.prompt)}})


def read_titan(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a Titan call: one text."""
    text = data.get("inputText")
    if not isinstance(text, str) or not text:
        raise refused(
            "Malformed input request: expected minLength: 1, actual: 0, please reformat your input and try again."
        )
    if unknown := sorted(set(data) - {"inputText", "dimensions", "normalize", "embeddingTypes"}):
        raise refused(f"Malformed input request: #: extraneous key [{unknown[0]}] is not permitted, please reformat.")
    if data.get("dimensions", _TITAN_DIMENSIONS) not in (256, 512, 1024):
        raise refused(f"Malformed input request: #/dimensions: {data['dimensions']} is not a valid enum value")
    return _request(data, model, (text,))


def answer_titan(request: CheckedRequest, _writer: Writer) -> EmulatedReply:
    """Answers with one embedding and the tokens of its text."""
    vector = unit_vector(request.inputs[0], request.data.get("dimensions") or _TITAN_DIMENSIONS)
    answer = {"embedding": vector, "embeddingsByType": {"float": vector}, "inputTextTokenCount": request.prompt_tokens}
    return json_reply(answer)


def read_cohere(data: dict[str, Any], model: str) -> CheckedRequest:
    """Reads a Cohere call: up to 96 texts, and what they are for."""
    texts = data.get("texts")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise refused("Malformed input request: #: required key [texts] not found")
    if len(texts) > _MOST_COHERE:
        raise refused(
            f"Malformed input request: #/texts: expected maximum item count: {_MOST_COHERE}, found: {len(texts)}"
        )
    size = data.get("output_dimension", _COHERE_DIMENSIONS)
    if type(size) is not int or size not in (256, 512, 1024, 1536):
        raise refused(f"Malformed input request: #/output_dimension: {size} is not a valid enum value")
    if data.get("input_type") not in _COHERE_KINDS:
        raise refused("Malformed input request: #: required key [input_type] not found")
    return _request(data, model, tuple(texts))


def answer_cohere(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with an embedding of each text; by type where `embedding_types` asks for it, as version 4 does."""
    vectors = [unit_vector(text, request.data.get("output_dimension") or _COHERE_DIMENSIONS) for text in request.inputs]
    is_typed = bool(request.data.get("embedding_types"))
    shown: object = {"float": vectors} if is_typed else vectors
    kind = "embeddings_by_type" if is_typed else "embeddings_floats"
    answer = {"id": writer.new_id(""), "texts": list(request.inputs), "embeddings": shown, "response_type": kind}
    counted = ((b"x-amzn-bedrock-input-token-count", b"%d" % request.prompt_tokens),)
    return json_reply(answer, headers=counted)


def _request(data: dict[str, Any], model: str, texts: tuple[str, ...]) -> CheckedRequest:
    return CheckedRequest(model, data, "".join(texts), inputs=texts)


def _gemini_text(given: Mapping[str, Any], where: str) -> str:
    content = given.get("content")
    parts = content.get("parts") if isinstance(content, dict) else None
    if isinstance(parts, dict):
        parts = [parts]
    if not isinstance(parts, list) or not parts:
        raise refused(f"* {where}.content: contents is not specified\n")
    text = "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
    if not text:
        raise refused(f"* {where}.content: empty Part\n")
    return text


def _gemini_size(given: Mapping[str, Any]) -> int:
    config = held(given, "embedContentConfig")
    size = given.get("outputDimensionality") or given.get("output_dimensionality") or config.get("outputDimensionality")
    if size is not None and (type(size) is not int or not 1 <= size <= _MOST_DIMENSIONS):
        raise refused(f"* EmbedContentRequest.output_dimensionality: must be from 1 to {_MOST_DIMENSIONS}.\n")
    return size or _GEMINI_DIMENSIONS


def _gemini_usage(request: CheckedRequest) -> dict[str, Any]:
    return {"promptTokenCount": request.prompt_tokens}
