"""Two conversions one after the other, by the pairs that there are: there and back again."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import ServerFacts, ThroughChat
from gateway.dialects.openai.translators import ChatOverResponses, ResponsesOverChat
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import TargetLanguages
from tests.dialects.cases import as_bytes, events_of
from tests.dialects.grammar import check_responses

THERE_AND_BACK = ThroughChat(ResponsesOverChat(), ChatOverResponses())
FACTS = ServerFacts()
ASKED = {"model": "m", "input": [{"role": "user", "content": "hi"}], "max_output_tokens": 50, "stream": True}
EVENTS: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "resp_1", "model": "m", "output": []}},
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "message", "id": "msg_1", "content": []},
    },
    {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hello"},
    {
        "type": "response.completed",
        "response": {
            "id": "resp_1",
            "status": "completed",
            "model": "m",
            "output": [
                {
                    "type": "message",
                    "id": "msg_1",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "hello"}],
                }
            ],
            "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4},
        },
    },
]


def test_a_request_goes_through_both() -> None:
    sent = THERE_AND_BACK.request(ASKED, FACTS, 1.7e9, lambda: "abc")

    assert sent.body["input"] == [{"role": "user", "content": "hi"}]
    assert sent.body["max_output_tokens"] == 50
    assert sent.via is not None
    assert sent.via.body["messages"] == [{"role": "user", "content": "hi"}]


def test_what_either_loses_is_told_once() -> None:
    body = {**ASKED, "truncation": "auto", "max_output_tokens": 5}

    assert {gap.field: gap.how.value for gap in THERE_AND_BACK.gaps(body, FACTS)} == {
        "max_tokens": "approximated",
        "truncation": "dropped",
    }


def test_what_nobody_could_understand_is_no_gap_but_an_error_of_the_request() -> None:
    orphan = {**ASKED, "input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}

    assert not THERE_AND_BACK.gaps(orphan, FACTS)
    with pytest.raises(InvalidRequest):
        THERE_AND_BACK.request(orphan, FACTS, 1.7e9, lambda: "abc")


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_answer_comes_back_through_both_whole_and_streamed(size: int) -> None:
    sent = THERE_AND_BACK.request(ASKED, FACTS, 1.7e9, lambda: "abc")
    whole = THERE_AND_BACK.answer(sent, EVENTS[-1]["response"])
    raw, reader = as_bytes("responses", EVENTS), THERE_AND_BACK.reader(sent)
    streamed = b"".join(reader.feed(raw[at : at + size]) for at in range(0, len(raw), size))
    streamed += reader.close(is_clean=True)

    ended = check_responses(events_of(streamed))
    assert ended["output"][0]["content"][0]["text"] == whole["output"][0]["content"][0]["text"] == "hello"
    assert ended["usage"]["input_tokens"] == whole["usage"]["input_tokens"] == 3


def test_an_end_is_never_invented() -> None:
    sent = THERE_AND_BACK.request(ASKED, FACTS, 1.7e9, lambda: "abc")
    reader = THERE_AND_BACK.reader(sent)
    streamed = reader.feed(as_bytes("responses", EVENTS[:-1])) + reader.close(is_clean=True)

    assert b"response.completed" not in streamed


def test_a_schema_is_as_strict_as_the_last_target_takes_it() -> None:
    """OpenAI refuses a strict one with optional properties, and is not asked for it where two conversions lead there."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    asked: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "x"}]}
    asked |= {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    pair = pair_of("messages", "responses")
    for kind, strict, lost in (("openai", False, ["output_config.format"]), ("vllm", True, [])):
        facts = TargetLanguages(kind, frozenset(("responses",))).facts(pair, "m")
        made = pair.translator.request(asked, facts, 0.0, str).body
        assert made["text"]["format"]["strict"] is strict
        assert [gap.field for gap in pair.translator.gaps(asked, facts)] == lost
