"""Recorded conversations on every way there is: requests, answers, streams and counts, those that take two conversions, too.

What goes out is taken by the target's SDK as far as its types are recorded (unknown fields are none, what is needed is there).
What comes back is taken by the caller's, is the same whole and streamed, and counts what the provider counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import orjson
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from gateway.core.types import How
from gateway.dialects.base import ConvertedRequest, ServerFacts
from gateway.dialects.config import read_models
from gateway.dialects.registry import Pair, pair_of
from gateway.dialects.target_languages import TargetLanguages
from tests.dialects import test_recorded_chat_over_converse as converse
from tests.dialects import test_recorded_chat_over_generate as generate
from tests.dialects import test_recorded_chat_over_messages as messages
from tests.dialects.aws_frames import stream_of
from tests.dialects.cases import Recorded, as_bytes, events_of, needs_cases, recorded
from tests.dialects.grammar import check_chat, check_messages, check_responses
from tests.dialects.sdk.callers import target_forms
from tests.dialects.sdk.forms import Json, recorded_forms
from tests.dialects.sdk.walk import problems

pytestmark = needs_cases

MODELS = read_models(None)
TARGETS = {
    "chat": ("openai", "gpt-5.9"),
    "responses": ("openai", "gpt-5.9"),
    "messages": ("anthropic", "claude-opus-4-8"),
    "generate": ("gemini", "gemini-3-pro"),
    "converse": ("bedrock", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"),
}
CALLERS = ("chat", "responses", "messages")
WAYS = [(asked, spoken) for asked in CALLERS for spoken in TARGETS if asked != spoken]
OTHERS: dict[str, tuple[str, ...]] = {"messages": ("bedrock-anthropic", "vertex-anthropic"), "chat": ("baseten",)}
"""Where the same language was recorded besides."""
_SEVERAL, _VIDEO, _PLACE = (
    "nMultipleCompletionsParam",
    "chatCompletionsUrlBackedVideoFileParam",
    "imageUrlMimeTypeFallbackParam",
)
NOT_SAID: dict[tuple[str, str], set[str]] = {
    ("chat", "responses"): {_SEVERAL},
    ("chat", "messages"): {_SEVERAL, _VIDEO},  # which know no video
    ("chat", "converse"): {_SEVERAL, _VIDEO, _PLACE},  # which fetches no pictures
    **{("responses", spoken): {"responsesProgrammaticToolCallingToolsParam"} for spoken in TARGETS},  # which run at OpenAI
    **{("messages", spoken): {
        "responsesToolSearchInputParam", "textEditorToolParam", "textEditorToolV3Param",
    } for spoken in TARGETS},  # tools that run at Anthropic, or that it knows by their names
}  # fmt: skip
"""The cases that cannot be said to a target; their gaps name the fields."""


def way(asked: str, spoken: str, model: str | None = None) -> tuple[Pair, ServerFacts, str]:
    dialect, usual = TARGETS[spoken]
    pair, model = pair_of(asked, spoken), model or usual
    return pair, TargetLanguages(dialect, frozenset((spoken,)), dialect, MODELS.of).facts(pair, model), model


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
def test_each_request_is_one_that_the_target_knows(asked: str, spoken: str) -> None:
    """All cases, but for those that are listed."""
    pair, facts, model = way(asked, spoken)
    forms = target_forms(spoken)
    refused: set[str] = set()
    count = 0
    for case in recorded(asked):
        body = {**case.request, "model": model}
        if any(gap.how is How.REFUSED for gap in pair.translator.gaps(body, facts)):
            refused.add(case.name.split()[0])
            continue
        made = pair.translator.request(body, facts, 0.0, lambda: "id").body
        assert problems(forms, made, forms.root) == [], case.name
        count += 1
    assert refused == NOT_SAID.get((asked, spoken), set())
    assert count >= 40


class Differing(NamedTuple):
    """Why what is sent differs from what was recorded of the same case, in which cases and fields."""

    why: str
    cases: str
    fields: str


DIFFERING = (
    Differing("one of the two asks for an effort, or another one, or as many words as it takes",
              "complexReasoningRequest reasoningRequestTruncated reasoningWithOutput simpleRequest",
              "reasoning reasoning_effort thinking additionalModelRequestFields generationConfig text verbosity"),
    Differing("there is no effort without room for it", "reasoningRequestTruncated", "max_tokens inferenceConfig"),
    Differing("the two were recorded with other words",
              "metadataParam parallelToolCallsDisabledParam promptCacheKeyParam storeDisabledParam textFormatJsonSchemaParam",
              "input messages contents metadata prompt_cache_key system user store"),
    Differing("one of the two has a bound, or another one",
              "jsonSchemaFormatParam metadataParam parallelToolCallsDisabledParam promptCacheKeyParam reasoningWithOutput "
              "simpleRequest textFormatJsonSchemaParam toolCallRequest toolChoiceRequiredParam responsesToolSearchInputParam",
              "max_tokens max_output_tokens inferenceConfig"),
    Differing("one of the two has a bound, a temperature, or closed its schema",
              "jsonSchemaFormatParam jsonSchemaMinimumMaximumParam textFormatJsonSchemaParam toolCallRequest "
              "toolChoiceAutoParam toolChoiceRequiredParam topPParam webSearchToolAdvancedParam", "generationConfig"),
    Differing("tools that come late are there from the start, and a search is bounded in words that only one of them has",
              "responsesToolSearchInputParam webSearchToolAdvancedParam", "messages tools"),
    Differing("one of the two has OpenAPI's kind of schema, is strict, or describes itself",
              "exclusiveMinimumToolParam parallelToolCallsDisabledParam toolCallRequest toolChoiceAutoParam "
              "toolChoiceRequiredParam", "tools"),
    Differing("Messages have no names of schemas", "jsonSchemaFormatParam textFormatJsonSchemaParam", "text"),
    Differing("one of the two says what holds without", "textFormatTextParam parallelToolCallsDisabledParam",
              "response_format tool_choice"),
    Differing("instructions are one text or a message, a developer's or the system's", "systemMessageArrayContent",
              "input instructions messages"),
)  # fmt: skip
NOT_COMPARED = {"model", "modelId", "stream"}
FOR_RESPONSES = {"include", "store"}
"""Nothing is to be kept at the provider, so what it encrypts has to go back: we say so each time."""


COMPARED = [(asked, spoken) for asked, spoken in WAYS if spoken == "responses" or asked == "responses"]
COMPARED += [("messages", "generate"), ("messages", "converse")]
"""The others are compared where they have tests of their own."""


def test_what_goes_out_is_what_was_recorded() -> None:
    """Of the same conversation in the target's language, but for the fields that are listed; and what is listed differs."""
    found: set[tuple[str, str]] = set()
    for asked, spoken in COMPARED:
        siblings = {case.name: case.request for case in recorded(spoken)}
        compared = 0
        for case in recorded(asked):
            sibling = siblings.get(case.name)
            if sibling is None or "followup" in case.name:  # what was answered in between is another each time
                continue
            pair, facts, model = way(asked, spoken, sibling.get("model") or sibling.get("modelId"))
            body = {**case.request, "model": model}
            if any(gap.how is How.REFUSED for gap in pair.translator.gaps(body, facts)):
                continue
            made = pair.translator.request(body, facts, 0.0, lambda: "id").body
            ignored = NOT_COMPARED | (FOR_RESPONSES if spoken == "responses" else set())
            for field in (made.keys() | sibling.keys()) - ignored:
                if made.get(field) != sibling.get(field):
                    found.add((case.name.strip(), field))
            compared += 1
        assert compared >= 5
    listed = [(set(row.cases.split()), set(row.fields.split())) for row in DIFFERING]
    assert [one for one in found if not any(one[0] in cases and one[1] in fields for cases, fields in listed)] == []
    for cases, fields in listed:
        here = {one for one in found if one[0] in cases and one[1] in fields}
        assert ({case for case, _ in here}, {field for _, field in here}) == (cases, fields)


def answered(spoken: str) -> Iterator[Recorded]:
    """Yields the exchanges whose target speaks this, wherever it stands."""
    for language in (spoken, *OTHERS.get(spoken, ())):
        for case in recorded(language):
            events = case.events or [{}]
            is_whole = events[0].get("type") == "message"  # what Vertex sent when it was asked for a stream
            # The long streams of chat are read by `test_recorded` and `test_messages_recorded`.
            is_read_elsewhere = language == "chat"
            yield case._replace(events=None) if is_whole or is_read_elsewhere else case


def raw_of(spoken: str, events: list[Json]) -> bytes:
    return stream_of(events) if spoken == "converse" else as_bytes(spoken, events)


def whole_of(spoken: str, case: Recorded) -> Json:
    """Returns the answer that a stream tells, put together by nothing of ours."""
    events = case.events or []
    if spoken == "chat":
        state = ChatCompletionStreamState()
        for event in events:
            for call in [one for choice in event["choices"] for one in choice["delta"].get("tool_calls") or ()]:
                if not call.get("function", {}).get("name"):
                    call.pop("id", None)  # which some say over and over, and the SDK puts together
            state.handle_chunk(ChatCompletionChunk.model_validate(event))
        made: Json = state.current_completion_snapshot.to_dict(mode="json")
        return made
    if spoken == "responses":
        last: Json = events[-1]["response"]
        return last
    found = {"messages": messages.whole_of, "generate": generate.whole_of, "converse": converse.whole_of}
    return found[spoken](case)


def total(language: str, answer: Json) -> int | None:
    """Returns all tokens of an answer as its own language counts them; None: it does not say."""
    usage: Any = answer.get("usageMetadata" if language == "generate" else "usage")
    if usage is None:
        return None
    if language == "messages":
        names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        return sum(usage.get(name) or 0 for name in names)
    found: int = usage[{"generate": "totalTokenCount", "converse": "totalTokens"}.get(language, "total_tokens")]
    return found


def check_valid(asked: str, answer: Json) -> None:
    if asked == "messages":
        forms = recorded_forms("messages", "answer")
        assert problems(forms, {name: value for name, value in answer.items() if value is not None}, forms.root) == []
    else:
        (ChatCompletion if asked == "chat" else Response).model_validate(answer, strict=True)


def sent_for(asked: str, spoken: str) -> ConvertedRequest:
    pair, facts, model = way(asked, spoken)
    said: Json = {"input": "x"} if asked == "responses" else {"messages": [{"role": "user", "content": "x"}]}
    options: Json = {"stream_options": {"include_usage": True}} if asked == "chat" else {}
    body = {"model": model, "max_tokens": 9, "stream": True, **said, **options}
    return pair.translator.request(body, facts, 1.7e9, lambda: "abc")


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
def test_each_answer_is_one_of_the_callers_and_counts_what_the_provider_did(asked: str, spoken: str) -> None:
    """Whole and streamed: cache and thinking included, for every answer there is."""
    translator, sent = pair_of(asked, spoken).translator, sent_for(asked, spoken)
    wholes = streams = 0
    for case in answered(spoken):
        if case.name in generate.GIVEN_UP or (asked == "messages" and "custom_tool_call" in str(case.answer)):
            continue  # who asks by Messages has no tools with free text
        if case.answer is not None and not case.answer.get("error"):
            made = translator.answer(sent, case.answer)
            check_valid(asked, made)
            assert total(asked, made) == total(spoken, case.answer), case.name
            wholes += 1
        if case.events:
            raw, reader = raw_of(spoken, case.events), translator.reader(sent)
            stream = b"".join(reader.feed(raw[at : at + 997]) for at in range(0, len(raw), 997)) + reader.close(
                is_clean=True
            )
            whole = whole_of(spoken, case)
            check_streamed(asked, stream, translator.answer(sent, whole), case.name)
            streams += 1
    assert (wholes, streams) >= (14, 2 if spoken == "chat" else 14)


def check_streamed(asked: str, stream: bytes, whole: Json, name: str) -> None:
    """The grammar is kept, and the stream says what the whole answer does."""
    if asked == "messages":
        told = check_messages(stream)
        assert blocks_of(told) == blocks_of(whole), name
        assert (told["stop_reason"], total(asked, told)) == (whole["stop_reason"], total(asked, whole)), name
    elif asked == "responses":
        response = check_responses(events_of(stream))
        assert said(response) == said(whole), name
    else:
        chat, message = check_chat(events_of(stream), stream), whole["choices"][0]["message"]
        assert (chat["content"] or None) == (message["content"] or None), name
        assert chat["finish_reason"] == whole["choices"][0]["finish_reason"], name
        assert total("chat", chat) == total("chat", whole), name


def blocks_of(message: Json) -> list[Json]:
    """The blocks of each type in their order: a whole chat completion does not say where among its words it thought.

    What OpenAI has encrypted is another each time that it is told, in one stream, too.
    """
    found = [block | ({"data": ...} if "data" in block else {}) for block in message["content"]]
    return sorted(found, key=lambda block: str(block["type"]))


def said(response: Json) -> Any:
    """What a response says, without the ids of its items."""
    items = [{name: value for name, value in item.items() if name != "id"} for item in response["output"]]
    for item in items:
        if item["type"] == "function_call" and item["status"] == "completed":
            item["arguments"] = orjson.loads(item["arguments"])  # a stream's are as the model wrote them
    return items, response["status"], response["usage"]
