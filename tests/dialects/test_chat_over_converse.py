"""What chat completions become for Converse: a row for each of what they say."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import ServerFacts
from gateway.dialects.bedrock.options import document_name
from gateway.dialects.bedrock.request import ChatOverConverse
from gateway.dialects.config import read_models
from tests.dialects.odd import odd_bodies
from tests.rows import rows

PAIR = ChatOverConverse()
TABLE = read_models(None)
CLAUDE, OPUS, NOVA = "us.anthropic.claude-haiku-4-5-v1:0", "anthropic.claude-opus-4-8", "us.amazon.nova-pro-v1:0"
FABLE = "anthropic.claude-fable-5-1"
LLAMA, MISTRAL, QWEN = "meta.llama3-1-8b-instruct-v1:0", "mistral.mistral-large-2402-v1:0", "qwen.qwen3-32b-v1:0"
OSS, GROK, KIMI = "openai.gpt-oss-120b-1:0", "xai.grok-4", "moonshotai.kimi-k2.5"
Json = dict[str, Any]

USER: Json = {"role": "user", "content": "go"}
CALL: Json = {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
TURN: Json = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: Json = {"role": "tool", "tool_call_id": "call_a", "content": "ok"}
TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": []}}}
SPEC: Json = {"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object", "required": []}}}}
EMPTY_SPEC: Json = {"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object", "properties": {}}}}}
SAID: Json = {"role": "user", "content": [{"text": "go"}]}
USED: Json = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "call_a", "name": "f", "input": {"x": 1}}}]}
ANSWERED: Json = {"toolResult": {"toolUseId": "call_a", "content": [{"text": "ok"}]}}
MARK: Json = {"cache_control": {"type": "ephemeral"}}
POINT: Json = {"cachePoint": {"type": "default"}}
LONG_POINT: Json = {"cachePoint": {"type": "default", "ttl": "1h"}}
PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
IMAGE: Json = {"image": {"format": "png", "source": {"bytes": "QUJD"}}}
PDF: Json = {"type": "file", "file": {"filename": "a b.pdf", "file_data": "data:application/pdf;base64,QUJD"}}
DOCUMENT: Json = {"document": {"format": "pdf", "name": "a b", "source": {"bytes": "QUJD"}}}
FORMAT = "anthropic-claude-v1"
THOUGHT: Json = {"type": "reasoning.text", "text": "hm", "signature": "S", "format": FORMAT, "index": 0}
HIDDEN: Json = {"type": "reasoning.encrypted", "data": "D", "format": FORMAT, "index": 2}
GUARD: Json = {"guardrailIdentifier": "g", "guardrailVersion": "1"}
SCHEMA: Json = {"type": "object", "properties": {}, "additionalProperties": False}
FORM: Json = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


def facts(model: str, *, approximates: bool = False) -> ServerFacts:
    return ServerFacts(issuer="bedrock", model=TABLE.of(model), approximates=approximates)


def sent(model: str, *, approximates: bool = False, **body: Any) -> Json:
    asked = {"model": "m", "messages": [USER], **body}
    return PAIR.request(asked, facts(model, approximates=approximates), 1.7e9, lambda: "abc").body


def lost(model: str, *, approximates: bool = False, **body: Any) -> dict[str, str]:
    found = PAIR.gaps({"model": "m", "messages": [USER], **body}, facts(model, approximates=approximates))
    return {gap.field: gap.how.value for gap in found}


def messages(model: str, *said: Json) -> list[Json]:
    made: list[Json] = sent(model, messages=list(said))["messages"]
    return made


def user(*parts: Json) -> Json:
    return {"role": "user", "content": list(parts)}


@rows(
    ("model", "asked", "fields", "gaps"),
    [
        (NOVA, {"max_tokens": 9}, {"inferenceConfig": {"maxTokens": 9}}, {}),
        (NOVA, {"max_completion_tokens": 8, "max_tokens": 9}, {"inferenceConfig": {"maxTokens": 8}}, {}),
        (CLAUDE, {}, {"inferenceConfig": {"maxTokens": 64000}}, {}),
        (CLAUDE, {"max_tokens": 10**6}, {"inferenceConfig": {"maxTokens": 64000}}, {}),
        (NOVA, {"temperature": 0.5, "top_p": 0.9}, {"inferenceConfig": {"temperature": 0.5, "topP": 0.9}}, {}),
        (NOVA, {"temperature": 1.5}, {"inferenceConfig": {"temperature": 1.0}}, {"temperature": "approximated"}),
        (
            CLAUDE,
            {"temperature": 0.5, "top_p": 0.9},
            {"inferenceConfig": {"maxTokens": 64000, "temperature": 0.5}},
            {"top_p": "dropped"},
        ),
        (OPUS, {"temperature": 0.5}, {"inferenceConfig": {"maxTokens": 128000}}, {"temperature": "dropped"}),
        (NOVA, {"top_k": 5}, {"additionalModelRequestFields": {"inferenceConfig": {"topK": 5}}}, {}),
        (
            CLAUDE,
            {"top_k": 5},
            {"inferenceConfig": {"maxTokens": 64000}, "additionalModelRequestFields": {"top_k": 5}},
            {},
        ),
        (LLAMA, {"top_k": 5}, {}, {"top_k": "dropped"}),
        (NOVA, {"stop": "x"}, {"inferenceConfig": {"stopSequences": ["x"]}}, {}),
        (NOVA, {"stop": ["x", " "]}, {"inferenceConfig": {"stopSequences": ["x"]}}, {"stop": "dropped"}),
        (
            CLAUDE,
            {"reasoning_effort": "low"},
            {
                "inferenceConfig": {"maxTokens": 64000},
                "additionalModelRequestFields": {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            },
            {"reasoning_effort": "approximated"},
        ),
        (
            OPUS,
            {"reasoning_effort": "high"},
            {
                "inferenceConfig": {"maxTokens": 128000},
                "additionalModelRequestFields": {
                    "thinking": {"type": "adaptive"},
                    "output_config": {"effort": "high"},
                },
            },
            {},
        ),
        (OSS, {"reasoning_effort": "high"}, {"additionalModelRequestFields": {"reasoning_effort": "high"}}, {}),
        (
            OSS,
            {"reasoning_effort": "none"},
            {"additionalModelRequestFields": {"reasoning_effort": "low"}},
            {"reasoning_effort": "approximated"},
        ),
        (
            QWEN,
            {"reasoning_effort": "medium"},
            {"additionalModelRequestFields": {"reasoning_config": "high"}},
            {"reasoning_effort": "approximated"},
        ),
        (GROK, {"reasoning_effort": "low"}, {"additionalModelRequestFields": {"reasoning": {"effort": "low"}}}, {}),
        (GROK, {"reasoning_effort": "none"}, {}, {}),
        (GROK, {"reasoning_effort": "odd"}, {}, {"reasoning_effort": "dropped"}),
        (NOVA, {"reasoning_effort": "low"}, {}, {"reasoning_effort": "dropped"}),
        (NOVA, {"thinking": {"type": "enabled"}}, {}, {"thinking": "dropped"}),
        (
            KIMI,
            {"response_format": FORM},
            {
                "outputConfig": {
                    "textFormat": {
                        "type": "json_schema",
                        "structure": {
                            "jsonSchema": {
                                "schema": '{"type":"object","properties":{},"additionalProperties":false}',
                                "name": "n",
                            }
                        },
                    }
                }
            },
            {},
        ),
        (
            NOVA,
            {"response_format": {"type": "json_object"}},
            {"system": [{"text": "Answer with one JSON object and nothing else."}]},
            {"response_format.json_object": "approximated"},
        ),
        (NOVA, {"service_tier": "flex"}, {"serviceTier": {"type": "flex"}}, {}),
        (NOVA, {"service_tier": "auto"}, {}, {}),
        (NOVA, {"service_tier": "scale"}, {}, {"service_tier": "dropped"}),
        (NOVA, {"metadata": {"team": "a b"}}, {"requestMetadata": {"team": "a b"}}, {}),
        (NOVA, {"metadata": {"a": "é", "b": "c"}}, {"requestMetadata": {"b": "c"}}, {"metadata": "dropped"}),
        (NOVA, {"user": "u"}, {}, {"user": "dropped"}),
        (NOVA, {"seed": 1, "frequency_penalty": 1}, {}, {"seed": "dropped", "frequency_penalty": "dropped"}),
        (NOVA, {"guardrailConfig": GUARD}, {"guardrailConfig": GUARD}, {}),
        (NOVA, {"performanceConfig": {"latency": "optimized"}}, {"performanceConfig": {"latency": "optimized"}}, {}),
        (
            NOVA,
            {"top_k": 5, "additionalModelRequestFields": {"a": 1}},
            {"additionalModelRequestFields": {"inferenceConfig": {"topK": 5}, "a": 1}},
            {},
        ),
        (NOVA, {"guardrailConfig": 1, "additionalModelRequestFields": 1}, {}, {"other": "dropped"}),
        (NOVA, {"made_up": 1}, {}, {"other": "dropped"}),
        (NOVA, {"stream": True, "stream_options": {"include_usage": True}}, {}, {}),
    ],
)
def test_an_option_arrives_or_is_told_of(model: str, asked: Json, fields: Json, gaps: dict[str, str]) -> None:
    assert sent(model, **asked) == {"messages": [SAID], **fields}
    assert lost(model, **asked) == gaps


@rows(
    ("model", "asked", "name"),
    [
        (NOVA, {"n": 2}, "n"),
        (NOVA, {"logprobs": True}, "logprobs"),
        (NOVA, {"response_format": FORM}, "response_format.json_schema"),
        (OPUS, {"response_format": FORM}, "response_format.json_schema"),
        (NOVA, {"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools.custom"),
        (LLAMA, {"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        (CLAUDE, {"tools": [TOOL], "tool_choice": "required", "reasoning_effort": "low"}, "tool_choice"),
        (NOVA, {"tools": [TOOL], "tool_choice": "none", "messages": [USER, TURN, RESULT]}, "tool_choice"),
        (
            NOVA,
            {"messages": [user({"type": "image_url", "image_url": {"url": "https://x/a.png"}})]},
            "messages.image_url",
        ),
        (NOVA, {"messages": [user({"type": "file", "file": {"file_id": "f"}})]}, "messages.file.file_id"),
        (NOVA, {"messages": [user({"type": "input_audio", "input_audio": {}})]}, "messages.input_audio"),
        (
            NOVA,
            {"messages": [user({"type": "file", "file": {"filename": "a.mp4", "file_data": "QUJD"}})]},
            "messages.file",
        ),
        (LLAMA, {"messages": [USER, TURN, RESULT, USER]}, "messages.tool"),
        (CLAUDE, {"messages": [USER, TURN, RESULT, user(PDF)]}, "messages.tool"),
    ],
)
def test_what_cannot_be_said_is_refused(model: str, asked: Json, name: str) -> None:
    assert lost(model, **asked)[name] == "refused"


@rows(
    ("asked", "config", "own"),
    [
        ({"tool_choice": "auto"}, {"tools": [SPEC]}, None),
        ({"tool_choice": "required"}, {"tools": [SPEC], "toolChoice": {"any": {}}}, None),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"tools": [SPEC], "toolChoice": {"tool": {"name": "f"}}},
            None,
        ),
        ({"tool_choice": "none"}, {"tools": [SPEC]}, {"tool_choice": {"type": "none"}}),
        (
            {"parallel_tool_calls": False},
            {"tools": [SPEC]},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
    ],
)
def test_claude_is_told_which_tools_to_call(asked: Json, config: Json, own: Json | None) -> None:
    made = sent(CLAUDE, tools=[TOOL], **asked)
    assert (made["toolConfig"], made.get("additionalModelRequestFields")) == (config, own)
    assert lost(CLAUDE, tools=[TOOL], **asked) == {}


def test_others_are_told_less() -> None:
    """Tools are left out where none may be called and none was; several calls at once cannot be forbidden."""
    assert "toolConfig" not in sent(NOVA, tools=[TOOL], tool_choice="none")
    assert lost(NOVA, tools=[TOOL], tool_choice="none") == {"tool_choice": "approximated"}
    assert sent(NOVA, tools=[TOOL], parallel_tool_calls=False)["toolConfig"] == {"tools": [SPEC]}
    assert lost(NOVA, tools=[TOOL], parallel_tool_calls=False) == {"parallel_tool_calls": "dropped"}


@pytest.mark.parametrize("model", [CLAUDE, NOVA])
def test_tools_are_put_together_from_the_conversation(model: str) -> None:
    """agentgateway#2192, #2747; patriceckhart/zot#18: calls in the history without `toolConfig` are refused."""
    made = sent(model, messages=[USER, TURN, RESULT])
    assert made["toolConfig"] == {"tools": [EMPTY_SPEC]}
    own = made.get("additionalModelRequestFields")
    assert own == ({"tool_choice": {"type": "none"}} if model == CLAUDE else None)
    assert lost(model, messages=[USER, TURN, RESULT]) == {"tools": "approximated"}


def test_a_strict_tool_is_one_where_the_model_checks_schemas() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True, "description": "d"}}
    spec = {"name": "f", "description": "d", "inputSchema": {"json": SCHEMA}}
    assert sent(KIMI, tools=[tool])["toolConfig"]["tools"] == [{"toolSpec": {**spec, "strict": True}}]
    assert sent(NOVA, tools=[tool])["toolConfig"]["tools"] == [{"toolSpec": spec}]
    assert lost(NOVA, tools=[tool]) == {"tools.strict": "dropped"}


def test_instructions_stay_where_they_are() -> None:
    system, later = {"role": "system", "content": "s"}, {"role": "developer", "content": "t"}
    assert sent(NOVA, messages=[system, USER])["system"] == [{"text": "s"}]
    assert messages(NOVA, system, USER, later) == [user({"text": "go"}, {"text": "<system>t</system>"})]
    assert messages(OPUS, system, USER, later) == [SAID, {"role": "system", "content": [{"text": "t"}]}]
    assert sent(NOVA, messages=[system]) == {"messages": [user({"text": "s"})]}
    assert lost(NOVA, messages=[USER, later]) == {"messages.system": "approximated"}
    assert lost(OPUS, messages=[USER, later]) == {}


def test_blank_texts_are_left_out() -> None:
    """NousResearch/hermes-agent#55092, agentjido/jido_ai#215: they are refused for as long as they stay."""
    blank = {"role": "tool", "tool_call_id": "call_a", "content": " "}
    answer = {**TURN, "content": ""}
    made = messages(NOVA, user({"type": "text", "text": " "}, {"type": "text", "text": "go"}), answer, blank)
    nothing = {"toolResult": {"toolUseId": "call_a", "content": [{"text": "(no output)"}]}}
    assert made == [SAID, USED, user(nothing)]
    assert lost(NOVA, messages=[USER, TURN, blank], tools=[TOOL]) == {"messages.content": "approximated"}


def test_messages_of_one_speaker_are_one() -> None:
    assert messages(NOVA, USER, USER) == [user({"text": "go"}, {"text": "go"})]


def test_pictures_and_documents_are_themselves() -> None:
    said = {"type": "text", "text": "read"}
    assert messages(NOVA, user(PICTURE, PDF, PDF, said)) == [
        user(IMAGE, DOCUMENT, {"document": {**DOCUMENT["document"], "name": "a b (2)"}}, {"text": "read"})
    ]
    assert lost(NOVA, messages=[user(PDF, said)]) == {}
    sheet = {"type": "file", "file": {"filename": "x.xlsx", "file_data": "QUJD"}}
    assert messages(NOVA, user(sheet))[0]["content"][0]["document"]["format"] == "xlsx"


def test_documents_alone_have_a_name_beside_them() -> None:
    """Without a text Bedrock refuses them, for as long as they stay in the conversation."""
    assert messages(NOVA, user(PDF)) == [user(DOCUMENT, {"text": "a b"})]
    assert lost(NOVA, messages=[user(PDF)]) == {"messages.file": "approximated"}


@rows(
    ("given", "name"),
    [
        ("report_final.v2.pdf", "report final v2"),
        ("../a/b.txt", "a b"),
        ("x" * 300, "x" * 200),
        ("", "document"),
        (None, "document"),
        ("日本.pdf", "document"),
        ("a [1] (b)-c.md", "a [1] (b)-c"),
    ],
)
def test_names_of_documents_have_few_characters(given: Any, name: str) -> None:
    assert document_name(given) == name


def test_results_of_tools_are_in_one_message_with_what_follows() -> None:
    """anomalyco/opencode#41445; only what may stand beside them, else a word of the model's parts them."""
    both = {**TURN, "tool_calls": [CALL, {**CALL, "id": "call_b"}]}
    other = {**RESULT, "tool_call_id": "call_b"}
    second = {"toolResult": {"toolUseId": "call_b", "content": [{"text": "ok"}]}}
    assert messages(CLAUDE, USER, both, RESULT, other, USER)[2] == user(ANSWERED, second, {"text": "go"})
    filler = {"role": "assistant", "content": [{"text": "Understood."}]}
    assert messages(LLAMA, USER, TURN, RESULT, USER)[2:] == [user(ANSWERED), filler, SAID]
    assert messages(CLAUDE, USER, TURN, RESULT, user(PDF))[2:] == [
        user(ANSWERED),
        filler,
        user(DOCUMENT, {"text": "a b"}),
    ]
    assert lost(LLAMA, messages=[USER, TURN, RESULT, USER], tools=[TOOL], approximates=True) == {
        "messages.tool": "approximated"
    }
    assert lost(LLAMA, messages=[USER, TURN, RESULT, TURN, RESULT], tools=[TOOL]) == {}


def test_results_are_what_the_model_takes() -> None:
    """Their errors; JSON where it takes that alone; pictures in them, or behind them (vercel/ai#18982)."""
    failed = {**RESULT, "is_error": True}
    assert messages(CLAUDE, USER, TURN, failed)[2]["content"][0]["toolResult"]["status"] == "error"
    for content, said in (('{"a":1}', {"a": 1}), ("ok", {"output": "ok"}), ("[1]", {"output": "[1]"})):
        made = messages(MISTRAL, USER, TURN, {**RESULT, "content": content})
        assert made[2]["content"][0]["toolResult"]["content"] == [{"json": said}]
    seen = {**RESULT, "content": [{"type": "text", "text": "ok"}, PICTURE]}
    inside = messages(CLAUDE, USER, TURN, seen)[2]["content"]
    assert inside == [{"toolResult": {"toolUseId": "call_a", "content": [{"text": "ok"}, IMAGE]}}]
    assert messages(KIMI, USER, TURN, seen)[2]["content"] == [ANSWERED, IMAGE]
    assert lost(KIMI, messages=[USER, TURN, seen], tools=[TOOL]) == {"messages.content": "approximated"}


def test_ids_that_are_too_long_are_made_short_alike() -> None:
    long = {**CALL, "id": "call_" + "x" * 80}
    made = messages(CLAUDE, USER, {**TURN, "tool_calls": [long]}, {**RESULT, "tool_call_id": long["id"]})
    used, answered = made[1]["content"][0]["toolUse"], made[2]["content"][0]["toolResult"]
    assert used["toolUseId"] == answered["toolUseId"]
    assert len(used["toolUseId"]) <= 64


def test_thoughts_go_back_to_their_maker_in_their_places() -> None:
    """maximhq/bifrost#6342: byte for byte; to no other."""
    thought = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "S"}}}
    hidden = {"reasoningContent": {"redactedContent": b64encode(b"D").decode()}}
    turn = {"role": "assistant", "content": "so", "tool_calls": [CALL], "reasoning_details": [THOUGHT, HIDDEN]}
    made = messages(CLAUDE, USER, turn, RESULT)
    assert made[1]["content"] == [thought, {"text": "so"}, hidden, *USED["content"]]
    marked = {**turn, "content": [{"type": "text", "text": "so", **MARK}]}
    assert messages(CLAUDE, USER, marked, RESULT)[1]["content"] == [
        thought, {"text": "so"}, POINT, hidden, *USED["content"],
    ]  # fmt: skip
    assert messages(NOVA, USER, turn, RESULT)[1]["content"] == [{"text": "so"}, *USED["content"]]
    assert lost(NOVA, messages=[USER, turn, RESULT], tools=[TOOL]) == {"messages.reasoning_details": "dropped"}
    assert lost(CLAUDE, messages=[USER, turn, RESULT], tools=[TOOL]) == {}
    form: Json = {"response_format": {"type": "json_object"}}
    assert messages(FABLE, USER, turn, RESULT)[1]["content"][0] == thought
    assert sent(FABLE, messages=[USER, turn, RESULT], **form)["messages"][1]["content"][0] == {"text": "so"}


def test_marks_for_the_cache_become_points_behind_them() -> None:
    hour = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    system = {"role": "system", "content": [{"type": "text", "text": "s", **hour}]}
    body: Json = {"messages": [system, {**USER, **MARK}, TURN, {**RESULT, **MARK}], "tools": [{**TOOL, **hour}]}
    made = sent(CLAUDE, **body)
    assert made["toolConfig"]["tools"] == [SPEC, LONG_POINT]
    assert made["system"] == [{"text": "s"}, LONG_POINT]
    assert made["messages"] == [user({"text": "go"}, POINT), USED, user(ANSWERED, POINT)]
    made = sent(NOVA, **body)
    assert made["toolConfig"]["tools"] == [SPEC]
    assert lost(NOVA, **body)["cache_control"] == "dropped"
    assert "cachePoint" not in str(sent(LLAMA, **body))
    many = user(*({"type": "text", "text": str(at), **(hour if at == 5 else MARK)} for at in range(6)))
    points = [block for block in messages(CLAUDE, many)[0]["content"] if "cachePoint" in block]
    assert points == [POINT] * 4, "the last four, and none that lasts longer behind one that lasts shorter"


@rows(
    ("said", "place"),
    [
        ([USER, RESULT], "messages[1].tool_call_id"),
        ([USER, TURN, USER], "messages[1]"),
        ([user({"type": "image_url", "image_url": {"url": "https://x"}})], "messages[0].content[0]"),
        ([user({"type": "text", "text": 5})], "messages[0].content[0].text"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([user({"type": "file", "file": {}})], "messages[0].content[0].file"),
    ],
)
def test_what_makes_no_sense_is_told_by_its_place(said: list[Json], place: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        messages(CLAUDE, *said)
    assert raised.value.param == place


@settings(max_examples=80, deadline=None)
@given(odd_bodies("messages", "tools", "tool_choice", "response_format", "stop", "metadata", "max_tokens", "thinking"))
def test_any_request_is_converted_or_refused(body: Json) -> None:
    for model in (CLAUDE, MISTRAL):
        PAIR.gaps(body, facts(model))
        with suppress(InvalidRequest):
            PAIR.request(body, facts(model), 0.0, str)
