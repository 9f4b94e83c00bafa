"""Answers a call of Gemini's generateContent: one JSON object, or a stream of such objects.

It must not know limits, faults or time. Invariant: the parts of a stream, put together, say what the JSON would have said;
only `tail` carries a `finishReason`, in a chunk of its own as the newer models send it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from gateway.emulator.answers.reply import JSON, EmulatedReply, Stream, json_reply
from gateway.emulator.answers.requests import CheckedRequest
from gateway.emulator.dialects.compose import Block, Composed, compose
from gateway.emulator.dialects.dialects.prompt_cache import CacheUse, Segment, tokens
from gateway.emulator.dialects.dialects.signatures import GEMINI, sign
from gateway.emulator.generate.request import ends_with_result, lowered, wish_of
from gateway.emulator.messages_answer import arguments_of
from gateway.emulator.responses.writer.writer import Writer

_FINISH: Mapping[str, str] = MappingProxyType(
    {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
)
_BROKEN = b'data: {"candidates": [{"content": {"parts": [{"te\r\n\r\n'
_IMPLICIT_S = 300.0
Parts = list[dict[str, Any]]


def answer_generate(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the whole object."""
    answers = [_compose(request, writer, choice) for choice in range(request.choices)]
    candidates = [
        {
            "content": {
                "parts": [part for parts in _whole(request, composed, writer) for part in parts],
                "role": "model",
            },
            "finishReason": _FINISH[composed.ending],
            "index": index,
        }
        for index, composed in enumerate(answers)
    ]
    head = _head(request, writer)
    return json_reply(
        {"candidates": candidates, "usageMetadata": _usage(request, writer, answers), **head}, _sum(answers)
    )


def stream_generate(request: CheckedRequest, writer: Writer) -> Stream:
    """Answers with server-sent events, as `alt=sse` asks for."""
    chunks, last, count = _stream(request, writer)
    return Stream(
        lead=b"",
        frames=map(_event, chunks),
        tail=b"".join(map(_event, last)),
        tokens=count,
        error_frame=lambda body: b"data: " + orjson.dumps(orjson.loads(body)) + b"\r\n\r\n",
        broken=_BROKEN,
    )


def stream_array(request: CheckedRequest, writer: Writer) -> Stream:
    """Answers with a JSON array that grows, as without `alt=sse`."""
    chunks, last, count = _stream(request, writer)
    return Stream(
        lead=b"[",
        frames=(orjson.dumps(chunk) + b"\n,\r\n" for chunk in chunks),
        tail=b"\n,\r\n".join(map(orjson.dumps, last)) + b"\n]\n",
        tokens=count,
        error_frame=lambda body: body + b"\n]\n",
        broken=b'{"candidates": [{"content": {"par\n,\r\n',
        content_type=JSON,
    )


def answer_count(request: CheckedRequest, writer: Writer) -> EmulatedReply:
    """Answers with the tokens of a prompt."""
    count = request.prompt_tokens
    return json_reply({"totalTokens": count, "promptTokensDetails": [{"modality": "TEXT", "tokenCount": count}]})


def blocked(prompt_tokens: int) -> dict[str, Any]:
    """Returns the whole answer to a prompt that Google will not answer."""
    return {
        "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": prompt_tokens, "totalTokenCount": prompt_tokens},
    }


def _compose(request: CheckedRequest, writer: Writer, choice: int) -> Composed:
    data, config = request.data, request.data["generationConfig"]
    wish = wish_of(data)
    schema = config.get("responseJsonSchema") or lowered(config.get("responseSchema"))
    if schema is None and config.get("responseMimeType") == "application/json":
        schema = {"type": "object", "properties": {"answer": {"type": "string"}}}
    return compose(
        request,
        writer,
        tools=wish.schemas,
        calls=wish.calls(request, is_result=ends_with_result(data)),
        is_thinking=_thinks(request),
        schema=schema if isinstance(schema, dict) else None,
        choice=choice,
    )


def _thinks(request: CheckedRequest) -> bool:
    config = request.data["generationConfig"]["thinkingConfig"]
    return bool(config.get("includeThoughts") or config.get("thinkingLevel") or config.get("thinkingBudget"))


def _parts(request: CheckedRequest, block: Block, writer: Writer, *, is_signed: bool) -> Parts:
    """Returns the parts of a block: none for a thought that the caller did not ask to see; only a first call is signed."""
    match block.kind:
        case "thought":
            is_shown = request.data["generationConfig"]["thinkingConfig"].get("includeThoughts")
            return [{"text": block.text, "thought": True}] if is_shown else []
        case "tool":
            call = {"name": block.name, "args": arguments_of(block), "id": writer.new_id("")[:8]}
            signed = {"thoughtSignature": sign(GEMINI, block.name)} if is_signed else {}
            return [{"functionCall": call, **signed}]
    return [{"text": block.text}]


def _stream(request: CheckedRequest, writer: Writer) -> tuple[Iterator[Mapping[str, Any]], list[dict[str, Any]], int]:
    answers = [_compose(request, writer, choice) for choice in range(request.choices)]
    usage, head = _usage(request, writer, answers), _head(request, writer)
    count = usage["promptTokenCount"]
    opening = {"promptTokenCount": count, "totalTokenCount": count}

    def chunk(index: int, parts: Parts, usage: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        ended = {"finishReason": reason} if reason else {}
        candidate = {"content": {"parts": parts, "role": "model"}, **ended, "index": index}
        return {"candidates": [candidate], "usageMetadata": usage, **head}

    news = (
        chunk(index, parts, opening)
        for index, composed in enumerate(answers)
        for parts in _pieces(request, composed, writer)
    )
    last = [chunk(index, [{"text": ""}], usage, _FINISH[composed.ending]) for index, composed in enumerate(answers)]
    return news, last, _sum(answers)


def _whole(request: CheckedRequest, composed: Composed, writer: Writer) -> Iterator[Parts]:
    first = next((block for block in composed.blocks if block.kind == "tool"), None)
    for block in composed.blocks:
        yield _parts(request, block, writer, is_signed=block is first)


def _pieces(request: CheckedRequest, composed: Composed, writer: Writer) -> Iterator[Parts]:
    first = next((block for block in composed.blocks if block.kind == "tool"), None)
    for block in composed.blocks:
        pieces = [block] if block.kind == "tool" else [Block(block.kind, [piece]) for piece in block.pieces]
        for piece in pieces:  # a call comes whole
            if parts := _parts(request, piece, writer, is_signed=block is first):
                yield parts


def _usage(request: CheckedRequest, writer: Writer, answers: Sequence[Composed]) -> dict[str, Any]:
    thoughts = sum(composed.thought_tokens for composed in answers)
    written, prompt = _sum(answers) - thoughts, request.prompt_tokens
    usage: dict[str, Any] = {
        "promptTokenCount": prompt,
        "candidatesTokenCount": written,
        "totalTokenCount": prompt + written + thoughts,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": prompt}],
    }
    if thoughts:
        usage["thoughtsTokenCount"] = thoughts
    cached = _cached(request, writer).read
    if cached:
        usage["cachedContentTokenCount"] = min(cached, prompt)
        usage["cacheTokensDetails"] = [{"modality": "TEXT", "tokenCount": min(cached, prompt)}]
    return usage


def _cached(request: CheckedRequest, writer: Writer) -> CacheUse:
    """Google caches by itself; here, whatever was a system instruction before."""
    system = "".join(part.get("text", "") for part in request.data["systemInstruction"]["parts"])
    if not system:
        return CacheUse(tokens(len(request.prompt)))
    return writer.prompt_cache.use(request.model, [Segment(system, _IMPLICIT_S)])


def _head(request: CheckedRequest, writer: Writer) -> dict[str, Any]:
    return {"modelVersion": request.model, "responseId": writer.new_id("")[:22]}


def _sum(answers: Sequence[Composed]) -> int:
    return sum(composed.tokens for composed in answers)


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\r\n\r\n"
