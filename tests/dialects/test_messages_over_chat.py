"""Callers of Messages at targets with chat completions: what goes out, what is told of it, and what comes back."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.core.types import How
from gateway.dialects.anthropic.in_gaps import MessagesOverChat
from gateway.dialects.anthropic.in_thoughts import MARK as OWN_MARK
from gateway.dialects.anthropic.in_thoughts import marked, without_marks
from gateway.dialects.base import MalformedAnswer, ModelFacts, ServerFacts
from gateway.dialects.schema_tools.tools import id_back, id_for
from tests.dialects.odd import spoiled
from tests.rows import rows

Json = dict[str, Any]
PAIR = MessagesOverChat()
THINKER = ModelFacts(thinking="level", efforts=("minimal", "low", "medium", "high"))
OPENAI = ServerFacts(
    bound_field="max_completion_tokens", takes_developer=True, takes_custom_tools=True, takes_reasoning=False,
    requires_all=True,
    model=THINKER,
)  # fmt: skip
CHOOSER = replace(OPENAI, model=replace(THINKER, efforts=("none", "low")))
OTHER = ServerFacts()
HUB = ServerFacts(bound_field="max_completion_tokens", takes_developer=True, takes_details=True)
HELLO: list[Json] = [{"role": "user", "content": "hi"}]
MARK = {"type": "ephemeral", "ttl": "1h"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
SHOWN = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"}}
TOOL: Json = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
FUNCTION: Json = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
TEXT_SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
LOOSE_SCHEMA = TEXT_SCHEMA | {"required": []}


def asked(**fields: Any) -> Json:
    return {"model": "m", "max_tokens": 9, "messages": HELLO, **fields}


def said(*blocks: Any) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def heard(*blocks: Any) -> Json:
    return {"role": "user", "content": list(blocks)}


def text(words: str, **fields: Any) -> Json:
    return {"type": "text", "text": words, **fields}


def called(id: str, name: str = "f", **arguments: Any) -> Json:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def result(id: str, content: Any = "ok", **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def call(id: str, arguments: str = "{}", name: str = "f") -> Json:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def sent(body: Json, facts: ServerFacts = OPENAI) -> Json:
    return PAIR.request(body, facts, 1.7e9, lambda: "abc").body


def lost(body: Json, facts: ServerFacts = OPENAI) -> dict[str, str]:
    return {gap.field: gap.how.value for gap in PAIR.gaps(body, facts)}


MESSAGES: list[tuple[str, list[Json], list[Json]]] = [
    ("a text", HELLO, HELLO),
    ("one block", [heard(text("hi"))], HELLO),
    ("several", [heard(text("a"), text("b"))], [heard(text("a"), text("b"))]),
    ("a picture", [heard(text("a"), PICTURE)], [heard(text("a"), SHOWN)]),
    (
        "a picture's address",
        [heard({"type": "image", "source": {"type": "url", "url": "https://x/y.png"}})],
        [heard({"type": "image_url", "image_url": {"url": "https://x/y.png"}})],
    ),
    (
        "a PDF",
        [heard(PDF | {"title": "t.pdf"})],
        [heard({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE", "filename": "t.pdf"}})],
    ),
    ("a text file", [heard({"type": "document", "source": {"type": "text", "data": "words"}})],
     [{"role": "user", "content": "words"}]),
    ("instructions in between", [*HELLO, said(text("a")), {"role": "system", "content": "s"}, *HELLO],
     [*HELLO, {"role": "assistant", "content": "a"}, {"role": "developer", "content": "s"}, *HELLO]),
    ("an answer of several blocks", [*HELLO, said(text("a"), text("b")), *HELLO],
     [*HELLO, {"role": "assistant", "content": "ab"}, *HELLO]),
    (
        "calls and their results, one each and in order, before the rest (braintrustdata/lingua#166)",
        [said(text("t"), called("a", x=1), called("b")), heard(text("go"), result("b"), result("a", [text("r")]))],
        [
            {"role": "assistant", "content": "t", "tool_calls": [call("a", '{"x":1}'), call("b")]},
            {"role": "tool", "tool_call_id": "b", "content": "ok"},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
            {"role": "user", "content": "go"},
        ],
    ),
    (
        "turns of one role are one",
        [said(text("t")), said(called("a"), called("b")), heard(result("a")), heard(text("x")), heard(result("b"))],
        [
            {"role": "assistant", "content": "t", "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "a", "content": "ok"},
            {"role": "tool", "tool_call_id": "b", "content": "ok"},
            {"role": "user", "content": "x"},
        ],
    ),
    (
        "pictures in results (BerriAI/litellm#6953)",
        [said(called("a")), heard(result("a", [text("r"), PICTURE]), text("go"))],
        [
            {"role": "assistant", "content": None, "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": "r"},
            heard(text("Of the result of a:"), SHOWN, text("go")),
        ],
    ),
    (
        "a picture alone",
        [said(called("a")), heard(result("a", [PICTURE]))],
        [
            {"role": "assistant", "content": None, "tool_calls": [call("a")]},
            {"role": "tool", "tool_call_id": "a", "content": ""},
            heard(text("Of the result of a:"), SHOWN),
        ],
    ),
    (
        "failed tools, in the text only (maximhq/bifrost#1580)",
        [said(called("a"), called("b")), heard(result("a", "no", is_error=True), result("b", "Error: x", is_error=True))],
        [
            {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "a", "content": "Error: no"},
            {"role": "tool", "tool_call_id": "b", "content": "Error: x"},
        ],
    ),
    ("no result but that there is one", [said(called("a")), heard({"type": "tool_result", "tool_use_id": "a"})],
     [{"role": "assistant", "content": None, "tool_calls": [call("a")]},
      {"role": "tool", "tool_call_id": "a", "content": ""}]),
    ("thoughts alone leave nothing", [*HELLO, said({"type": "thinking", "thinking": "h", "signature": "S"}), *HELLO],
     [*HELLO, *HELLO]),
]  # fmt: skip


@rows("given,expected", [row[1:] for row in MESSAGES], ids=[row[0] for row in MESSAGES])
def test_messages(given: list[Json], expected: list[Json]) -> None:
    """As chat completions pair them."""
    assert sent(asked(messages=given))["messages"] == expected


FIELDS: list[tuple[str, Json, Json, ServerFacts]] = [
    ("instructions", {"system": "s"}, {"messages": [{"role": "developer", "content": "s"}, *HELLO]}, OPENAI),
    ("elsewhere", {"system": [text("s")]}, {"messages": [{"role": "system", "content": "s"}, *HELLO]}, OTHER),
    ("parts", {"system": [text("s"), text("t")]},
     {"messages": [{"role": "system", "content": [text("s"), text("t")]}, *HELLO]}, OTHER),
    ("the line of Claude Code's bill (1rgs/claude-code-proxy#99)",
     {"system": [text("x-anthropic-billing-header: cc_version=2; cch=f00;"), text("s")]},
     {"messages": [{"role": "system", "content": "s"}, *HELLO]}, OTHER),
    ("the line among others", {"system": "a\nx-anthropic-billing-header: cch=f00;\nb"},
     {"messages": [{"role": "system", "content": "a\nb"}, *HELLO]}, OTHER),
    ("the bound", {}, {"max_completion_tokens": 9}, OPENAI),
    ("the bound elsewhere", {}, {"max_tokens": 9}, OTHER),
    ("the model's own bound", {"max_tokens": 99}, {"max_tokens": 10}, ServerFacts(model=ModelFacts(max_output=10))),
    ("stops", {"stop_sequences": list("abcde")}, {"stop": list("abcd")}, OPENAI),
    ("no stops", {"stop_sequences": []}, {"stop": None}, OPENAI),
    ("a model that is told none", {"stop_sequences": ["a"]}, {"stop": None}, ServerFacts(model=ModelFacts(stops=False))),
    ("sampling", {"temperature": 0, "top_p": 0.5}, {"temperature": 0, "top_p": 0.5}, OPENAI),
    ("a model without", {"temperature": 0}, {"temperature": None}, ServerFacts(model=ModelFacts(sampling=False))),
    ("sampling while it thinks", {"temperature": 0, "output_config": {"effort": "low"}}, {"temperature": None}, CHOOSER),
    ("sampling without a thought", {"temperature": 0, "thinking": {"type": "disabled"}}, {"temperature": 0}, CHOOSER),
    ("top_k", {"top_k": 5}, {"top_k": None}, OPENAI),
    ("top_k, further on", {"top_k": 5}, {"top_k": 5}, HUB),
    ("an effort", {"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}, OPENAI),
    ("an effort of others", {"output_config": {"effort": "max"}}, {"reasoning_effort": "high"}, OPENAI),
    ("a small budget", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, {"reasoning_effort": "low"}, OPENAI),
    ("some", {"thinking": {"type": "enabled", "budget_tokens": 10000}}, {"reasoning_effort": "medium"}, OPENAI),
    ("more", {"thinking": {"type": "enabled", "budget_tokens": 16384}}, {"reasoning_effort": "high"}, OPENAI),
    ("much", {"thinking": {"type": "enabled", "budget_tokens": 16385}}, {"reasoning_effort": "xhigh"}, HUB),
    ("as it sees fit", {"thinking": {"type": "adaptive"}}, {"reasoning_effort": None}, OPENAI),
    ("with an effort", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
     {"reasoning_effort": "high"}, OPENAI),
    ("no thoughts", {"thinking": {"type": "disabled"}}, {"reasoning_effort": "minimal"}, OPENAI),
    ("none at all", {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}, HUB),
    ("a model that is told nothing", {"output_config": {"effort": "low"}}, {"reasoning_effort": None}, OTHER),
    ("a schema", {"output_config": {"format": {"type": "json_schema", "schema": TEXT_SCHEMA}}},
     {"response_format": {"type": "json_schema",
                          "json_schema": {"name": "output", "schema": TEXT_SCHEMA, "strict": True}}}, OPENAI),
    ("a schema with optional properties", {"output_config": {"format": {"type": "json_schema", "schema": LOOSE_SCHEMA}}},
     {"response_format": {"type": "json_schema",
                          "json_schema": {"name": "output", "schema": LOOSE_SCHEMA, "strict": False}}}, OPENAI),
    ("a user", {"metadata": {"user_id": "u"}}, {"safety_identifier": "u"}, OPENAI),
    ("a user elsewhere", {"metadata": {"user_id": "u" * 64}}, {"user": "u" * 64}, OTHER),
    ("tiers", {"service_tier": "standard_only"}, {"service_tier": "default"}, OPENAI),
    ("tiers elsewhere", {"service_tier": "standard_only"}, {"service_tier": None}, OTHER),
    ("a stream", {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}, OTHER),
    ("tools", {"tools": [TOOL, TOOL | {"type": "custom", "name": "g", "strict": True}]},
     {"tools": [FUNCTION, {"type": "function", "function": FUNCTION["function"] | {"name": "g", "strict": True}}]},
     OPENAI),
    *((f"choice {kind}", {"tools": [TOOL], "tool_choice": {"type": kind}}, {"tool_choice": other}, OPENAI)
      for kind, other in (("any", "required"), ("auto", "auto"), ("none", "none"))),
    ("a tool", {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "f"}},
     {"tool_choice": {"type": "function", "function": {"name": "f"}}}, OPENAI),
    ("a choice of nothing", {"tool_choice": {"type": "auto"}}, {"tool_choice": None}, OPENAI),
    ("one at a time", {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
     {"tool_choice": "auto", "parallel_tool_calls": False}, OPENAI),
    ("a model that cannot be forced", {"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "auto"},
     ServerFacts(model=ModelFacts(forced_tools=False), approximates=True)),
    ("marks", {"messages": [heard(text("a", cache_control=MARK))]},
     {"messages": [heard(text("a", prompt_cache_breakpoint={"mode": "explicit"}))]},
     ServerFacts(model=ModelFacts(cache_marks=True))),
    ("marks of results", {"messages": [said(called("a")), heard(result("a", "r", cache_control=MARK))]},
     {"messages": [{"role": "assistant", "content": None, "tool_calls": [call("a")]},
                   {"role": "tool", "tool_call_id": "a",
                    "content": [text("r", prompt_cache_breakpoint={"mode": "explicit"})]}]},
     ServerFacts(model=ModelFacts(cache_marks=True))),
    ("marks, further on", {"messages": [heard(text("a", cache_control=MARK))], "tools": [TOOL | {"cache_control": MARK}]},
     {"messages": [heard(text("a", cache_control=MARK))], "tools": [FUNCTION | {"cache_control": MARK}]}, HUB),
    ("marks nowhere", {"messages": [heard(text("hi", cache_control=MARK))]}, {"messages": HELLO}, OTHER),
]  # fmt: skip


@rows("fields,expected,facts", [row[1:] for row in FIELDS], ids=[row[0] for row in FIELDS])
def test_fields(fields: Json, expected: Json, facts: ServerFacts) -> None:
    """Each by its name in chat completions."""
    made = sent(asked(**fields), facts)
    assert {name: made.get(name) for name in expected} == expected


LOSSES: list[tuple[Json, dict[str, str], ServerFacts]] = [
    ({}, {}, OPENAI),
    ({"top_k": 1, "speed": "fast", "inference_geo": "eu", "diagnostics": {"x": 1}, "context_management": {"edits": [1]}},
     dict.fromkeys(("context_management", "diagnostics", "inference_geo", "speed", "top_k"), "dropped"), OPENAI),
    ({"mcp_servers": [{"name": "x"}], "container": "c"}, {"container": "refused", "mcp_servers": "refused"}, OPENAI),
    ({"a_word_of_the_callers": 1}, {"other": "dropped"}, OPENAI),
    ({"tools": [TOOL | {"a_word": 1}]}, {"tools.other": "dropped"}, OPENAI),
    ({"messages": [{**HELLO[0], "a_word": 1}]}, {"messages.other": "dropped"}, OPENAI),
    ({"messages": [heard(text("a") | {"a_word": 1})]}, {"messages.other": "dropped"}, OPENAI),
    ({"max_tokens": 0}, {"max_tokens": "refused"}, OPENAI),
    ({"max_tokens": 99}, {"max_tokens": "approximated"}, ServerFacts(model=ModelFacts(max_output=10))),
    ({"stop_sequences": list("abcde")}, {"stop_sequences": "approximated"}, OPENAI),
    ({"stop_sequences": list("abcde")}, {}, HUB),
    ({"stop_sequences": ["a"]}, {"stop_sequences": "dropped"}, ServerFacts(model=ModelFacts(stops=False))),
    ({"temperature": 0.9, "top_p": 1}, {"temperature": "dropped"}, ServerFacts(model=ModelFacts(sampling=False))),
    ({"temperature": 1}, {}, ServerFacts(model=ModelFacts(sampling=False))),
    ({"top_p": 0.9, "output_config": {"effort": "low"}}, {"top_p": "dropped"}, CHOOSER),
    ({"system": "x-anthropic-billing-header: cch=1;"}, {"system": "approximated"}, OPENAI),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking.budget_tokens": "approximated"}, OPENAI),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"thinking": "dropped"}, OTHER),
    ({"thinking": {"type": "adaptive", "display": "omitted"}},
     {"thinking": "approximated", "thinking.display": "dropped"}, OPENAI),
    ({"thinking": {"type": "disabled"}}, {"thinking": "approximated"}, OPENAI),
    ({"thinking": {"type": "disabled"}}, {}, OTHER),
    ({"thinking": {"type": "between_tools"}}, {"thinking": "approximated"}, OPENAI),
    ({"output_config": {"effort": "low"}}, {}, OPENAI),
    ({"output_config": {"effort": "max"}}, {"output_config.effort": "approximated"}, OPENAI),
    ({"output_config": {"effort": "max"}}, {"output_config.effort": "dropped"}, OTHER),
    ({"output_config": {"format": {"type": "json_schema", "schema": LOOSE_SCHEMA}}},
     {"output_config.format": "approximated"}, OPENAI),
    ({"output_config": {"format": {"type": "regex"}}}, {"output_config.format": "refused"}, OPENAI),
    ({"output_config": {"task_budget": 1}}, {"output_config.other": "dropped"}, OPENAI),
    ({"metadata": {"user_id": "u", "mine": 1}}, {"metadata.other": "dropped"}, OPENAI),
    ({"service_tier": "auto"}, {}, OTHER),
    ({"service_tier": "standard_only"}, {"service_tier": "dropped"}, OTHER),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
     {"tools.web_search": "dropped"}, OPENAI),
    ({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, {"tools.web_fetch_20250910": "refused"}, OPENAI),
    ({"tools": [TOOL | {"defer_loading": True, "input_examples": [{}], "allowed_callers": ["direct"]}]},
     {"tools.defer_loading": "dropped", "tools.input_examples": "dropped"}, OPENAI),
    ({"tools": [TOOL | {"name": "n" * 65}]}, {"tools.name": "approximated"}, OPENAI),
    ({"tools": [TOOL | {"strict": True, "input_schema": LOOSE_SCHEMA}]}, {"tools.strict": "dropped"}, OPENAI),
    ({"tools": [TOOL | {"strict": True, "input_schema": LOOSE_SCHEMA}]}, {}, OTHER),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "refused"},
     ServerFacts(model=ModelFacts(forced_tools=False))),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, {"tool_choice": "approximated"},
     ServerFacts(model=ModelFacts(forced_tools=False), approximates=True)),
    ({"cache_control": MARK}, {"cache_control": "dropped"}, HUB),
    ({"messages": [heard(text("a", cache_control=MARK))]}, {"cache_control": "dropped"}, OPENAI),
    ({"messages": [heard(text("a", cache_control=MARK))]}, {"cache_control": "approximated"},
     ServerFacts(model=ModelFacts(cache_marks=True))),
    ({"messages": [heard(text("a", cache_control=MARK))]}, {}, HUB),
    ({"messages": [heard({"type": "document", "source": {"type": "url", "url": "https://x"}})]},
     {"messages.document.url": "refused"}, OPENAI),
    ({"messages": [heard({"type": "image", "source": {"type": "file", "file_id": "f"}})]},
     {"messages.image.file": "refused"}, OPENAI),
    ({"messages": [heard(PDF | {"citations": {"enabled": True}})]}, {"messages.document.citations": "refused"}, OPENAI),
    ({"messages": [heard({"type": "search_result", "source": "s", "title": "t", "content": [text("x")]})]},
     {"messages.search_result": "approximated"}, OPENAI),
    ({"messages": [heard({"type": "container_upload", "file_id": "f"})]},
     {"messages.container_upload": "refused"}, OPENAI),
    ({"messages": [*HELLO, said(text("a"))]}, {"messages": "approximated"}, OPENAI),
    ({"messages": [said(called("a")), heard(result("a", [PICTURE], is_error=True))]},
     {"messages.tool_result.content": "approximated", "messages.tool_result.is_error": "approximated"}, OPENAI),
    ({"messages": [*HELLO, said({"type": "thinking", "thinking": "h", "signature": "S"}, text("a")), *HELLO]},
     {"messages.thinking": "dropped"}, OPENAI),
    ({"messages": [*HELLO, said({"type": "thinking", "thinking": "h", "signature": "S"}, text("a")), *HELLO]},
     {"messages.thinking": "approximated"}, OTHER),
    ({"messages": [*HELLO, said({"type": "redacted_thinking", "data": "S"}, text("a")), *HELLO]},
     {"messages.redacted_thinking": "dropped"}, OTHER),
    ({"messages": [*HELLO, said({"type": "thinking", "thinking": "h", "signature": "gw1."}, text("a")), *HELLO]},
     {}, OTHER),
]  # fmt: skip


@rows("fields,expected,facts", LOSSES)
def test_losses_are_told_by_name(fields: Json, expected: dict[str, str], facts: ServerFacts) -> None:
    """Each once, and nothing else."""
    assert lost(asked(**fields), facts) == expected


@rows(
    "fields,place",
    [
        ({"messages": []}, "messages"),
        ({"max_tokens": None}, "max_tokens"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": 5}]}, "tools[0].name"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [heard({"type": "thinking"})]}, "messages[0].content[0]"),
        ({"messages": [heard(result("a"))]}, "messages[0].content[0].tool_use_id"),
        ({"messages": [said(called("a")), *HELLO]}, "messages[0].content[0]"),
        ({"messages": [*HELLO, said(called("a"))]}, "messages[1].content[0]"),
        ({"messages": [said(called("a"), called("b")), heard(result("a")), said(text("x"))]}, "messages[0].content[1]"),
        ({"messages": [said(called("a"), called("a"))]}, "messages[0].content[1].id"),
        ({"messages": [said(called("a")), heard(result("a"), result("a"))]}, "messages[1].content[1].tool_use_id"),
    ],
)
def test_what_makes_no_sense_is_named_by_its_place(fields: Json, place: str) -> None:
    """And never repaired in silence (openai/openai-agents-python#1797)."""
    with pytest.raises(InvalidRequest) as raised:
        sent(asked(**fields))
    assert raised.value.param == place


def test_thoughts_go_back_to_whom_they_are_of() -> None:
    """Signed ones as they were, at their places (maximhq/bifrost#5274, #6342); plain ones to servers that take words."""
    signed = {"type": "thinking", "thinking": "h", "signature": "S=="}
    hidden = {"type": "redacted_thinking", "data": "D=="}
    plain = {"type": "thinking", "thinking": "p", "signature": "gw1."}
    body = asked(messages=[said(signed, called("a"), hidden, called("b"), plain), heard(result("a"), result("b"))])

    claude = {"format": "anthropic-claude-v1"}
    hub = sent(body, HUB)["messages"][0]
    assert hub["reasoning_details"] == [
        {"type": "reasoning.text", "text": "h", "signature": "S==", **claude, "index": 0},
        {"type": "reasoning.encrypted", "data": "D==", **claude, "index": 2},
    ]
    assert hub["reasoning_content"] == "p"
    assert sent(body, OTHER)["messages"][0]["reasoning_content"] == "h\n\np"
    assert not {"reasoning_content", "reasoning_details"} & sent(body, OPENAI)["messages"][0].keys()


def answer(fields: Json | None = None, finish: Any = "stop", **message: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    return {"id": "c", "model": "gpt", "choices": [choice], "usage": usage, **(fields or {})}


def back(body: Json, **fields: Any) -> Json:
    return PAIR.answer(PAIR.request(asked(**fields), OPENAI, 1.7e9, lambda: "abc"), body)


def test_an_answer_is_a_message() -> None:
    """Thoughts, words, calls; ids of Anthropic's form; input without what the cache has done."""
    usage = {
        "prompt_tokens": 100, "completion_tokens": 40,
        "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }  # fmt: skip
    calls = [call("call_a", '{"x":1}'), call("functions.f:0", ""), call("", "{}", "g")]
    made = back(
        answer(
            {"usage": usage, "service_tier": "default"},
            finish="tool_calls",
            reasoning_content="hm",
            content="so",
            tool_calls=calls,
        )
    )

    assert made == {
        "id": "msg_abc",
        "type": "message",
        "role": "assistant",
        "model": "gpt",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "gw1."},
            text("so"),
            called("call_a", x=1),
            called("gw1-ZnVuY3Rpb25zLmY6MA"),
            called("toolu_abc02", "g"),
        ],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 30,
            "cache_creation_input_tokens": 10,
            "cache_read_input_tokens": 60,
            "output_tokens": 40,
            "output_tokens_details": {"thinking_tokens": 30},
            "service_tier": "standard",
        },
    }


ENDS = [
    ("stop", {"content": "x"}, "end_turn"),
    ("length", {"content": "x"}, "max_tokens"),
    ("content_filter", {"content": "x"}, "refusal"),
    ("tool_calls", {"tool_calls": [call("a")]}, "tool_use"),
    ("function_call", {"function_call": {"name": "f", "arguments": "{}"}}, "tool_use"),
    ("stop", {"tool_calls": [call("a")]}, "tool_use"),  # ENTERPILOT/GoModel#124
    ("length", {"tool_calls": [call("a")]}, "max_tokens"),  # NousResearch/hermes-agent#43478
    ("content_filter", {"tool_calls": [call("a")]}, "refusal"),
    ("tool_calls", {"content": "x"}, "end_turn"),
    ("stop", {"refusal": "no"}, "refusal"),
    (None, {"content": "x"}, "unknown"),  # some servers leave it null; the answer may have been cut
    (None, {"tool_calls": [call("a")]}, "tool_use"),  # a whole call is an end
    (None, {"refusal": "no"}, "refusal"),
    ("a_word_of_its_own", {"content": "x"}, "a_word_of_its_own"),
    ("eos", {"content": "x"}, "end_turn"),
    ("sensitive", {"content": "x"}, "refusal"),
    ("model_context_window_exceeded", {"content": "x"}, "model_context_window_exceeded"),
    ("model_length", {"content": "x"}, "max_tokens"),
]


@rows("finish,message,reason", ENDS)
def test_why_an_answer_ended(finish: Any, message: Json, reason: str) -> None:
    """Calls do not hide that it was cut."""
    made = back(answer(finish=finish, **message))
    assert made["stop_reason"] == reason
    assert made["content"]


def test_a_sequence_that_was_met_is_named_where_the_server_does() -> None:
    """As vLLM does."""
    body = answer(content="x")
    body["choices"][0]["stop_reason"] = "END"
    assert back(body, stop_sequences=["END"])["stop_sequence"] == "END"
    assert back(body)["stop_reason"] == "end_turn"


@rows("arguments", ["{", "[1]", '"x"', "{'a': 1}", '{"x":1}}'])
def test_arguments_that_are_no_object_make_an_answer_malformed(arguments: str) -> None:
    """It is tried again and not passed on as if nothing was said; where the answer was cut, the call goes."""
    with pytest.raises(MalformedAnswer):
        back(answer(finish="tool_calls", tool_calls=[call("a", arguments)]))
    assert back(answer(finish="length", content="x", tool_calls=[call("a", arguments)]))["content"] == [text("x")]


def test_what_another_provider_wants_back_rides_in_marks() -> None:
    """Its signed thoughts and what it adds to a call come back byte for byte, by the hub, and to nobody else."""
    extra = {"google": {"thought_signature": "AB=="}}
    details = [
        {"type": "reasoning.text", "text": "h", "signature": "S==", "format": "google-gemini-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "D==", "format": "google-gemini-v1", "index": 1},
    ]
    calls = [call("a", '{"x":1}') | {"extra_content": extra}]
    made = back(answer(finish="tool_calls", reasoning_content="h", reasoning_details=details, tool_calls=calls))
    assert [block["type"] for block in made["content"]] == [
        "thinking", "redacted_thinking", "redacted_thinking", "tool_use",
    ]  # fmt: skip
    assert made["content"][0]["thinking"] == "h"

    again = asked(messages=[*HELLO, said(*made["content"]), heard(result("a"))])
    turn = sent(again, HUB)["messages"][1]
    assert turn["reasoning_details"] == details
    assert turn["tool_calls"] == calls
    assert lost(again, HUB) == {}
    assert sent(again, OPENAI)["messages"][1]["tool_calls"] == [call("a", '{"x":1}')]
    native = orjson.loads(without_marks(orjson.dumps(again))[0])
    assert native["messages"][1]["content"] == [called("a", x=1)]


def test_a_signature_of_claudes_is_told_as_it_is() -> None:
    """A router's chat completions carry it; its pieces may have lost their format but for the first."""
    detail = {"type": "reasoning.text", "text": "h", "signature": "S==", "format": "anthropic-claude-v1", "index": 0}
    assert back(answer(content="x", reasoning_details=[detail]))["content"][0] == {
        "type": "thinking", "thinking": "h", "signature": "S==",
    }  # fmt: skip


def test_marked_thoughts_do_not_go_to_anthropic() -> None:
    """And nothing else changes: without them, the very bytes come back."""
    signed = {"type": "thinking", "thinking": "h", "signature": "S"}
    own = {"type": "thinking", "thinking": "h", "signature": marked()}
    hidden = {"type": "redacted_thinking", "data": marked({"type": "reasoning.encrypted"})}
    body = asked(messages=[*HELLO, said(own, signed, text('"gw1.'), hidden), *HELLO, said(own), *HELLO])
    left = asked(messages=[*HELLO, said(signed, text('"gw1.')), *HELLO, *HELLO])

    assert orjson.loads(without_marks(orjson.dumps(body))[0]) == left
    long = b'{"n":123456789012345678901234567890,"messages":[{"role":"assistant","content":[%b{"text":"\xc3\xa9"}]}]}'
    assert without_marks(long % b'{"type":"thinking","thinking":"","signature":"gw1."},') == (long % b"", [])
    for same in (b'{"messages": [ {"role": "user", "content": "\\"gw1."}]}', b'no JSON "gw1.', b'{"messages":"gw1."}'):
        assert without_marks(same)[0] is same


def test_calls_without_a_thought_are_known_for_foreign_by_anthropic() -> None:
    """A model with a budget refuses to go on from them: the call goes there without thinking, and says so."""
    thinks = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    calls: dict[str, Any] = {"finish": "tool_calls", "tool_calls": [call("a", '{"x":1}')]}
    turn = back(answer(content="t", **calls), **thinks)["content"]
    mark = {"type": "redacted_thinking", "data": "gw1."}
    assert turn == [text("t"), mark, called("a", x=1)]
    assert (
        back(answer(content="t", **calls))["content"]
        == back(answer(content="t", **calls), thinking={"type": "adaptive"})["content"]
    )
    assert back(answer(reasoning_content="h", **calls), **thinks)["content"][0]["type"] == "thinking"
    asked_again = asked(messages=[*HELLO, said(*turn), heard(result("a"))], **thinks)
    assert lost(asked_again, HUB) == lost(asked(messages=[*HELLO], **thinks), HUB)

    edits = [{"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}]
    made, gaps = without_marks(orjson.dumps({**asked_again, "context_management": {"edits": edits}}))
    left = asked(messages=[*HELLO, said(text("t"), called("a", x=1)), heard(result("a"))])
    assert orjson.loads(made) == {**left, "context_management": {"edits": edits[1:]}}
    assert [(gap.field, gap.how) for gap in gaps] == [("thinking", How.DROPPED)]
    signed = {"type": "thinking", "thinking": "h", "signature": "S"}
    for messages in (
        [*HELLO, said(signed, mark, called("a", x=1)), heard(result("a"))],
        [*HELLO, said(mark, called("a", x=1)), heard(result("a")), said(text("t")), *HELLO],
    ):
        made, gaps = without_marks(orjson.dumps(asked(messages=messages, **thinks)))
        assert (orjson.loads(made)["thinking"], gaps) == (thinks["thinking"], [])


def test_long_names_of_tools_are_short_there_and_whole_here() -> None:
    """OpenAI takes 64 characters, and Anthropic 128."""
    name = "mcp__" + "server" * 12 + "__tool"
    body = asked(tools=[TOOL | {"name": name}], messages=[said(called("a", name)), heard(result("a"))],
                 tool_choice={"type": "tool", "name": name})  # fmt: skip
    made = sent(body)
    short = made["tools"][0]["function"]["name"]

    assert len(short) == 64
    assert made["messages"][0]["tool_calls"][0]["function"]["name"] == short
    assert made["tool_choice"]["function"]["name"] == short
    assert back(answer(tool_calls=[call("a", "{}", short)]), tools=body["tools"])["content"][0]["name"] == name


@given(st.text(max_size=60))
def test_ids_of_calls_come_back_as_they_were(id: str) -> None:
    """Whatever a server names its calls: for the caller the id is one that Anthropic takes."""
    if id:
        told = id_back(id)
        assert told.replace("-", "").replace("_", "").isalnum() or told == id
        if len(id) <= 40:
            assert id_for(told, OPENAI) == id
        assert len(id_for("x" * 200, OPENAI)) == 40


RICH: Json = asked(
    system=[text("s", cache_control=MARK)],
    messages=[
        heard(text("a", citations=[]), PICTURE, PDF | {"title": "t", "context": "c", "citations": {"enabled": False}}),
        said({"type": "thinking", "thinking": "h", "signature": marked({"type": "reasoning.text"})},
             {"type": "redacted_thinking", "data": marked({"call": "a", "extra_content": {"x": 1}})}, called("a", x=1)),
        heard(result("a", [text("r"), PICTURE], is_error=True),
              {"type": "search_result", "source": "s", "title": "t", "content": [text("x")]}),
        {"role": "system", "content": [text("s")]},
        heard({"type": "document", "source": {"type": "content", "content": [text("x"), PICTURE]}}),
    ],
    tools=[TOOL | {"allowed_callers": ["direct"], "cache_control": MARK}], tool_choice={"type": "tool", "name": "f"},
    thinking={"type": "enabled", "budget_tokens": 5}, metadata={"user_id": "u"}, stop_sequences=["x"],
    output_config={"effort": "low", "format": {"type": "json_schema", "schema": TEXT_SCHEMA}}, service_tier="auto",
)  # fmt: skip


@rows("facts", [OPENAI, OTHER, HUB])
def test_a_mark_that_holds_nothing_loses_nothing(facts: ServerFacts) -> None:
    """It says that a turn of another model had no thought; words that a target takes no reasoning of are lost."""
    for thought in (
        {"type": "thinking", "thinking": "", "signature": OWN_MARK},
        {"type": "redacted_thinking", "data": OWN_MARK},
    ):
        turn = {"role": "assistant", "content": [thought, {"type": "text", "text": "y"}]}
        assert lost(asked(messages=[*HELLO, turn, *HELLO]), facts) == {}
    words = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": OWN_MARK}]}
    has_loss = {"messages.thinking": "dropped"} if not facts.takes_reasoning else {}
    assert lost(asked(messages=[*HELLO, words, *HELLO]), facts) == has_loss


@settings(max_examples=150)
@given(spoiled(RICH), st.sampled_from([OPENAI, OTHER, HUB]))
def test_any_request_is_converted_or_refused(body: Json, facts: ServerFacts) -> None:
    """By one error alone; and it has its gaps told in any case."""
    PAIR.gaps(body, facts)
    with suppress(InvalidRequest):
        orjson.dumps(sent(body, facts))


FULL: Json = answer(
    finish="tool_calls", content=[{"type": "text", "text": "x"}], reasoning_content="h", refusal="no",
    reasoning_details=[{"type": "reasoning.text", "text": "h", "signature": "S", "format": "x", "index": 0}],
    tool_calls=[call("a") | {"extra_content": {"x": 1}}], function_call={"name": "f", "arguments": "{}"},
) | {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens": 1}}  # fmt: skip


@settings(max_examples=150)
@given(spoiled(FULL))
def test_any_answer_is_converted_or_malformed(body: Json) -> None:
    """By one error alone."""
    with suppress(MalformedAnswer):
        orjson.dumps(back(body))


def test_arguments_nested_too_deeply_are_malformed() -> None:
    """They could not be written again."""
    with pytest.raises(MalformedAnswer):
        back(answer(tool_calls=[call("a", '{"x":' * 300 + "1" + "}" * 300)]))


def test_a_long_conversation_takes_as_much_more_as_it_is_longer() -> None:
    """Counted in calls of functions."""

    def calls(rounds: int) -> int:
        turns = [(said(text("t"), called(f"c{n}")), heard(result(f"c{n}", [PICTURE]))) for n in range(rounds)]
        body, count = asked(messages=[*HELLO, *(message for turn in turns for message in turn)]), 0

        def hear(_frame: Any, event: str, _arg: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(hear)
        try:
            PAIR.gaps(body, OPENAI)
            PAIR.request(body, OPENAI, 0.0, str)
        finally:
            sys.setprofile(None)
        return count

    assert calls(40) < 2.1 * calls(20)


def test_openai_is_asked_for_no_strict_tool_that_it_would_refuse() -> None:
    """It takes no optional properties there; Anthropic and others do."""
    for schema, facts, strict in (
        (LOOSE_SCHEMA, OPENAI, None),
        (LOOSE_SCHEMA, OTHER, True),
        (TEXT_SCHEMA, OPENAI, True),
    ):
        asked = {
            "model": "m",
            "max_tokens": 9,
            "messages": HELLO,
            "tools": [TOOL | {"strict": True, "input_schema": schema}],
        }
        sent = PAIR.request(asked, facts, 0.0, str).body
        assert sent["tools"][0]["function"].get("strict") is strict
