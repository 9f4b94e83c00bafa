"""Callers of Gemini's generateContent at targets with chat completions: what goes out, what is told of it, what comes back."""

from __future__ import annotations

import re
from base64 import b64encode
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.errors import InvalidRequest
from gateway.dialects.base import HUB, ConvertedRequest, MalformedAnswer, ModelFacts, ServerFacts
from gateway.dialects.gemini.in_answer import FOREIGN, held_by, marked, without_marks
from gateway.dialects.gemini.in_gaps import GenerateOverChat
from gateway.dialects.gemini.in_request import json_schema, taken_out
from gateway.dialects.registry import front_of, pair_of, put_in
from gateway.dialects.target_languages import facts_of
from tests.dialects.odd import odd_bodies, spoiled
from tests.rows import rows

Json = dict[str, Any]
PAIR = GenerateOverChat()
OTHER = ServerFacts()
OPENAI = ServerFacts("max_completion_tokens", takes_developer=True, requires_all=True, takes_reasoning=False)
GO: Json = {"role": "user", "parts": [{"text": "go"}]}
OBJECT = {"type": "object", "properties": {"city": {"type": "string"}}}
THEIRS = {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}}
TOOL: Json = {"functionDeclarations": [{"name": "f", "description": "d", "parameters": THEIRS}]}
FUNCTION: Json = {"type": "function", "function": {"name": "f", "description": "d", "parameters": OBJECT}}


def asked(*contents: Any, **fields: Any) -> Json:
    return {"model": "m", "contents": list(contents) or [GO], **fields}


def sent(body: Json, facts: ServerFacts = OTHER) -> Json:
    return PAIR.request(body, facts, 1.7e9, lambda: "abc").body


def config(**fields: Any) -> Json:
    return asked(generationConfig=fields)


def gaps(body: Json, facts: ServerFacts = OTHER) -> list[tuple[str, str]]:
    return [(gap.field, str(gap.how)) for gap in PAIR.gaps(body, facts)]


def model(*parts: Json) -> Json:
    return {"role": "model", "parts": list(parts)}


def user(*parts: Json) -> Json:
    return {"role": "user", "parts": list(parts)}


def call(name: str = "f", id: str = "", **args: Any) -> Json:
    return {"functionCall": {"name": name, "args": args} | ({"id": id} if id else {})}


def result(name: str = "f", id: str = "", **response: Any) -> Json:
    return {"functionResponse": {"name": name, "response": response} | ({"id": id} if id else {})}


SAID = [
    (config(temperature=0.5, topP=0.9, seed=3, presencePenalty=1, frequencyPenalty=1, candidateCount=2),
     {"temperature": 0.5, "top_p": 0.9, "seed": 3, "presence_penalty": 1, "frequency_penalty": 1, "n": 2}),
    (asked(generation_config={"max_output_tokens": 5, "stop_sequences": ["a"]}), {"max_tokens": 5, "stop": ["a"]}),
    (config(thinkingConfig={"thinkingBudget": 0}), {}),
    (config(thinkingConfig={"thinkingBudget": -1}), {}),
    (config(responseLogprobs=True, logprobs=3), {"logprobs": True, "top_logprobs": 3}),
    (config(responseMimeType="application/json"), {"response_format": {"type": "json_object"}}),
    (config(responseMimeType="application/json", responseSchema=THEIRS),
     {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": OBJECT, "strict": True}}}),
    (config(responseMimeType="application/json", responseJsonSchema=OBJECT),
     {"response_format": {"type": "json_schema", "json_schema": {"name": "output", "schema": OBJECT, "strict": True}}}),
    (asked(tools=[TOOL]), {"tools": [FUNCTION]}),
    (asked(tools=[TOOL], toolConfig={"functionCallingConfig": {"mode": "ANY"}}),
     {"tools": [FUNCTION], "tool_choice": "required"}),
    (asked(tools=[TOOL], toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}}),
     {"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "f"}}}),
    (asked(tools=[TOOL], tool_config={"function_calling_config": {"mode": "NONE"}}),
     {"tools": [FUNCTION], "tool_choice": "none"}),
    (asked(stream=True), {"stream": True, "stream_options": {"include_usage": True}}),
]  # fmt: skip


@rows("body,expected", SAID)
def test_fields_are_said(body: Json, expected: Json) -> None:
    """In either spelling of their names; what is said is no gap."""
    made = sent(body)
    assert made == {"model": "m", "messages": [{"role": "user", "content": "go"}], **expected}
    assert gaps(body) == []


LOST = [
    (asked(cachedContent="cachedContents/x"), "cachedContent", "refused"),
    (asked(safetySettings=[{"category": "x"}]), "safetySettings", "dropped"),
    (asked(labels={"a": "b"}), "labels", "dropped"),
    (asked(inventedByTheCaller=1), "other", "dropped"),
    (asked(tools=[{"googleSearch": {}}]), "tools.web_search", "dropped"),
    (asked(tools=[{"urlContext": {}}]), "tools.urlContext", "refused"),
    (asked(tools=[{"inventedByTheCaller": {}}]), "tools.other", "refused"),
    (config(topK=3), "generationConfig.topK", "dropped"),
    (config(stopSequences=list("abcde")), "generationConfig.stopSequences", "dropped"),
    (config(responseMimeType="text/x.enum"), "generationConfig.responseMimeType", "refused"),
    (config(responseModalities=["AUDIO"]), "generationConfig.responseModalities", "refused"),
    (config(speechConfig={"a": 1}), "generationConfig.speechConfig", "refused"),
    (config(mediaResolution="x"), "generationConfig.mediaResolution", "dropped"),
    (asked(user({"fileData": {"fileUri": "gs://a/b.png"}})), "contents.fileData", "refused"),
    (asked(user({"inlineData": {"mimeType": "video/mp4", "data": "AA"}})), "contents.video", "refused"),
    (asked(user({"executableCode": {}})), "contents.executableCode", "refused"),
    (asked(model({"text": "x", "thoughtSignature": "AA"})), "contents.thoughtSignature", "dropped"),
    (asked(user({"text": "x", "partMetadata": {"a": 1}})), "contents.other", "dropped"),
    (asked(user({"toolResponse": {"id": "a"}})), "contents.other", "refused"),
    (
        asked(user(result() | {"functionResponse": {"name": "f", "response": {}, "scheduling": "SILENT"}})),
        "contents.functionResponse.other",
        "dropped",
    ),
    (
        asked(model({"functionCall": {"name": "f", "partialArgs": [{"jsonPath": "$.a"}]}})),
        "contents.functionCall.partialArgs",
        "refused",
    ),
    (
        asked(systemInstruction={"parts": [{"text": "x", "mediaProcessing": "STATIC"}]}),
        "systemInstruction.other",
        "dropped",
    ),
    (asked(toolConfig={"includeServerSideToolInvocations": True}), "toolConfig.other", "dropped"),
    (
        asked(toolConfig={"functionCallingConfig": {"streamFunctionCallArguments": True}}),
        "toolConfig.functionCallingConfig.other",
        "dropped",
    ),
    (
        config(thinkingConfig={"thinkingLevel": "UNHEARD_OF"}),
        "generationConfig.thinkingConfig.thinkingLevel",
        "dropped",
    ),
]


@rows("body,field,how", LOST)
def test_what_is_lost_is_told(body: Json, field: str, how: str) -> None:
    """By names of ours alone: what callers make up is `other`."""
    assert (field, how) in gaps(body)


def test_a_model_that_stops_at_nothing_is_told_nothing() -> None:
    """OpenAI's that think refuse the word (400 `unsupported_parameter`)."""
    body, thinker = config(stopSequences=["a"]), ServerFacts(model=ModelFacts(stops=False))
    assert ("stop" in sent(body), gaps(body)) == (True, [])
    assert ("stop" in sent(body, thinker), gaps(body, thinker)) == (
        False,
        [("generationConfig.stopSequences", "dropped")],
    )


def test_a_conversation_is_one() -> None:
    """Instructions, pictures, thoughts, calls without ids paired by name and order, results, what a user says besides."""
    contents = [
        user({"text": "see"}, {"inline_data": {"mime_type": "image/png", "data": "i-_B"}}),
        model({"text": "hm", "thought": True}, {"text": "so"}, call(city="a"), call(city="b"), call("g", "own")),
        user(result("g", "own", output="last"), result(output="one"), result(error="two"), {"text": "go on"}),
    ]
    body = asked(*contents, systemInstruction={"parts": [{"text": "be"}, {"text": "brief"}]})
    made = sent(body, HUB)["messages"]

    def called(id: str, name: str, arguments: str) -> Json:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}

    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,i+/B"}}
    calls = [called("call_1", "f", '{"city":"a"}'), called("call_2", "f", '{"city":"b"}'), called("own", "g", "{}")]
    assert made == [
        {"role": "developer", "content": "be\n\nbrief"},
        {"role": "user", "content": [{"type": "text", "text": "see"}, picture]},
        {"role": "assistant", "content": "so", "tool_calls": calls, "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "own", "content": "last"},
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {"role": "tool", "tool_call_id": "call_2", "content": '{"error":"two"}', "is_error": True},
        {"role": "user", "content": "go on"},
    ]
    assert "reasoning_content" not in sent(body, OPENAI)["messages"][2]
    assert ("contents.thought", "dropped") in gaps(body, OPENAI)


@rows(
    "contents,place",
    [
        ([], "contents"),
        ([{"role": "system", "parts": []}], "contents[0].role"),
        ([user(result())], "contents[0].parts[0]"),
        ([GO, model(call())], "contents[1].parts[0]"),
        ([GO, model(call()), GO], "contents[1].parts[0]"),
        ([model({"functionCall": {}}), GO], "contents[0].parts[0]"),
        ([user({"fileData": {"fileUri": "files/x"}})], "contents[0].parts[0]"),
        ([user({"inlineData": {"data": "AA"}})], "contents[0].parts[0].inlineData"),
    ],
)
def test_what_makes_no_sense_is_named_by_its_place(contents: list[Json], place: str) -> None:
    """And never repaired in silence."""
    with pytest.raises(InvalidRequest) as raised:
        sent({"model": "m", "contents": contents})
    assert raised.value.param == place


def test_their_schemas_become_json_schemas() -> None:
    """The names of properties are the caller's own, and stay as they are."""
    theirs = {
        "type": "OBJECT", "nullable": True, "propertyOrdering": ["a_b"], "required": ["a_b"],
        "properties": {
            "a_b": {"type": "ARRAY", "min_items": "2", "items": {"type": "STRING", "format": "enum", "enum": ["x"]}}
        },
    }  # fmt: skip
    assert json_schema(theirs) == {
        "type": ["object", "null"],
        "required": ["a_b"],
        "properties": {"a_b": {"type": "array", "minItems": 2, "items": {"type": "string", "enum": ["x"]}}},
    }


def test_properties_come_in_the_order_that_was_asked_for() -> None:
    """Models say them in the order in which a schema has them; and an example stays one."""
    a, b = {"type": "STRING", "example": "x"}, {"type": "STRING"}
    made = json_schema({"type": "OBJECT", "propertyOrdering": ["b", "gone"], "properties": {"a": a, "b": b}})
    assert list(made["properties"].items()) == [("b", {"type": "string"}), ("a", {"type": "string", "examples": ["x"]})]


def test_what_may_be_nothing_may_be_nothing_there_too() -> None:
    """Also where a schema says by alternatives, or by values, what it is."""
    theirs = {"anyOf": [{"type": "STRING"}, {"type": "INTEGER"}], "nullable": True}
    assert json_schema(theirs) == {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}
    assert json_schema({"type": "STRING", "enum": ["x", None], "nullable": True})["enum"] == ["x", None]


def test_a_schema_has_a_name_that_openai_takes() -> None:
    """Its title may be any words; and it is asked for by itself, without a word of JSON."""
    made = sent(asked(generationConfig={"responseSchema": {"title": "My [x]", "type": "OBJECT"}}), OPENAI)

    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", made["response_format"]["json_schema"]["name"])


@rows("required,is_held", [([], False), (["a"], True)])
def test_an_answer_is_held_to_its_schema_where_openai_can(required: list[str], is_held: bool) -> None:
    """Google holds every answer to its schema; that OpenAI does not is told."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": required}
    body = config(responseMimeType="application/json", responseJsonSchema=schema)

    form = sent(body, OPENAI)["response_format"]["json_schema"]

    assert form["strict"] is is_held
    assert form["schema"].get("additionalProperties", True) is not is_held
    assert (("generationConfig.responseJsonSchema", "approximated") in gaps(body, OPENAI)) is not is_held


def test_a_signature_of_a_call_is_told_of_where_responses_do_not_take_it() -> None:
    """It goes back to the provider that made it, and OpenAI's Responses have no place for it."""
    call = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "c2ln"}
    body = asked(model(call), user(result()))
    found = pair_of("generate", "responses").translator.gaps(body, facts_of("openai"))
    assert [(gap.field, gap.how.value) for gap in found] == [("messages.tool_calls.extra_content", "dropped")]


@rows("required,strict", [([], False), (["a"], True)])
def test_checked_arguments_have_a_schema_that_openai_checks(required: list[str], strict: bool) -> None:
    """It refuses one with an optional property, or one that is not closed."""
    parameters = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}, "required": required}
    body = asked(
        tools=[{"functionDeclarations": [{"name": "f", "parameters": parameters}]}],
        toolConfig={"functionCallingConfig": {"mode": "VALIDATED"}},
    )
    function = sent(body, OPENAI)["tools"][0]["function"]

    assert function.get("strict", False) is strict
    assert function["parameters"].get("additionalProperties", True) is not strict
    lost = ("toolConfig.functionCallingConfig.mode", "dropped")
    assert (lost in gaps(body, OPENAI)) is not strict
    assert sent(body, HUB)["tools"][0]["function"]["strict"] is True


def answer(finish: str = "stop", **message: Any) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", "content": None, **message}, "finish_reason": finish}
    usage = {
        "prompt_tokens": 10, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 5},
    }  # fmt: skip
    return {"id": "c", "model": "gpt", "choices": [choice], "usage": usage}


def converted(**fields: Any) -> ConvertedRequest:
    return PAIR.request(asked(**fields), HUB, 1.7e9, lambda: "abc")


SHOWN = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
CALLS = [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}]


def test_an_answer_is_one_of_generate_content() -> None:
    """Thoughts where they are asked for; the candidates' tokens are without them."""
    made = PAIR.answer(converted(**SHOWN), answer("tool_calls", reasoning_content="hm", content="so", tool_calls=CALLS))
    parts = [{"text": "hm", "thought": True}, {"text": "so"}, {**call("f", "call_a", x=1), "thoughtSignature": FOREIGN}]
    assert made == {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 17, "thoughtsTokenCount": 5,
            "cachedContentTokenCount": 4,
        },
        "modelVersion": "gpt",
        "responseId": "abc",
    }  # fmt: skip
    assert PAIR.answer(converted(), answer(reasoning_content="hm", content="so"))["candidates"][0]["content"][
        "parts"
    ] == [{"text": "so"}]


@rows(
    "finish,reason", [("stop", "STOP"), ("tool_calls", "STOP"), ("length", "MAX_TOKENS"), ("content_filter", "SAFETY")]
)
def test_why_an_answer_ended(finish: str, reason: str) -> None:
    """Calls do not hide that it was cut; what was cut off is no call."""
    cut = [{**CALLS[0], "function": {"name": "f", "arguments": '{"x":'}}]
    said = PAIR.answer(converted(), answer(finish, content="x", tool_calls=CALLS if finish == "tool_calls" else None))
    assert said["candidates"][0]["finishReason"] == reason
    if reason == "STOP":
        with pytest.raises(MalformedAnswer):
            PAIR.answer(converted(), answer(finish, tool_calls=cut))
    else:
        assert PAIR.answer(converted(), answer(finish, tool_calls=cut))["candidates"][0]["content"]["parts"] == []


DETAIL: Json = {"type": "reasoning.text", "text": "hm", "signature": "S==", "format": "anthropic-claude-v1", "index": 0}


def event(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": delta.pop("finish", None)}
    return b"data: %b\n\n" % orjson.dumps({"id": "c", "model": "gpt", "choices": [choice]})


def chat_stream(*, with_calls: bool = True) -> bytes:
    pieces = [
        event(reasoning_content="h", reasoning_details=[{**DETAIL, "text": "h", "signature": None}]),
        event(reasoning_content="m", reasoning_details=[{"type": "reasoning.text", "text": "m", "index": 0}]),
        event(reasoning_details=[{"type": "reasoning.text", "signature": "S==", "index": 0}]),
        event(content="s"),
        event(content="o"),
    ]
    if with_calls:
        pieces += [event(tool_calls=[{**CALLS[0], "function": {"name": "f", "arguments": '{"x"'}}])]
        pieces += [event(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}])]
    end = {"index": 0, "delta": {}, "finish_reason": "tool_calls" if with_calls else "stop"}
    usage = {"choices": [], "usage": answer()["usage"]}
    pieces.append(b"data: %b\n\n" % orjson.dumps({"model": "gpt", "choices": [end]}))
    return b"".join([*pieces, b": a comment\n\n", b"data: %b\n\n" % orjson.dumps(usage), b"data: [DONE]\n\n"])


def read(stream: bytes, sent: ConvertedRequest, cuts: list[int] | None = None, *, is_clean: bool = True) -> bytes:
    reader = PAIR.reader(sent)
    at, made = 0, []
    for cut in [*sorted(cuts or []), len(stream)]:
        made.append(reader.feed(stream[at:cut]))
        at = cut
    return b"".join([*made, reader.close(is_clean=is_clean)])


def merged(said: bytes) -> list[Json]:
    """The parts of all events, texts of one kind put together, as clients do."""
    parts: list[Json] = []
    for one in said.split(b"\n\n")[:-1]:
        for part in orjson.loads(one.removeprefix(b"data: "))["candidates"][0]["content"]["parts"]:
            last = parts[-1] if parts else {}
            are_texts = bool(parts) and part.keys() | last.keys() <= {"text", "thought"}
            if are_texts and part.get("thought") == last.get("thought"):
                last["text"] += part["text"]
            else:
                parts.append(part)
    return [part for part in parts if part != {"text": ""}]


def test_what_an_answer_cites_is_told_whole_and_streamed() -> None:
    """A stream tells it with its end."""
    note = {"type": "url_citation", "url_citation": {"url": "u", "start_index": 0, "end_index": 2, "title": "t"}}
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    whole = PAIR.answer(converted(), answer(content="so", annotations=[note]))["candidates"][0]
    streamed = read(event(content="so") + event(annotations=[note]) + end, converted()).split(b"\n\n")[-2]

    assert whole["citationMetadata"] == {
        "citationSources": [{"uri": "u", "title": "t", "startIndex": 0, "endIndex": 2}]
    }
    assert (
        orjson.loads(streamed.removeprefix(b"data: "))["candidates"][0]["citationMetadata"] == whole["citationMetadata"]
    )


@pytest.mark.parametrize("fields", [SHOWN, {}], ids=["shown", "hidden"])
def test_signed_thoughts_of_others_come_back_as_they_were(fields: Json) -> None:
    """Whole or streamed, shown or not: the detail that the client's echo makes is the provider's own, byte for byte."""
    whole = PAIR.answer(converted(**fields), answer(reasoning_content="hm", reasoning_details=[DETAIL], content="so"))
    streamed = merged(read(chat_stream(with_calls=False), converted(**fields)))
    for parts in (whole["candidates"][0]["content"]["parts"], streamed):
        assert [part["text"] for part in parts if not part.get("thought")] == ["so"]
        assert "".join(part["text"] for part in parts if part.get("thought")) == ("hm" if fields else "")
        (echoed,) = sent(asked(GO, model(*parts), GO), HUB)["messages"][1:2]
        assert echoed["reasoning_details"] == [DETAIL]
        assert echoed["content"] == "so"


def test_signatures_of_geminis_own_are_told_as_they_are() -> None:
    """And go back as its own; what others have added to a call rides in a mark, which is Base64 as clients want it."""
    own, others = (
        {"google": {"thought_signature": "AB=="}},
        {"google": {"thought_signature": "CD==", "issuer": "vertex"}},
    )
    for extra in (own, others):
        made = PAIR.answer(converted(), answer("tool_calls", tool_calls=[{**CALLS[0], "extra_content": extra}]))
        (part,) = made["candidates"][0]["content"]["parts"]
        assert (held_by(part["thoughtSignature"]) is None) == (extra is own)
        echoed = sent(asked(GO, model(part), user(result(id="call_a", output="x"))), HUB)["messages"][1]
        assert echoed["tool_calls"][0]["extra_content"] == extra


def test_calls_that_nobody_signed_are_known_for_foreign_by_gemini() -> None:
    """The first of a turn is marked; at Gemini it gets the word that stands for a signature, and elsewhere nothing is lost."""
    two = [*CALLS, {**CALLS[0], "id": "call_b"}]
    (candidate,) = PAIR.answer(converted(), answer("tool_calls", tool_calls=two))["candidates"]
    first, second = candidate["content"]["parts"]
    assert (first.pop("thoughtSignature"), second.keys()) == (FOREIGN, {"functionCall"})
    turn = {**candidate["content"], "parts": [{**first, "thoughtSignature": FOREIGN}, second]}
    results = user(result("f", "call_a", x=1), result("f", "call_b", x=1))
    (content, _) = orjson.loads(without_marks(orjson.dumps({"contents": [turn, results]})))["contents"]
    assert content["parts"] == [{**first, "thoughtSignature": "skip_thought_signature_validator"}, second]
    assert gaps(asked(GO, turn, results, tools=[TOOL])) == gaps(asked(GO, tools=[TOOL]))


def test_a_stream_leaves_as_it_comes_and_ends_when_it_ended() -> None:
    """Each delta in its chunk; comments go nowhere; a stream that was cut before its end has none."""
    stream = chat_stream()
    reader = PAIR.reader(converted())
    assert reader.feed(event(content="s")).count(b"\n\n") == 1
    assert reader.feed(event(content="o")) == (
        b'data: {"candidates":[{"content":{"parts":[{"text":"o"}],"role":"model"},"index":0}],'
        b'"modelVersion":"gpt","responseId":"abc"}\n\n'
    )
    said = read(stream, converted())
    assert b": a comment" not in said
    assert b"[DONE]" not in said
    last = orjson.loads(said.split(b"\n\n")[-2].removeprefix(b"data: "))
    assert (last["candidates"][0]["finishReason"], last["usageMetadata"]["totalTokenCount"]) == ("STOP", 17)
    end = stream.index(b'"finish_reason":"tool_calls"')
    for cut in range(0, end, 7):
        assert b"finishReason" not in read(stream[:cut], converted(), is_clean=True)


def test_an_error_is_the_last_event_and_googles() -> None:
    """Behind output; before any it is the provider's own, by which another target is looked for. An end is the last, too."""
    raw = b'data: {"error":{"message":"overloaded","code":503,"x":1}}\n\n'
    for begun, error in (
        (event(content="s"), {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}),
        (event(content=""), {"code": 503, "message": "overloaded", "x": 1}),
    ):
        reader = PAIR.reader(converted())
        last = reader.feed(begun + raw + event(content="never")).split(b"\n\n")[-2]
        assert orjson.loads(last.removeprefix(b"data: "))["error"].items() >= error.items()
        assert reader.feed(event(content="never") + b"x" * 100) + reader.close(is_clean=True) == b""
    reader = PAIR.reader(converted())
    assert b"finishReason" in reader.feed(chat_stream())
    assert reader.feed(raw) + reader.close(is_clean=True) == b""


def test_what_cannot_be_said_again_ends_the_stream() -> None:
    """A provider's nesting is an error in the stream, and none of ours."""
    deep = b'{"content":[{"token":"s","logprob":%b}]}' % (b'{"a":' * 300 + b"1" + b"}" * 300)
    stream = b'data: {"choices":[{"index":0,"delta":{"content":"s"},"logprobs":%b}]}\n\n' % deep
    assert b"nested too deeply" in read(event(content="s") + stream, converted())


def test_pieces_of_a_call_without_a_number_are_of_the_last_one() -> None:
    """Of all that came."""
    pieces = [
        event(tool_calls=[{"id": "b", "index": 3, "function": {"name": "f", "arguments": '{"x"'}}]),
        event(tool_calls=[{"function": {"arguments": ":1}"}}]),
    ]
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n'
    (part,) = merged(read(b"".join([*pieces, end]), converted()))
    assert part["functionCall"]["args"] == {"x": 1}


@given(st.lists(st.integers(0, len(chat_stream())), max_size=12))
@settings(max_examples=40)
def test_a_stream_is_the_same_however_it_is_cut(cuts: list[int]) -> None:
    """At any byte."""
    assert merged(read(chat_stream(), converted(), cuts)) == merged(read(chat_stream(), converted()))


RICH = asked(
    user({"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "AA"}}, {"fileData": {"fileUri": "https://a/b.pdf"}}),
    model({"text": "hm", "thought": True, "thoughtSignature": marked({"detail": DETAIL})}, {**call(), "thoughtSignature": "A"}),
    user(result(output="x"), {"text": "go on"}),
    systemInstruction={"parts": [{"text": "be"}]}, tools=[TOOL], stream=True, serviceTier="flex",
    toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    generationConfig={
        "maxOutputTokens": 9, "stopSequences": ["a"], "responseMimeType": "application/json", "responseSchema": THEIRS,
        "thinkingConfig": {"thinkingBudget": 99, "includeThoughts": True}, "responseModalities": ["TEXT"],
    },
)  # fmt: skip


@given(spoiled(RICH) | odd_bodies("contents", "tools", "generationConfig", "systemInstruction", "toolConfig"))
@settings(max_examples=150)
def test_any_json_is_a_request_or_is_refused(body: Json) -> None:
    """In words, for its caller."""
    for facts in (OTHER, OPENAI, HUB):
        PAIR.gaps(body, facts)
        with suppress(InvalidRequest):
            orjson.dumps(sent({"model": "m", **body}, facts))
    without_marks(orjson.dumps(body))


@given(
    spoiled(answer("tool_calls", content="x", tool_calls=CALLS, reasoning_details=[DETAIL]))
    | odd_bodies("choices", "usage")
)
@settings(max_examples=100)
def test_any_json_is_an_answer_or_malformed(body: Json) -> None:
    """Whole or streamed."""
    with suppress(MalformedAnswer):
        orjson.dumps(PAIR.answer(converted(), body))
    as_delta = orjson.dumps(body).replace(b'"message":', b'"delta":')
    read(b"data: %b\n\ndata: [DONE]\n\n" % as_delta, converted())


BODIES = [
    b'{"contents":[{"parts":[{"text":"a \\u00e4"}]}]}',
    b' \n{ "contents" : [1e400, 12345678901234567890123] }',
    b"{}",
]


@rows("body", BODIES)
def test_what_the_path_says_goes_into_the_body_and_out_again(body: bytes) -> None:
    """To the byte, but for white space at the beginning."""
    for is_stream in (False, True):
        inside = put_in(front_of('m"\\x', is_stream=is_stream), body)
        assert inside.startswith(b'{"model":"m\\"\\\\x"')
        assert taken_out(inside) == (is_stream, b"{" + body.strip()[1:].lstrip())
    edited = orjson.dumps({"contents": [], "model": "m", "stream": True})
    assert taken_out(edited) == (True, b'{"contents":[]}')
    assert put_in(b'{"model":"m"', b"[]") == b"[]"


def test_gemini_never_sees_the_marks_of_others() -> None:
    """A call gets the word that stands for a signature; a thought of another model's goes."""
    mark = marked({"detail": DETAIL}) or ""
    theirs = b64encode(b"gw1 no JSON of ours").decode()
    parts = [
        {"text": "", "thought": True, "thoughtSignature": mark},
        {**call(), "thought_signature": mark},
        {"text": "own", "thoughtSignature": theirs},
    ]
    body = orjson.dumps({"contents": [model(*parts)], "tools": [TOOL]})
    (content,) = orjson.loads(without_marks(body))["contents"]
    assert content["parts"] == [{**call(), "thoughtSignature": "skip_thought_signature_validator"}, parts[2]]
    plain = orjson.dumps({"contents": [GO]}) + b" "
    assert without_marks(plain) is plain
