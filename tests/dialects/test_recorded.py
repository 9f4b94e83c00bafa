"""Recorded conversations: what goes out is valid for the official SDK, what comes back is, and streamed is as whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai import omit
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from pydantic import TypeAdapter

from gateway.core.types import How
from gateway.dialects.base import ConvertedRequest, ServerFacts, Translator
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from tests.dialects.cases import Recorded, as_bytes, events_of, needs_cases, recorded
from tests.dialects.grammar import check_chat, check_responses

pytestmark = needs_cases

PAIRS: dict[str, tuple[Translator, str]] = {
    "responses": (ResponsesOverChat(), "chat"),
    "chat": (ChatOverResponses(), "responses"),
}
"""By the caller's language: the pair, and the target's language."""
NOT_SAID = {
    ("responses", "responsesAdditionalToolsMultipleToolsParam"): {"input.additional_tools"},
    ("responses", "responsesProgrammaticToolCallingToolsParam"): {"tools.programmatic_tool_calling", "input.program"},
    ("responses", "responsesToolSearchInputParam"): {
        "tools.namespace",
        "tools.tool_search",
        "input.tool_search_call",
        "input.tool_search_output",
    },
    ("chat", "nMultipleCompletionsParam"): {"n"},
}
"""Cases that the other language has no words for, and the fields that say so."""


def sent_for(language: str, request: dict[str, Any]) -> ConvertedRequest:
    return PAIRS[language][0].request(request, ServerFacts(), 1.7e9, lambda: "abc")


def sayable(language: str) -> Iterator[Recorded]:
    """Yields the cases that can be said; the others are refused, by name."""
    for case in recorded(language):
        refused = {gap.field for gap in PAIRS[language][0].gaps(case.request, ServerFacts()) if gap.how is How.REFUSED}
        assert refused <= NOT_SAID.get((language, case.name.split()[0]), set()), case.name
        if not refused:
            yield case


@pytest.mark.parametrize(
    ("language", "other"),
    [("responses", CompletionCreateParamsNonStreaming), ("chat", ResponseCreateParamsNonStreaming)],
)
def test_what_goes_out_is_valid(language: str, other: Any) -> None:
    """For the official SDK's own types."""
    accepted = TypeAdapter(other)
    converted = [accepted.validate_python(sent_for(language, case.request).body) for case in sayable(language)]
    assert len(converted) >= 40


@pytest.mark.parametrize(("language", "kind"), [("responses", Response), ("chat", ChatCompletion)])
def test_what_comes_back_is_valid(language: str, kind: Any) -> None:
    """Every whole answer of the other language."""
    translator, spoken = PAIRS[language]
    answers = [case.answer for case in recorded(spoken) if case.answer is not None]
    sent = sent_for(language, {"model": "m", "messages": [], "input": "x"})
    for answer in answers:
        kind.model_validate(translator.answer(sent, answer), strict=True)
    assert len(answers) >= 40


def stream_through(language: str, raw: bytes, size: int) -> bytes:
    reader = PAIRS[language][0].reader(
        sent_for(
            language,
            {
                "model": "m",
                "messages": [],
                "input": "x",
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    )
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    return b"".join(map(reader.feed, pieces)) + reader.close(is_clean=True)


def parted(response: dict[str, Any]) -> Any:
    """What a response says, without the ids of its items."""
    items = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    return items, response["status"], response["usage"], response["model"], response.get("service_tier")


def listed(chunks: list[dict[str, Any]], field: str) -> list[dict[str, Any]]:
    """What the pieces of a stream bring of a list."""
    return [one for chunk in chunks for choice in chunk["choices"] for one in choice["delta"].get(field, ())]


def test_streams_of_chat_are_good_responses() -> None:
    """Each event valid, the grammar kept, and the same however the bytes arrive."""
    valid = TypeAdapter(ResponseStreamEvent)
    streams = [case.events for case in recorded("chat") if case.events]
    for number, events in enumerate(streams):
        raw = as_bytes("chat", events)
        stream = stream_through("responses", raw, len(raw))
        assert stream_through("responses", raw, 61) == stream
        made = events_of(stream)
        state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
        # The SDK takes long for each event; the same few kinds come over and over.
        for event in made if number % 4 == 0 else made[:8] + made[-8:]:
            checked = valid.validate_python(event)
            if number % 4 == 0:
                state.handle_event(checked)
        whole = check_responses(made)
        final = ChatCompletionStreamState()
        for event in events:
            final.handle_chunk(ChatCompletionChunk.model_validate(event))
        recorded_whole = final.current_completion_snapshot.to_dict(mode="json")
        converted = PAIRS["responses"][0].answer(sent_for("responses", {"model": "m", "input": "x"}), recorded_whole)
        assert parted(converted) == parted(whole)
        texts = [part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]]
        if whole["status"] == "completed" and number % 4 == 0:
            assert state._completed_response is not None
            assert state._completed_response.output_text == "".join(texts)
        told = "".join(
            choice["delta"].get("content") or ""
            for event in events
            for choice in event["choices"]
            if not choice["index"]
        )
        assert "".join(texts) == told
    assert len(streams) >= 30


def test_streams_of_responses_are_good_chat() -> None:
    """Each chunk valid, but for custom tools, which the SDK has no type for; text, calls and usage as in the whole answer."""
    streams = [(case.name, case.events) for case in recorded("responses") if case.events]
    for name, events in streams:
        raw = as_bytes("responses", events)
        stream = stream_through("chat", raw, len(raw))
        assert stream_through("chat", raw, 61) == stream
        made = events_of(stream)
        state = ChatCompletionStreamState()
        if "Custom" not in name and "AdditionalTools" not in name:
            for chunk in made:
                state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
        told = check_chat(made, stream)
        whole = PAIRS["chat"][0].answer(
            sent_for("chat", {"model": "m", "messages": [], "stream": True}), events[-1]["response"]
        )
        message = whole["choices"][0]["message"]
        assert (told["content"] or None) == (message["content"] or None)
        assert told["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert told["reasoning_content"] == message.get("reasoning_content", "")
        assert (told["refusal"] or None) == message["refusal"]
        assert listed(made, "annotations") == message.get("annotations", [])
        details = [
            detail | {"data": ...} for detail in message.get("reasoning_details", ())
        ]  # encrypted anew each time
        assert [detail | {"data": ...} for detail in listed(made, "reasoning_details")] == details
        if "Custom" not in name and "AdditionalTools" not in name:
            final = state.current_completion_snapshot.choices[0]
            assert (final.message.content or None, final.finish_reason) == (message["content"], told["finish_reason"])
            assert len(final.message.tool_calls or ()) == len(message.get("tool_calls", ()))
        assert {event.get("service_tier") for event in made[-1:]} == {whole.get("service_tier")}
        if told["usage"] is not None:
            assert told["usage"] == whole["usage"]
        calls = [call | {"index": index} for index, call in enumerate(message.get("tool_calls", ()))]
        assert told["tool_calls"] == calls
    assert len(streams) >= 30
