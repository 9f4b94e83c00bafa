"""A recorded stream as that of a chat completion, held against the grammar, the SDK and the same answer not streamed."""

from __future__ import annotations

from typing import Any

import orjson
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from gateway.dialects.base import ConvertedRequest, Translator
from tests.dialects.cases import events_of
from tests.dialects.grammar import check_chat


def fed(translator: Translator, request: ConvertedRequest, raw: bytes, size: int) -> bytes:
    """What becomes of a stream that comes in pieces of so many bytes."""
    reader = translator.reader(request)
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    return b"".join(map(reader.feed, pieces)) + reader.close(is_clean=True)


def calls_in(message: dict[str, Any]) -> list[Any]:
    """The calls of a message: ids, names and arguments."""
    calls = message.get("tool_calls", ())
    return [(call["id"], call["function"]["name"], orjson.loads(call["function"]["arguments"])) for call in calls]


def check_streamed(
    translator: Translator, request: ConvertedRequest, raw: bytes, answer: dict[str, Any], step: int
) -> None:
    """Each chunk valid, the grammar kept, the same however the bytes arrive, and as the answer; no end where it is cut."""
    stream = fed(translator, request, raw, len(raw))
    assert fed(translator, request, raw, 61) == stream
    made = events_of(stream)
    state = ChatCompletionStreamState()
    for chunk in made:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    told, whole = check_chat(made, stream), translator.answer(request, answer)
    message = whole["choices"][0]["message"]
    assert told["content"] == (message["content"] or "")
    assert told["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert told["usage"] == whole["usage"]
    assert calls_in(told) == calls_in(message)
    assert state.current_completion_snapshot.choices[0].message.content == told["content"]
    for cut in range(0, len(raw) - 1, step):
        assert b"[DONE]" not in fed(translator, request, raw[:cut], len(raw))
