"""What a provider says before its first word is no output in any caller's language: another target may still serve the call."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.openai.sse import FirstEventKind, first_word, split_events
from gateway.dialects.base import ServerFacts
from gateway.dialects.registry import pair_of
from tests.dialects.aws_frames import event
from tests.dialects.cases import as_bytes

SAID = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": SAID, "stream": True},
    "responses": {"model": "m", "input": "hi", "stream": True},
    "messages": {"model": "m", "max_tokens": 9, "messages": SAID, "stream": True},
    "generate": {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
}
CHUNK = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": {"input_tokens": 1}}
NEW_ITEM = {"type": "message", "id": "m", "content": [], "role": "assistant"}
BEGINNINGS = {
    "chat": as_bytes("chat", [CHUNK, CHUNK]).removesuffix(b"data: [DONE]\n\n"),
    "responses": as_bytes(
        "responses",
        [
            {"type": "response.created", "response": {"id": "r", "model": "m", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": NEW_ITEM},
            {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": ""},
        ],
    ),
    "messages": as_bytes(
        "messages",
        [
            {"type": "message_start", "message": MESSAGE},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}},
        ],
    ),
    "generate": as_bytes("generate", [{"candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}}]}]),
    "converse": event("messageStart", {"role": "assistant"})
    + event("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": ""}}),
}


@pytest.mark.parametrize("spoken", BEGINNINGS)
@pytest.mark.parametrize("asked", ASKED)
def test_an_empty_beginning_is_no_output(asked: str, spoken: str) -> None:
    """Each way from a provider's language to a caller's, the ways without conversion included."""
    told = BEGINNINGS[spoken]
    if asked != spoken:
        pair = pair_of(asked, spoken)
        told = pair.reader(pair.translator.request(ASKED[asked], ServerFacts(), 1.7e9, lambda: "abc")).feed(told)

    assert {first_word(one) for one in split_events(told)} <= {FirstEventKind.NOTHING}
