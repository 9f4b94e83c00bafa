"""Recorded conversations in Messages as chat completions, and recorded answers of chat completions as messages."""

from __future__ import annotations

from typing import Any

from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)
from pydantic import TypeAdapter

from gateway.core.types import How
from gateway.dialects.anthropic.in_gaps import MessagesOverChat
from gateway.dialects.base import ModelFacts, ServerFacts
from tests.dialects.cases import as_bytes, needs_cases, recorded
from tests.dialects.grammar import check_messages

pytestmark = needs_cases

Json = dict[str, Any]
PAIR = MessagesOverChat()
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
OPENAI = ServerFacts(
    bound_field="max_completion_tokens", takes_developer=True, takes_reasoning=False, requires_all=True,
    model=ModelFacts(thinking="level", efforts=EFFORTS, cache_marks=True),
)  # fmt: skip
NOT_SAID = {
    "responsesToolSearchInputParam",
    "textEditorToolParam",
    "textEditorToolV3Param",
}
"""Cases with tools that run at Anthropic, which the table of gaps refuses by their names."""
EACH = {"model", "max_completion_tokens"}
"""Each language has its own models, and Messages always have a bound."""
OTHERWISE: dict[str, set[str]] = {
    "chatCompletionsAssistantCacheControlParam": {"messages"},  # their mark is OpenRouter's, ours is OpenAI's
    "chatCompletionsSystemCacheControlParam": {"messages"},  # so are these; and OpenAI's instructions are a developer's
    "jsonSchemaFormatParam": {"response_format"},  # Messages have no names of schemas
    "metadataParam": {"metadata", "safety_identifier", "store"},  # other things were asked for
    "parallelToolCallsDisabledParam": {"messages", "tool_choice", "tools"},  # other words, `auto` said, no `strict`
    "promptCacheKeyParam": {"messages", "prompt_cache_key"},  # other things were asked for
    "simpleRequest": {"reasoning_effort"},  # only one of the two asks for it
    "systemMessageArrayContent": {"messages"},  # one part is a text, and the role a developer's
    "textFormatJsonSchemaParam": {"response_format"},  # no name here either
    "toolChoiceRequiredParam": {"tools"},  # only one of the two is `strict`
}
"""The fields in which our request is another than the recorded one of the same case, and why."""


def test_recorded_requests_are_converted() -> None:
    """Valid for OpenAI's SDK; and as the recorded sibling, but for what is listed."""
    count, siblings = 0, {case.name: case.request for case in recorded("chat")}
    compared = []
    for case in recorded("messages"):
        name, turn, _ = f"{case.name} ".split(" ", 2)
        refused = {gap.field for gap in PAIR.gaps(case.request, OPENAI) if gap.how is How.REFUSED}
        assert bool(refused) == (name in NOT_SAID), case.name
        if refused:
            continue
        made = PAIR.request(case.request, OPENAI, 1.7e9, lambda: "abc").body
        fields = CompletionCreateParamsStreaming if made.get("stream") else CompletionCreateParamsNonStreaming
        TypeAdapter(fields).validate_python(made, extra="forbid")
        count += 1
        sibling = siblings.get(case.name)
        if sibling is None or turn:  # what was answered in between is another each time
            continue
        compared.append(name)
        differing = {field for field in made.keys() | sibling.keys() if made.get(field) != sibling.get(field)}
        assert differing - EACH == OTHERWISE.get(name, set()), case.name
    assert count >= 30
    assert OTHERWISE.keys() <= set(compared)


def test_recorded_answers_are_messages_whole_and_streamed() -> None:
    """All of them, and the same both ways."""
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "stream": True}
    sent = PAIR.request(asked, OPENAI, 1.7e9, lambda: "abc")
    wholes = streams = 0
    for case in recorded("chat"):
        if case.answer is not None and "error" not in case.answer:
            made = PAIR.answer(sent, case.answer)
            assert made["content"] or made["stop_reason"] != "end_turn", case.name
            usage = case.answer["usage"]
            told = made["usage"]
            cache = told["cache_read_input_tokens"] + told["cache_creation_input_tokens"]
            assert told["input_tokens"] + cache == usage["prompt_tokens"]
            assert told["output_tokens"] == usage["completion_tokens"]
            wholes += 1
        if not case.events:
            continue
        raw, reader = as_bytes("chat", case.events), PAIR.reader(sent)
        stream = b"".join(reader.feed(raw[at : at + 61]) for at in range(0, len(raw), 61)) + reader.close(is_clean=True)
        state = ChatCompletionStreamState()
        for event in case.events:
            state.handle_chunk(ChatCompletionChunk.model_validate(event))
        whole = PAIR.answer(sent, state.current_completion_snapshot.to_dict(mode="json"))
        assert check_messages(stream) == whole, case.name
        streams += 1
    assert wholes >= 60
    assert streams >= 35
