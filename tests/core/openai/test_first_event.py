"""The first events of a stream: what only announces an answer, and what is one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.sse import FAILED_REASONS, FirstEventKind, first_error, first_word
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)


def data(value: object) -> bytes:
    return b"data: %s\n\n" % orjson.dumps(value)


def chunk(delta: object, finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}


def candidates(content: object, **more: Any) -> dict[str, Any]:
    """An event of Gemini's."""
    return {"candidates": [{"content": content, "index": 0, **more}], "usageMetadata": {"promptTokenCount": 7}}


ANNOUNCEMENTS = {
    "comment": b": OPENROUTER PROCESSING\n\n",
    "no data": b"event: ping\n\n",
    "empty data": b"data:\n\n",
    "blank": b"\n",
    "role": data(chunk({"role": "assistant"})),
    "role, empty content": data(chunk({"role": "assistant", "content": "", "refusal": None})),
    "role, null content, empty calls": data(chunk({"role": "assistant", "content": None, "tool_calls": []})),
    "empty reasoning": data(chunk({"content": "", "reasoning_content": ""})),
    "empty delta, null usage": data(chunk({}, usage=None)),
    "usage in every chunk": data(chunk({"role": "assistant"}, usage={"prompt_tokens": 7})),
    "azure filter results": data({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
    "no choices": data({"id": "c", "object": "chat.completion.chunk"}),
    "completions": data({"object": "text_completion", "choices": [{"text": "", "index": 0, "finish_reason": None}]}),
    "response.created": b'event: response.created\ndata: {"type":"response.created","response":{"error":null}}\n\n',
    "response.queued": data({"type": "response.queued"}),
    "response.in_progress": data({"type": "response.in_progress"}),
    "empty message": data({"type": "response.output_item.added", "item": {"type": "message", "content": []}}),
    "empty part": data({"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}}),
    "message_start": b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n',
    "content_block_start": data({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
    "ping": data({"type": "ping"}),
    "empty text delta": data({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": ""}}),
    "empty thinking": data({"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": ""}}),
    "empty arguments": data({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": ""}}),
    "empty response text": data({"type": "response.output_text.delta", "delta": "", "obfuscation": "x"}),
    "candidate, empty text": data(candidates({"parts": [{"text": ""}], "role": "model"})),
    "candidate, empty thought": data(candidates({"parts": [{"text": "", "thought": True}]})),
    "candidate without parts": data(candidates({"role": "model"}, safetyRatings=[{"probability": "LOW"}])),
    "no candidates": data({"candidates": [], "promptFeedback": {"safetyRatings": []}}),
    "only usage": data({"usageMetadata": {"promptTokenCount": 7}, "modelVersion": "g"}),
}

NEWS = {
    "content": data(chunk({"role": "assistant", "content": "H"})),
    "a blank": data(chunk({"content": " "})),
    "reasoning": data(chunk({"reasoning_content": "hm"})),
    "refusal": data(chunk({"refusal": "no"})),
    "tool call": data(chunk({"role": "assistant", "tool_calls": [{"index": 0, "function": {"name": "f"}}]})),
    "function call": data(chunk({"function_call": {"name": "f", "arguments": ""}})),
    "audio": data(chunk({"audio": {"id": "a"}})),
    "finish": data(chunk({}, "stop")),
    "second choice": data({"choices": [{"delta": {"role": "assistant"}}, {"delta": {"content": "x"}}]}),
    "completions": data({"choices": [{"text": "H", "index": 0, "finish_reason": None}]}),
    "delta": data({"type": "response.output_text.delta", "delta": "H"}),
    "reasoning item": data({"type": "response.output_item.added", "item": {"type": "reasoning", "summary": []}}),
    "function item": data({"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}}),
    "completed": data({"type": "response.completed", "response": {}}),
    "content_block_delta": data({"type": "content_block_delta", "delta": {"text": "H"}}),
    "image": data({"type": "image_generation.partial_image", "b64_json": "x"}),
    "unknown": data({"what": "is this"}),
    "signature": data({"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": "x"}}),
    "end of a block": data({"type": "content_block_stop", "index": 0}),
    "candidate": data(candidates({"parts": [{"text": "H"}]})),
    "second part": data(candidates({"parts": [{"text": ""}, {"functionCall": {"name": "f"}}]})),
    "signed thought": data(candidates({"parts": [{"text": "", "thoughtSignature": "x"}]})),
    "ended candidate": data(candidates({"parts": [{"text": ""}]}, finishReason="STOP")),
    "blocked prompt": data({"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {}}),
}


@rows("event", ANNOUNCEMENTS.values(), ids=ANNOUNCEMENTS.keys())
def test_announcements_say_nothing_yet(event: bytes) -> None:
    """After one of them another target may still try."""
    assert first_word(event) is FirstEventKind.NOTHING
    assert first_error(event) is None


@rows("event", NEWS.values(), ids=NEWS.keys())
def test_output_and_ends_are_never_held_back(event: bytes) -> None:
    """A first token, of whatever kind, is never late."""
    assert first_word(event) is FirstEventKind.SOMETHING
    assert first_error(event) is None


@rows(
    ("event", "word"),
    [
        (b"data: [DONE]\n\n", FirstEventKind.DONE),
        (b"data:[DONE] \r\n\r\n", FirstEventKind.DONE),
        (b"data: what is this\n\n", FirstEventKind.NONSENSE),
        (b'data: {"choices":[{"del\n\n', FirstEventKind.NONSENSE),
        (b"data: [1]\n\n", FirstEventKind.NONSENSE),
        (b"<html>\n\n", FirstEventKind.NONSENSE),
        (b'{"detail":"x"}\n\n', FirstEventKind.NONSENSE),
    ],
)
def test_ends_and_nonsense_are_told(event: bytes, word: FirstEventKind) -> None:
    """Neither begins an answer."""
    assert first_word(event) is word


@pytest.mark.parametrize("reason", sorted(FAILED_REASONS))
def test_a_finish_reason_that_means_failure_is_an_error(reason: str) -> None:
    """OpenRouter's, DeepSeek's and SGLang's own; whatever is written in capitals too."""
    error = first_error(data(chunk({"content": ""}, reason.upper())))

    assert error is not None
    assert error["code"] == reason.upper()
    assert reason.upper() in error["message"]


def test_the_providers_error_goes_before_its_finish_reason() -> None:
    """OpenRouter sends both; the error says more."""
    error = {"code": 502, "message": "m", "metadata": {"error_type": "provider_unavailable"}}

    assert first_error(data(chunk({"content": ""}, "error", error=error))) == error


values: st.SearchStrategy[Any] = (
    st.none() | st.just("") | st.text(min_size=1, max_size=3) | st.just([]) | st.lists(st.integers(0, 9), min_size=1)
)


@BOUNDED
@given(
    st.lists(st.dictionaries(st.sampled_from(["role", "content", "refusal", "tool_calls", "x"]), values), max_size=3)
)
def test_a_chunk_is_held_back_only_if_no_choice_has_anything(deltas: list[dict[str, Any]]) -> None:
    """Whatever the fields are called, but for the role."""
    event = data({"choices": [{"index": n, "delta": delta} for n, delta in enumerate(deltas)]})
    says = any(value for delta in deltas for name, value in delta.items() if name != "role")

    assert first_word(event) is (FirstEventKind.SOMETHING if says else FirstEventKind.NOTHING)


names = st.sampled_from(
    ["choices", "delta", "type", "item", "part", "error", "finish_reason", "response", "candidates", "content", "parts"]
)
objects = st.recursive(st.none() | st.text(max_size=3), lambda some: st.lists(some) | st.dictionaries(names, some))


@BOUNDED
@given(st.binary(max_size=40) | objects.map(data))
def test_no_bytes_are_too_strange(event: bytes) -> None:
    """Every event has a meaning."""
    first_error(event)
    assert isinstance(first_word(event), FirstEventKind)
