"""What goes to one provider is made to fit it: schemas of tools, ids of calls, and what other providers signed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.snapshot import Model, Provider, Target
from gateway.dialects import issuers
from gateway.dialects.issuers import MOST_CALL_ID, CarriedProofs, carried_in, fitted
from gateway.dialects.registry import pair_of
from gateway.dialects.schema_tools.tools import MOST_ID
from gateway.dialects.target_languages import TargetLanguages, facts_of
from gateway.dialects.upstream import Converting, Languages
from tests.dialects.grammar import check_responses
from tests.dialects.ways import CALLERS, MODELS, Ways
from tests.support.flow import Script, whole

Json = dict[str, Any]
BARE: list[Json] = [
    {"type": "object"},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "string"}, "description": "{"},
    {"type": "object", "properties": None, "required": []},
]
"""Schemas that OpenAI refuses, and the whole call with them."""
LONG_ID = "call_" + "x" * 80 + "__thought__" + "A" * 900
CHAT_ANSWER = {"id": "c", "choices": [{"index": 0, "message": {"content": "so"}, "finish_reason": "stop"}]}
RESPONSE = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "model": "m"}
ANSWERS = {"chat": CHAT_ANSWER, "responses": RESPONSE}


class AtProviders(Ways):
    """A bench whose targets are at providers of these kinds, each speaking one language."""

    def __init__(self, places: list[tuple[str, str]], *scripts: list[Script], **options: Any) -> None:
        """`places` are kinds and languages."""
        self.places = places
        super().__init__([language for _, language in places], *scripts, **options)

    def _model(self) -> Model:
        self.languages = Languages(self.clock, lambda: "abc")
        self.numbers = iter(range(len(self.places)))
        return super()._model()

    def _speaking(self, target: Target, name: str) -> Target:
        kind, language = self.places[int(target.name[1:].partition("/")[0])]
        provider = Provider(
            target.provider, "openai", f"https://{target.provider}.example/v1", api_key="sk-" + target.provider
        )
        upstream = self.languages.conversing(target.upstream, provider, kind)
        spoken = TargetLanguages(kind, frozenset((language,)), "openai", MODELS.of)
        around = Converting(upstream, spoken, self.clock, lambda: "abc", learned=None, memory=self.languages.memory)
        return replace(target, upstream=upstream, converters_by_path=around.converters_by_path)


def with_schema(schema: Json) -> dict[str, Json]:
    """A request with one tool, by the caller's language."""
    return {
        "chat": {"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
        "responses": {"tools": [{"type": "function", "name": "f", "parameters": schema}]},
        "messages": {"tools": [{"name": "f", "input_schema": schema}]},
        "generate": {"tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": schema}]}]},
    }


def schema_sent(body: bytes) -> Any:
    (tool,) = orjson.loads(body)["tools"]
    return tool.get("function", tool)["parameters"]


@pytest.mark.parametrize("schema", BARE)
@pytest.mark.parametrize("spoken", ["chat", "responses"])
@pytest.mark.parametrize("asked", CALLERS)
@pytest.mark.parametrize("kind", ["openai", "azure"])
async def test_a_schema_without_properties_gets_empty_ones(kind: str, asked: str, spoken: str, schema: Json) -> None:
    bench = AtProviders([(kind, spoken)], [whole(orjson.dumps(ANSWERS[spoken]))])

    reply, _ = await bench.serve(**bench.asking(asked, stream=False, more=with_schema(schema)[asked]))

    assert reply.status == 200
    assert schema_sent(bytes(bench.upstreams[0].sent[0].body)) == schema | {"properties": {}}


async def test_other_kinds_get_the_schema_as_it_is() -> None:
    bench = AtProviders([("vllm", "chat")], [whole(orjson.dumps(CHAT_ANSWER))])

    await bench.serve(**bench.asking("chat", stream=False, more=with_schema(BARE[0])["chat"]))

    assert schema_sent(bytes(bench.upstreams[0].sent[0].body)) == BARE[0]


NAMES = st.sampled_from(["properties", "parameters", "type", "call_id", "tool_call_id", "a"])
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from(["object", "x", '"parameters": {', "é{}\\"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def taught(value: Any, *, is_schema: bool = False) -> Any:
    """The value with what its schemas lack, at any depth: an object's `parameters` are one."""
    if isinstance(value, list):
        return [taught(one) for one in value]
    if not isinstance(value, dict):
        return value
    if is_schema and value.get("type") == "object" and not isinstance(value.get("properties"), dict):
        return value | {"properties": {}}
    return {name: taught(one, is_schema=name == "parameters") for name, one in value.items()}


@given(st.dictionaries(NAMES, JSONS, max_size=4), st.booleans(), st.sampled_from(["chat", "responses"]))
def test_only_schemas_without_properties_change(body: Json, is_pretty: bool, language: str) -> None:
    written = orjson.dumps(body, option=orjson.OPT_INDENT_2 if is_pretty else None)

    made = fitted(written, language, "openai")

    assert orjson.loads(made) == taught(body)
    assert fitted(made, language, "openai") is made
    assert (made is written) == (taught(body) == body)


@pytest.mark.parametrize("kind", ["openai", "azure"])
async def test_a_long_id_of_a_call_is_shortened_alike_in_call_and_result(kind: str) -> None:
    given_input = [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": LONG_ID, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": LONG_ID, "output": "ok"},
        {"type": "function_call", "call_id": "y" * MOST_CALL_ID, "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "y" * MOST_CALL_ID, "output": "ok"},
    ]
    call = {"id": LONG_ID, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": LONG_ID, "content": "ok"},
    ]
    sent = []
    for asked, more in (("responses", {"input": given_input}), ("chat", {"messages": messages})):
        bench = AtProviders([(kind, "responses")], [whole(orjson.dumps(RESPONSE))])
        await bench.serve(**bench.asking(asked, stream=False, more=more))
        items = orjson.loads(bytes(bench.upstreams[0].sent[0].body))["input"]
        sent.append([item["call_id"] for item in items if "call_id" in item])

    assert sent[0][0] == sent[0][1] == sent[1][0] == sent[1][1]
    assert len(sent[0][0]) == MOST_CALL_ID
    assert sent[0][2:] == ["y" * MOST_CALL_ID] * 2


@pytest.mark.parametrize("language", ["chat", "responses"])
def test_many_long_ids_are_shortened_in_one_pass(language: str) -> None:
    """Also one with an escape in it; a text that only has such an id in it stays."""
    name = "tool_call_id" if language == "chat" else "call_id"
    ids = [str(number) + "é\n"[number % 2] + "x" * 80 for number in range(300)]
    told = f'an "{ids[0]}" in a text'
    body = orjson.dumps([{"id": id, name: id, "content": told} for id in ids])
    passes = 0

    def count(_frame: object, event: str, function: object) -> None:
        nonlocal passes
        passes += event == "c_call" and getattr(function, "__name__", "") in ("replace", "sub")

    sys.setprofile(count)
    try:
        made = orjson.loads(fitted(body, language, "openai"))
    finally:
        sys.setprofile(None)

    assert passes == 1
    assert all(one["id"] == one[name] and len(one["id"]) <= 64 and one["content"] == told for one in made)
    assert len({one["id"] for one in made}) == len(ids)


def test_nested_schemas_are_read_a_few_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep they are: each one was read once for every one around it."""
    depth, read = 100, list[int]()
    body = b'{"parameters":{"a":{},"b":' * depth + b"0" + b"}}" * depth

    def counted(written: bytes) -> Any:
        read.append(len(written))
        return orjson.loads(written)

    monkeypatch.setattr(issuers, "_read", counted)

    assert fitted(body, "chat", "openai") is body
    assert sum(read) <= 8 * len(body)


async def test_a_long_id_is_shortened_in_chat_completions_too() -> None:
    call = {"id": LONG_ID, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": LONG_ID, "content": "ok"}]
    bench = AtProviders([("openai", "chat")], [whole(orjson.dumps(CHAT_ANSWER))])

    await bench.serve(**bench.asking("chat", stream=False, more={"messages": messages}))

    said, answered = orjson.loads(bytes(bench.upstreams[0].sent[0].body))["messages"]
    assert said["tool_calls"][0]["id"] == answered["tool_call_id"]
    assert len(answered["tool_call_id"]) == MOST_ID


CLAUDE_CODES = "user_" + "0" * 64 + "_account__session_" + "1" * 36
"""An identifier as Claude Code has it, of 123 characters."""


@pytest.mark.parametrize(
    ("kind", "spoken", "field", "most"),
    [
        ("openai", "chat", "safety_identifier", 64),
        ("openai", "responses", "user", 64),
        ("azure", "responses", "user", 64),
        ("xai", "responses", "user", 64),
        ("vllm", "chat", "user", 64),
        ("openrouter", "chat", "user", 128),
        ("other", "chat", "user", 128),
    ],
)
async def test_a_users_identifier_is_as_long_as_the_kind_takes_it(
    kind: str, spoken: str, field: str, most: int
) -> None:
    sent = []
    for user in (CLAUDE_CODES, CLAUDE_CODES * 2):
        bench = AtProviders([(kind, spoken)], [whole(orjson.dumps(ANSWERS[spoken]))])
        await bench.serve(**bench.asking("messages", stream=False, more={"metadata": {"user_id": user}}))
        sent.append(orjson.loads(bytes(bench.upstreams[0].sent[0].body))[field])

    assert [len(one) for one in sent] == [min(most, len(CLAUDE_CODES)), most]
    assert len(set(sent)) == 2


@pytest.mark.parametrize("field", ["user", "safety_identifier"])
async def test_a_users_identifier_fits_in_responses_for_callers_of_chat_completions(field: str) -> None:
    bench = AtProviders([("openai", "responses")], [whole(orjson.dumps(RESPONSE))])

    await bench.serve(**bench.asking("chat", stream=False, more={field: CLAUDE_CODES}))

    assert len(orjson.loads(bytes(bench.upstreams[0].sent[0].body))[field]) == 64


EXTRA: Json = {"google": {"thought_signature": "U0lH" * 40}}
DETAIL: Json = {
    "type": "reasoning.encrypted",
    "data": "U0lH" * 40,
    "id": "call_a",
    "format": "google-gemini-v1",
    "index": 0,
}
TEXT_DETAILS: list[Json] = [
    {"type": "reasoning.text", "text": "h", "format": "anthropic-claude-v1", "index": 0},
    {"type": "reasoning.text", "text": "m", "index": 0},
    {"type": "reasoning.text", "signature": "SIG" * 40, "index": 0, "text": ""},
]
WHOLE_DETAIL: Json = {
    "type": "reasoning.text", "text": "hm", "signature": "SIG" * 40, "format": "anthropic-claude-v1", "index": 0,
}  # fmt: skip


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: %b\n\n" % orjson.dumps({"id": "c", "model": "m", "choices": [choice]})


def call_delta(**more: Any) -> Json:
    return {"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}, **more}


STREAMS: dict[str, tuple[str, list[bytes], Json]] = {
    "a call that is signed": (
        "gemini",
        [chunk(role="assistant", content="so"), chunk(tool_calls=[call_delta(extra_content=EXTRA)])],
        {"extra_content": EXTRA},
    ),
    "a signature behind its call": (
        "gemini",
        [chunk(tool_calls=[call_delta()]), chunk(tool_calls=[{"index": 0, "extra_content": EXTRA}])],
        {"extra_content": EXTRA},
    ),
    "details before a call": (
        "openrouter",
        [chunk(reasoning_details=[DETAIL]), chunk(tool_calls=[call_delta()])],
        {"reasoning_details": [DETAIL]},
    ),
    "details behind a call": (
        "openrouter",
        [chunk(tool_calls=[call_delta()]), chunk(reasoning_details=[DETAIL])],
        {"reasoning_details": [DETAIL]},
    ),
    "details in pieces": (
        "openrouter",
        [*(chunk(reasoning_content=one.get("text"), reasoning_details=[one]) for one in TEXT_DETAILS),
         chunk(tool_calls=[call_delta()])],
        {"reasoning_details": [WHOLE_DETAIL]},
    ),
    "words alone": (
        "openrouter",
        [chunk(content="so"), chunk(reasoning_details=[DETAIL])],
        {"reasoning_details": [DETAIL]},
    ),
}  # fmt: skip
"""Streams of chat completions that are signed, their kind of provider, and what has to come back with the history."""


@pytest.mark.parametrize("name", STREAMS)
def test_what_a_streamed_chat_completion_is_signed_with_comes_back_from_a_caller_of_responses(name: str) -> None:
    kind, chunks, back = STREAMS[name]
    pair, facts = pair_of("responses", "chat"), facts_of(kind)
    asked: Json = {"model": "m", "input": [{"role": "user", "content": "go"}], "stream": True}
    sent, _, _ = pair.request(orjson.dumps(asked), facts, 0.0, lambda: "id")
    reader = pair.reader(sent)
    stream = b"".join(reader.feed(one) for one in [*chunks, chunk("stop"), b"data: [DONE]\n\n"])
    stream += reader.close(is_clean=True)
    told = [orjson.loads(event.partition(b"data: ")[2]) for event in stream.strip().split(b"\n\n")]
    output = check_responses(told)["output"]
    results = [{"type": "function_call_output", "call_id": one["call_id"], "output": "ok"} for one in output
               if one["type"] == "function_call"]  # fmt: skip
    history = [*asked["input"], *output, *results, {"role": "user", "content": "go on"}]

    again, _, gaps = pair.request(orjson.dumps(asked | {"input": history}), facts, 0.0, lambda: "id")
    elsewhere, _, lost = pair.request(orjson.dumps(asked | {"input": history}), facts_of("vllm"), 0.0, lambda: "id")

    message = again.body["messages"][1]
    found = {**message, **(message.get("tool_calls") or [{}])[0]}
    assert {name: found[name] for name in back} == back
    assert gaps == []
    assert [gap.field for gap in lost] == ["input.reasoning"]
    assert "gw1" not in str(elsewhere.body)


def test_a_mark_that_is_none_holds_nothing() -> None:
    for mark in ("gw1.", "gw1.%%", "gw1.e30=", "gw1.W10="):
        assert carried_in(mark) == CarriedProofs([], {})
    assert carried_in("gAAAA") is None
