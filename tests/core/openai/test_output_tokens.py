"""What streams have brought, estimated without reading their plain events."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import PENDING_LIMIT
from gateway.core.openai.transcript import Transcript, extend_samples
from gateway.core.openai.usage import output_tokens_in
from gateway.core.types import StreamForm, Usage, UsageParts
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)
WORDS = ("the", " of", " and", " relativity", " simply", ", ", "\n\n", ' "so"', " a", " measured", " 3.14", " für", "s")
CJK = ("的", "是在", "我们", "模型", "。")

Write = Callable[[str, int], bytes]
"""Returns the event that brings a text, as the so-many-th of its stream."""


def line(event: dict[str, Any], name: str = "") -> bytes:
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(event) + b"\n\n"


def of_chat(delta: dict[str, Any], **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    head = {
        "id": "chatcmpl-9xT",
        "object": "chat.completion.chunk",
        "created": 1763000002,
        "model": "gpt-4o-2024-11-20",
    }
    return line({**head, "system_fingerprint": "fp_1a", "choices": [choice], **more})


def of_response(kind: str, text: str, number: int, **more: Any) -> bytes:
    name = f"response.{kind}.delta"
    place = {"item_id": "msg_0a1b2c", "output_index": 0, "content_index": 0}
    return line({"type": name, "sequence_number": number, **place, "delta": text, **more}, name)


def of_message(delta: dict[str, Any]) -> bytes:
    return line({"type": "content_block_delta", "index": 1, "delta": delta}, "content_block_delta")


def of_generated(part: dict[str, Any]) -> bytes:
    candidate = {"content": {"parts": [part], "role": "model"}, "index": 0}
    return line({"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "aB3dE6"})


def padded(text: str, _: int) -> bytes:
    """As OpenAI pads events to one length."""
    return of_chat({"content": text}, obfuscation="x" * (48 - len(text)))


WRITERS: dict[str, tuple[StreamForm, Write]] = {
    "chat": ("chat", lambda text, _: of_chat({"content": text})),
    "chat, thinking": ("chat", lambda text, _: of_chat({"reasoning_content": text, "content": None})),
    "chat, thinking told twice": (
        "chat",
        lambda text, _: of_chat({"reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text}]}),
    ),
    "chat, arguments": (
        "chat",
        lambda text, _: of_chat({"tool_calls": [{"index": 0, "function": {"arguments": text}}]}),
    ),
    "chat, escaped": (
        "chat",
        lambda text, _: of_chat({"content": "@"}).replace(b'"@"', json.dumps(text).encode()),
    ),
    "completions": (
        "chat",
        lambda text, _: line(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "choices": [{"text": text, "index": 0, "finish_reason": None}],
            }
        ),
    ),
    "responses": ("responses", lambda text, number: of_response("output_text", text, number, logprobs=[])),
    "responses, thinking": ("responses", lambda text, number: of_response("reasoning_text", text, number)),
    "responses, arguments": ("responses", lambda text, number: of_response("function_call_arguments", text, number)),
    "messages": ("messages", lambda text, _: of_message({"type": "text_delta", "text": text})),
    "messages, thinking": ("messages", lambda text, _: of_message({"type": "thinking_delta", "thinking": text})),
    "messages, arguments": ("messages", lambda text, _: of_message({"type": "input_json_delta", "partial_json": text})),
    "generate": ("generate", lambda text, _: of_generated({"text": text})),
    "generate, thinking": ("generate", lambda text, _: of_generated({"text": text, "thought": True})),
    "other": ("other", lambda text, _: of_chat({"content": text})),
    "chat, padded": ("chat", padded),
}


def texts(draw: random.Random, words: Sequence[str], count: int, least: int, most: int) -> list[str]:
    return ["".join(draw.choices(words, k=draw.randint(least, most))) for _ in range(count)]


def tokens_of(pieces: Sequence[str]) -> int:
    """The estimate of a whole answer with this text; each event has a token at least."""
    return max(len(pieces), len("".join(pieces).encode()) // 4)


def relayed(form: StreamForm, events: Sequence[bytes], *, at_once: int = 1) -> int:
    said = Transcript(form)
    for at in range(0, len(events), at_once):
        block = b"".join(events[at : at + at_once])
        if said.is_plain(block):
            said.pass_plain(block)
        else:
            said.read(block)
    usage, tokens = said.account()
    assert usage is None
    return tokens


CHUNKS = {
    "small": (WORDS, 1, 3),
    "of 400 characters": (WORDS, 90, 110),
    "Chinese": (CJK, 1, 4),
}


@pytest.mark.parametrize("count", [1, 20, 60, 1000])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "chat, padded"])
def test_a_streams_tokens_are_estimated_as_those_of_a_whole_answer(writer: str, chunks: str, count: int) -> None:
    """In each form, of text, thinking and arguments, however much an event brings."""
    form, write = WRITERS[writer]
    words, least, most = CHUNKS[chunks]
    pieces = texts(random.Random(count), words, count, least, most)

    tokens = relayed(form, [write(text, number) for number, text in enumerate(pieces)])

    assert tokens == pytest.approx(tokens_of(pieces), rel=0.1, abs=1)


@pytest.mark.parametrize("seed", range(5))
def test_padding_is_not_output(seed: int) -> None:
    """Events of one length, whatever is in them: some of them stand for all."""
    draw = random.Random(seed)
    pieces = texts(draw, WORDS, 600, 1, 3)

    tokens = relayed("chat", [padded(text, 0) for text in pieces])

    assert tokens == pytest.approx(tokens_of(pieces), rel=0.2)


@pytest.mark.parametrize("at_once", [1, 3])
def test_thinking_text_and_arguments_of_one_stream_are_estimated_together(at_once: int) -> None:
    """Their events have different envelopes."""
    draw = random.Random(at_once)
    kinds = [("chat, thinking", 300), ("chat", 100), ("chat, arguments", 200)]
    pieces = [(name, text) for name, count in kinds for text in texts(draw, WORDS, count, 1, 12)]

    tokens = relayed("chat", [WRITERS[name][1](text, 0) for name, text in pieces], at_once=at_once)

    assert tokens == pytest.approx(tokens_of([text for _, text in pieces]), rel=0.2)


# -- what is no text ------------------------------------------------------------------------------------------------------

SECOND = "A" * 64_000
"""A second of PCM at 24 kHz in base64."""


@pytest.mark.parametrize("pieces", [1, 5])
def test_sound_is_counted_by_its_length_in_time(pieces: int) -> None:
    """OpenAI counts 20 tokens a second, Gemini 25; what is said meanwhile is text."""
    step = 64_000 // pieces
    sound = [of_chat({"audio": {"data": SECOND[:step]}}) for _ in range(40 * pieces)]
    words = [of_chat({"audio": {"transcript": " word"}}) for _ in range(100)]
    of_gemini = [
        of_generated({"inlineData": {"mimeType": "audio/L16", "data": SECOND[:step]}}) for _ in range(40 * pieces)
    ]
    of_responses = [of_response("output_audio", SECOND[:step], number) for number in range(40 * pieces)]

    assert relayed("chat", [*sound, *words]) == pytest.approx(800 + 125, rel=0.2)
    assert relayed("generate", of_gemini) == pytest.approx(1000, rel=0.05)
    assert relayed("responses", of_responses) == pytest.approx(800, rel=0.05)


def test_pictures_are_not_counted_by_their_bytes() -> None:
    """Those of Gemini have 1,290 tokens, however an event comes."""
    for size in (1_000, 2_000_000):
        data = "iVBORw0K" * (size // 8)
        picture = of_generated({"inlineData": {"mimeType": "image/png", "data": data}})
        of_hub = of_chat({"images": [{"index": 0, "image_url": {"url": f"data:image/png;base64,{data}"}}]})

        assert relayed_in_parts("generate", picture) == 1290
        assert relayed_in_parts("chat", of_hub) == 1290


def relayed_in_parts(form: StreamForm, event: bytes) -> int:
    """The tokens of a stream of one event, which the relay passes on in parts if it is long."""
    said = Transcript(form)
    parts = [event[at : at + PENDING_LIMIT] for at in range(0, len(event), PENDING_LIMIT)]
    for part in parts[:-1]:
        said.read(part, is_part=True)
    said.read(parts[-1])
    return said.account()[1]


def test_long_events_count_as_short_ones() -> None:
    """Also those that a client leaves in their middle; not those that repeat what others have brought."""
    text = "some words " * 10_000
    event = of_chat({"content": text})
    said = Transcript("chat")
    said.read(event[: len(event) // 2], is_part=True)
    repeated = {"type": "response.output_text.done", "text": text}

    assert relayed_in_parts("chat", event) == pytest.approx(len(text) // 4, rel=0.01)
    assert said.account()[1] == pytest.approx(len(text) // 8, rel=0.01)
    assert relayed_in_parts("chat", of_chat({"audio": {"data": SECOND * 4}})) == pytest.approx(80, rel=0.05)
    assert relayed_in_parts("responses", line(repeated, "response.output_text.done")) == 0


@rows(
    ("event", "tokens"),
    [
        ({"choices": [{"delta": {"content": [{"type": "text", "text": "four"}, {"type": "thinking", "thinking": [
            {"type": "text", "text": "four"}]}]}}]}, 2.0),
        ({"choices": [{"delta": {"tool_calls": [{"function": {"name": "find", "arguments": '{"a":1}.'}}]}}]}, 3.0),
        ({"choices": [{"delta": {"tool_calls": [{"custom": {"name": "find", "input": "free"}}]}}]}, 2.0),
        ({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}, 0.0),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}, 0.0),
        ({"choices": [{"delta": {"annotations": [{"type": "url_citation", "url_citation": {"title": "a page"}}]}}]}, 0.0),
        ({"candidates": [{"content": {"parts": [{"functionCall": {"name": "find", "args": {"q": "xy"}}}]}}]}, 3.5),
        ({"candidates": [{"content": {"parts": [{"text": "", "thoughtSignature": "abcdefgh"}]}}]}, 0.0),
        ({"type": "content_block_start", "content_block": {"type": "tool_use", "name": "find", "input": {}}}, 1.0),
        ({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "abcdefgh"}}, 0.0),
        ({"type": "message_start", "message": {"id": "m", "content": [], "usage": {"output_tokens": 1}}}, 0.0),
        ({"type": "response.output_text.delta", "delta": "four"}, 1.0),
        ({"type": "response.output_text.done", "text": "four"}, 0.0),
        ({"type": "response.completed", "response": {"output": [{"content": [{"text": "four"}]}]}}, 0.0),
        ({"type": "response.created", "response": {"instructions": "four"}}, 0.0),
        ({"error": {"message": "four"}}, 0.0),
        ({"delta": None, "choices": {"delta": 7}, "content": [1, None, {"content": True}]}, 0.0),
    ],
)  # fmt: skip
def test_what_an_event_adds_is_output_and_nothing_else(event: dict[str, Any], tokens: float) -> None:
    """Names, numbers, signatures, citations and repetitions are none."""
    assert output_tokens_in(event) == tokens


def test_an_event_that_is_nested_deeply_is_counted_as_far_as_it_makes_sense() -> None:
    """It is no way to break the relay."""
    nested: Any = "text"
    for _ in range(2_000):
        nested = {"content": [nested]}

    assert output_tokens_in(nested) == 0.0


# -- usage ----------------------------------------------------------------------------------------------------------------


def account(form: StreamForm, *events: bytes) -> tuple[Usage | None, int]:
    said = Transcript(form)
    for event in events:
        said.read(event)
    return said.account()


def test_a_report_in_the_last_event_is_of_all_that_has_come() -> None:
    """And leaves nothing to be estimated; an older one, or one without output, does."""
    text = of_message({"type": "text_delta", "text": "word" * 100})
    start = line(
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}, "message_start"
    )
    end = line({"type": "message_delta", "delta": {}, "usage": {"output_tokens": 70}}, "message_delta")
    running = of_chat({"content": "word" * 100}, usage={"prompt_tokens": 9, "completion_tokens": 70})
    zero = of_chat({"content": "word" * 100}, usage={"prompt_tokens": 9, "completion_tokens": 0})
    generated = line({"candidates": [{"content": {"parts": [{"text": "word" * 100}]}}], "usageMetadata": {
        "promptTokenCount": 9, "candidatesTokenCount": 50, "thoughtsTokenCount": 20, "totalTokenCount": 79}})  # fmt: skip

    assert account("messages", start) == (Usage(9, 1), 0)
    assert account("messages", start, text) == (Usage(9, 1), 100)
    assert account("messages", start, text, end) == (Usage(9, 70), 0)
    assert account("chat", running) == (Usage(9, 70), 0)
    assert account("chat", zero, running) == (Usage(9, 70), 0)
    assert account("chat", zero, zero) == (Usage(9, 0), 200)
    assert account("generate", generated, generated) == (Usage(9, 70, parts=UsageParts(reasoning=20)), 0)


# -- samples --------------------------------------------------------------------------------------------------------------


@BOUNDED
@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=200), st.integers(50, 2_000), st.integers(1, 20))
def test_samples_of_all_events_give_the_whole_and_some_no_nonsense(sizes: list[int], envelope: int, step: int) -> None:
    """Nor less than nothing, whatever the samples are."""
    events = [(envelope + size, size / 4) for size in sizes]
    size = sum(one for one, _ in events)

    found = extend_samples(events[::step], len(events), size)

    assert 0 <= found <= size
    if step == 1:
        assert found == pytest.approx(sum(sizes) / 4, abs=1e-3)
