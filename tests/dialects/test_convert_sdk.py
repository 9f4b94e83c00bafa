"""Converted answers as the openai SDK reads them: streamed or whole, it has the same object in the end."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gateway.core.openai.transcript import Transcript
from gateway.dialects.conversion import as_stream, as_whole, with_usage, without_usage
from tests.dialects.answers import (
    CHATS,
    RESPONSES,
    TEXT_ANSWERS,
    Json,
    bare,
    chat_read_streamed,
    chat_read_whole,
    oddly,
    plainly,
    response_read_streamed,
    response_read_whole,
    sdk_of,
    streamed,
)
from tests.rows import rows

BOUNDED = settings(
    max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
SEEDS = st.integers(0, 2**32).map(Random)


def parsed(body: bytes | None) -> Any:
    assert body is not None
    return orjson.loads(body)


@BOUNDED
@given(CHATS, SEEDS)
def test_a_chat_streamed_in_any_pieces_is_the_whole_one(body: Json, draw: Random) -> None:
    """Whatever the pieces, their order and their framing; the usage in the stream or beside it."""
    frames, usage = streamed(body, draw, oddly(draw))

    assert parsed(as_whole("chat", frames)) == body
    assert parsed(as_whole("chat", frames.replace(usage, b"") if usage else frames, usage)) == body


@BOUNDED
@given(CHATS, SEEDS)
def test_the_sdk_puts_a_stream_together_as_it_reads_its_whole(body: Json, draw: Random) -> None:
    """Its own accumulation is the reference."""
    frames, _ = streamed(body, draw, plainly)
    whole = as_whole("chat", frames)
    assert whole is not None

    assert chat_read_streamed(frames) == chat_read_whole(whole)


@BOUNDED
@given(CHATS)
def test_a_whole_chat_reads_the_same_streamed(body: Json) -> None:
    """By the SDK, and back again by us."""
    raw = orjson.dumps(body)
    frames = as_stream("chat", raw, include_usage=True)
    assert frames is not None

    assert chat_read_streamed(frames) == chat_read_whole(raw)
    assert parsed(as_whole("chat", frames)) == body


@BOUNDED
@given(CHATS)
def test_a_stream_tells_its_usage_only_to_those_who_ask(body: Json) -> None:
    """Nothing else is missing."""
    frames = as_stream("chat", orjson.dumps(body), include_usage=False)
    assert frames is not None

    assert "usage" not in chat_read_streamed(frames)
    assert parsed(as_whole("chat", frames)) == {name: value for name, value in body.items() if name != "usage"}


@BOUNDED
@given(TEXT_ANSWERS)
def test_a_whole_text_reads_the_same_streamed(body: Json) -> None:
    """The SDK has no accumulation for these: their pieces are put together here."""
    raw = orjson.dumps(body)
    frames = as_stream("completions", raw, include_usage=True)
    assert frames is not None
    with sdk_of(frames) as client, client.completions.create(model="m", prompt="?", stream=True) as stream:
        chunks = [chunk.to_dict() for chunk in stream]
    texts = ["".join(str(part["text"]) for part in of_choice(chunks, choice["index"])) for choice in body["choices"]]

    assert parsed(as_whole("completions", frames)) == body
    assert texts == [choice["text"] for choice in body["choices"]]
    assert bare(chunks[-1].get("usage")) == bare(body.get("usage"))


def of_choice(chunks: list[Any], index: int) -> list[Any]:
    return [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]


@BOUNDED
@given(RESPONSES)
def test_a_whole_response_reads_the_same_streamed(body: Json) -> None:
    """Each event in its place, and all of them what the last one says."""
    raw = orjson.dumps(body)
    frames = as_stream("responses", raw, include_usage=False)
    assert frames is not None

    assert response_read_streamed(frames) == response_read_whole(raw)
    assert parsed(as_whole("responses", frames)) == body


@BOUNDED
@given(CHATS, SEEDS, st.sampled_from([{}, {"obfuscation": "xY"}]))
def test_usage_can_be_taken_out_of_a_stream_and_put_back(body: Json, draw: Random, padding: Json) -> None:
    """To the byte, and as the relay takes it out."""
    frames, usage = streamed(body, draw, lambda chunk: plainly(chunk | padding))

    silent = without_usage(frames)

    assert silent == Transcript("chat", strips_usage=True).read(frames)
    assert with_usage(silent, usage) == (frames if usage else silent)


STREAMS = Path(__file__).parents[1] / "support" / "streams"

CHAT_NAMES = (
    "audio",
    "azure",
    "chat",
    "choices",
    "citations",
    "deepseek",
    "groq",
    "mistral",
    "odd",
    "openrouter",
    "parallel_tools",
    "tools",
)
UNLIKE_THEIR_WHOLE = {"azure", "citations", "deepseek", "groq", "mistral", "openrouter"}
"""The SDK joins what these repeat, or keeps what they say first: it makes something else of them than a whole answer says."""


@rows("name", CHAT_NAMES)
def test_the_sdk_reads_recorded_chats_alike(name: str) -> None:
    """Streamed as recorded, made whole, and made a stream again."""
    frames = (STREAMS / f"{name}.sse").read_bytes()
    whole = as_whole("chat", frames)
    assert whole is not None
    again = as_stream("chat", whole, include_usage=True)
    assert again is not None

    assert chat_read_streamed(again) == chat_read_whole(whole)
    if name not in UNLIKE_THEIR_WHOLE:
        assert chat_read_streamed(frames) == chat_read_whole(whole)


@pytest.mark.parametrize("name", ["responses", "responses_items", "responses_bare"])
def test_the_sdk_reads_recorded_responses_alike(name: str) -> None:
    """Streamed as recorded, made whole, and made a stream again."""
    frames = (STREAMS / f"{name}.sse").read_bytes()
    whole = as_whole("responses", frames)
    assert whole is not None
    again = as_stream("responses", whole, include_usage=True)
    assert again is not None

    assert response_read_streamed(again) == response_read_whole(whole)
    if name != "responses_bare":
        assert response_read_streamed(frames) == response_read_whole(whole)
