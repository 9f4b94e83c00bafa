"""Whether an answer keeps its schema: the verdict, its place, and what a schema may cost."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.sse import json_object
from gateway.dialects.conversion import as_stream
from gateway.drivers.json_schema import JsonSchema, compile_schema
from gateway.features.output.rules import (
    NO_JSON,
    OutputResult,
    OutputRule,
    OutputText,
    StreamedTexts,
    Violation,
    added_usage,
    repair_request,
    repaired_text,
    texts_of,
    violation_of,
    with_texts,
)

Json = dict[str, Any]
LEAVES: list[Json] = [{"type": "string"}, {"type": "integer"}, {"enum": [1, "a"]}, {"type": "null"}, {}]
schemas = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        st.builds(lambda one: {"type": "array", "items": one}, inner),
        st.builds(lambda one, two: {"anyOf": [one, two]}, inner, inner),
        st.builds(
            lambda one, two: {"type": "object", "properties": {"a": one, "b": two}, "required": ["a"]}, inner, inner
        ),
    ),
    max_leaves=6,
)
values = st.recursive(
    st.one_of(st.none(), st.integers(-3, 3), st.sampled_from(["", "a", "secret"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abz"), inner, max_size=3)),
    max_leaves=8,
)


def schema(value: object) -> JsonSchema:
    return compile_schema(orjson.dumps(value))


@given(schemas, values)
def test_the_verdict_is_the_librarys_and_its_place_is_in_the_answer(asked: Json, value: object) -> None:
    text = orjson.dumps(value)
    violation = violation_of(schema(asked), text)
    assert (violation is None) == jsonschema_rs.is_valid(asked, value)
    if violation is None:
        return
    here: Any = value
    for step in violation.path.split("/")[1:]:
        here = here[int(step)] if isinstance(here, list) else here[step]
    assert violation.rule in {"type", "enum", "anyOf", "required"}


@given(values)
def test_a_code_fence_or_words_around_json_break_the_rule(value: object) -> None:
    text = orjson.dumps(value)
    for wrapped in (b"```json\n" + text + b"\n```", b"Here it is: " + text, text + b" - done", b""):
        assert violation_of(schema({}), wrapped) == NO_JSON


def test_a_violation_says_no_word_of_the_answer() -> None:
    asked = {"properties": {"known": {"additionalProperties": {"type": "integer"}}}}
    violation = violation_of(schema(asked), b'{"known": {"a secret": "another"}}')
    assert violation == Violation("type", "/known/*")
    assert str(violation) == "rule `type` at `/known/*`"


def test_only_the_first_violation_is_made_however_many_there_are() -> None:
    class First:
        """The library's validator, without the method that makes all errors at once: it takes a minute for some answers."""

        def __init__(self) -> None:
            made = jsonschema_rs.validator_for({"items": {"enum": ["a"]}})
            self.is_valid, self.validate = made.is_valid, made.validate

    made = schema({"items": {"enum": ["a"]}})
    made._validator = First()
    assert violation_of(made, orjson.dumps(["b"] * 9000)) == Violation("enum", "/0")


def test_an_answer_deeper_than_the_library_goes_is_a_violation_and_a_long_place_is_cut() -> None:
    assert violation_of(schema({"type": "object"}), b"[" * 300 + b"]" * 300) == Violation("schema", "")
    name = "n" * 60_000
    found = violation_of(schema({"properties": {name: {"type": "string"}}}), orjson.dumps({name: 1}))
    assert found is not None
    assert (found.rule, len(found.path)) == ("type", 201)


def chat(content: object, finish: str = "stop", **message: object) -> Json:
    return {"choices": [{"index": 0, "message": {"content": content, **message}, "finish_reason": finish}]}


def response(*items: Json, status: str = "completed", **fields: object) -> Json:
    return {"object": "response", "status": status, "output": [*items], **fields}


def message(text: str, kind: str = "output_text") -> Json:
    return {"type": "message", "content": [{"type": kind, ("refusal" if kind == "refusal" else "text"): text}]}


def claudes(*texts: str, stop_reason: str = "end_turn") -> Json:
    """A message of Anthropic's."""
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        *({"type": "text", "text": one} for one in texts),
    ]
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_sequence": None}
    return {**about, "content": blocks, "stop_reason": stop_reason, "usage": {"input_tokens": 1, "output_tokens": 2}}


CALL = {"type": "function_call", "name": "f", "arguments": "{}"}


@pytest.mark.parametrize(
    ("endpoint", "answer", "excuse"),
    [
        ("chat", chat("{}"), None),
        ("chat", chat(""), None),
        ("chat", chat(None, refusal="I cannot"), OutputResult.REFUSED),
        ("chat", chat("{", "length"), OutputResult.SKIPPED),
        ("chat", chat("", "content_filter"), OutputResult.REFUSED),
        ("chat", chat(None, "tool_calls", tool_calls=[{}]), OutputResult.SKIPPED),
        ("chat", chat("I look it up", "tool_calls", tool_calls=[{}]), OutputResult.SKIPPED),
        ("responses", response(message("{}")), None),
        ("responses", response(message("no", "refusal")), OutputResult.REFUSED),
        ("responses", response(message("{"), status="incomplete"), OutputResult.SKIPPED),
        (
            "responses",
            response(status="incomplete", incomplete_details={"reason": "content_filter"}),
            OutputResult.REFUSED,
        ),
        ("responses", response(message("I look"), CALL), OutputResult.SKIPPED),
        ("responses", response({"type": "reasoning"}, message("{}")), None),
        ("messages", claudes("{", stop_reason="max_tokens"), OutputResult.SKIPPED),
        ("messages", claudes("I look", stop_reason="tool_use"), OutputResult.SKIPPED),
        ("messages", claudes("", stop_reason="refusal"), OutputResult.REFUSED),
        ("messages", claudes("{}", stop_reason="stop_sequence"), None),
    ],
)
def test_refusals_cuts_and_tool_calls_are_no_violations(
    endpoint: str, answer: Json, excuse: OutputResult | None
) -> None:
    (text,) = texts_of(endpoint, answer)
    assert text.excuse == excuse


def test_a_content_in_parts_is_its_text_whole_and_streamed() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "{}"}]
    assert texts_of("chat", chat(parts)) == [OutputText(0, "{}")]
    assert texts_of("chat", chat("{", "model_length")) == [OutputText(0, "{", OutputResult.SKIPPED)]
    streamed = StreamedTexts("chat")
    streamed.feed(b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": parts}}]}) + b"\n\n")
    assert streamed.texts() == [OutputText(0, "{}")]


def test_nothing_of_an_odd_answer_is_a_text() -> None:
    odd: list[Json] = [{}, {"choices": 1}, {"choices": []}]
    for answer in odd:
        assert texts_of("chat", answer) == []
    assert texts_of("chat", {"choices": [1]}) == [OutputText(0, "", OutputResult.SKIPPED)]
    assert texts_of("responses", response(CALL)) == []


def test_another_text_takes_the_place_and_nothing_else_moves() -> None:
    used: Json = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    answer: Json = chat("bad") | {"id": "x", "usage": used}
    usage = added_usage("chat", answer["usage"], 10, 4)
    told = with_texts("chat", answer, {0: "{}"}, usage)
    assert told["choices"][0]["message"]["content"] == "{}"
    assert told["usage"] == {"prompt_tokens": 15, "completion_tokens": 6, "total_tokens": 21}
    assert (told["id"], answer["choices"][0]["message"]["content"]) == ("x", "bad")
    whole = response({"type": "reasoning"}, message("bad"), output_text="bad")
    told = with_texts("responses", whole, {1: "{}"}, None)
    assert texts_of("responses", told) == [OutputText(1, "{}")]
    assert told["output_text"] == "{}"
    told = with_texts("messages", claudes("b", "ad"), {0: "{}"}, None)
    assert [block["type"] for block in told["content"]] == ["thinking", "text"]
    assert texts_of("messages", told) == [OutputText(0, "{}")]


@given(st.lists(st.text(max_size=20), max_size=6), st.integers(1, 40))
def test_a_stream_says_what_the_whole_answer_says_however_it_is_cut(pieces: list[str], size: int) -> None:
    head = {"id": "1", "object": "chat.completion.chunk"}
    choices: list[Json] = [{"index": 0, "delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    frames = (
        b"".join(b"data: " + orjson.dumps(head | {"choices": [one]}) + b"\n\n" for one in choices) + b"data: [DONE]\n\n"
    )
    read = StreamedTexts("chat")
    for at in range(0, len(frames), size):
        read.feed(frames[at : at + size])
    assert read.texts() == texts_of("chat", chat("".join(pieces)))

    whole = claudes(*pieces)
    frames = as_stream("messages", orjson.dumps(whole), include_usage=False) or b""
    read = StreamedTexts("messages")
    for at in range(0, len(frames), size):
        read.feed(frames[at : at + size])
    assert read.texts() == texts_of("messages", whole) == [OutputText(0, "".join(pieces))]


def test_a_streamed_response_is_read_from_its_last_event_or_its_items() -> None:
    item = {"type": "response.output_item.done", "output_index": 0, "item": message("{}")}
    for last in (response(message("{}")), response()):
        read = StreamedTexts("responses")
        events: list[Json] = [item, {"type": "response.completed", "response": last}]
        for event in events:
            read.feed(b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n")
        assert read.texts() == [OutputText(0, "{}")]


def test_a_repair_asks_for_the_json_only_and_takes_one_fence_off() -> None:
    body = json_object(repair_request("gpt-4o", b'{"type": "object"}', Violation("json", ""), "not json")) or {}
    assert body["model"] == "gpt-4o"
    assert '{"type": "object"}' in body["messages"][1]["content"]
    assert "not json" in body["messages"][1]["content"]
    assert repaired_text(orjson.dumps(chat('```json\n{"a": 1}\n```'))) == '{"a": 1}'
    assert repaired_text(orjson.dumps(chat("{}"))) == "{}"
    assert repaired_text(orjson.dumps(chat("{", "length"))) is None
    assert repaired_text(b"nothing") is None


def test_another_rule_has_another_digest() -> None:
    one, other = schema({}), schema({"type": "object"})
    digests = {
        rule.digest for rule in (OutputRule(), OutputRule(one), OutputRule(other), OutputRule(one, at_last="pass"))
    }
    assert len(digests) == 4
