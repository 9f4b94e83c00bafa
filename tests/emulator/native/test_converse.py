"""Bedrock's Converse and InvokeModel over bare HTTP: answers, frames, and what is refused in its words."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import orjson
import pytest

from tests.emulator.conftest import FakeClock, client_of
from tests.emulator.native.support import CONVERSE, SCHEMA, converse_events, emulator, frames, post, turn_body

TOOL = {"toolSpec": {"name": "get_weather", "description": "x", "inputSchema": {"json": SCHEMA}}}
TOOLS = {"tools": [TOOL, {"toolSpec": {"name": "get_time", "inputSchema": {"json": {"type": "object"}}}}]}
ANY = {**TOOLS, "toolChoice": {"any": {}}}
THINKING = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
STREAM = f"{CONVERSE}-stream"
MODEL = "/model/us.anthropic.claude-sonnet-5-v1:0"
FORM = {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": {"schema": orjson.dumps(SCHEMA).decode()}}}}


def merged(events: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """The answer that the events add up to."""
    assert [name for name, _ in (events[0], *events[-2:])] == ["messageStart", "messageStop", "metadata"]
    content: list[dict[str, Any]] = []
    for name, event in events[1:-2]:
        index = event["contentBlockIndex"]
        if name == "contentBlockStop":
            assert index == len(content) - 1
            continue
        if index == len(content):
            content.append(
                {"toolUse": {**event["start"]["toolUse"], "input": ""}} if name == "contentBlockStart" else {}
            )
        if name == "contentBlockDelta":
            add(content[index], event["delta"])
    for block in content:
        if "toolUse" in block:
            block["toolUse"]["input"] = orjson.loads(block["toolUse"]["input"])
    return {"content": content, "stopReason": events[-2][1]["stopReason"], "usage": events[-1][1]["usage"]}


def add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    if "text" in delta:
        block["text"] = block.get("text", "") + delta["text"]
    elif "toolUse" in delta:
        block["toolUse"]["input"] += delta["toolUse"]["input"]
    else:
        told = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {"text": ""})
        told["text"] += delta["reasoningContent"].get("text", "")
        told |= {name: value for name, value in delta["reasoningContent"].items() if name == "signature"}


def without_ids(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"toolUse": {**block["toolUse"], "toolUseId": ""}} if "toolUse" in block else block for block in content]


@pytest.mark.parametrize(
    ("extra", "kinds", "reason"),
    [
        ({}, ["text"], "end_turn"),
        ({"inferenceConfig": {"maxTokens": 3}}, ["text"], "max_tokens"),
        ({"additionalModelRequestFields": THINKING}, ["reasoningContent", "text"], "end_turn"),
        ({"toolConfig": ANY}, ["toolUse"], "tool_use"),
        ({"toolConfig": {**TOOLS, "toolChoice": {"tool": {"name": "get_time"}}}}, ["toolUse"], "tool_use"),
        ({"toolConfig": TOOLS}, ["text"], "end_turn"),
        ({"outputConfig": FORM}, ["text"], "end_turn"),
    ],
)
async def test_a_stream_adds_up_to_the_answer(
    clock: FakeClock, extra: dict[str, Any], kinds: list[str], reason: str
) -> None:
    """Blocks, reason and usage are the same whole and streamed, in frames whose checksums are right."""
    served = emulator(clock)

    whole = (await post(served, CONVERSE, turn_body(**extra))).json()
    streamed = await post(served, STREAM, turn_body(**extra))

    content = whole["output"]["message"]["content"]
    assert ([next(iter(block)) for block in content], whole["stopReason"]) == (kinds, reason)
    assert streamed.headers["content-type"] == "application/vnd.amazon.eventstream"
    told = merged(converse_events(streamed.content))
    assert without_ids(told["content"]) == without_ids(content)
    assert (told["stopReason"], told["usage"]) == (whole["stopReason"], whole["usage"])


async def test_calls_are_answered_in_the_next_turn(clock: FakeClock) -> None:
    """All of them, with the tools still told and the thought as it was."""
    served = emulator(clock)
    body = turn_body("use get_weather and get_time", toolConfig=TOOLS, additionalModelRequestFields=THINKING)
    answer = (await post(served, CONVERSE, body)).json()["output"]["message"]
    thought, first, second = answer["content"]
    results = [
        {"toolResult": {"toolUseId": call["toolUse"]["toolUseId"], "content": [{"json": {"ok": 1}}]}}
        for call in (first, second)
    ]

    async def replayed(given: list[dict[str, Any]], *, lost: dict[str, Any] | None = None, **changes: Any) -> Any:
        said = lost or answer
        turns = [*body["messages"], said, {"role": "user", "content": given}]
        changed = {name: value for name, value in {**body, "messages": turns, **changes}.items() if value is not None}
        return (await post(served, CONVERSE, changed)).json()

    assert (await replayed(results))["stopReason"] == "end_turn"
    assert "Expected toolResult blocks at messages.2.content" in (await replayed(results[:1]))["message"]
    assert "exceeds the number of toolUse blocks" in (await replayed([*results, results[0]]))["message"]
    assert "toolConfig field must be defined" in (await replayed(results, toolConfig=None))["message"]
    thought["reasoningContent"]["reasoningText"]["text"] = "other"
    assert "Invalid `signature`" in (await replayed(results))["message"]


async def test_a_cache_point_keeps_what_stands_before_it(clock: FakeClock) -> None:
    """Written by the first call, read by the second; input tokens are the rest."""
    served = emulator(clock)
    body = turn_body(system=[{"text": "x" * 400}, {"cachePoint": {"type": "default"}}])

    used = [(await post(served, CONVERSE, body)).json()["usage"] for _ in range(2)]

    shown = [(use["inputTokens"], use["cacheWriteInputTokens"], use["cacheReadInputTokens"]) for use in used]
    assert shown == [(3, 100, 0), (3, 0, 100)]
    assert used[0]["totalTokens"] == 103 + used[0]["outputTokens"]


def _said(*contents: list[dict[str, Any]]) -> dict[str, Any]:
    turns = [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]
    return {"messages": turns}


USE = {"toolUse": {"toolUseId": "t1", "name": "get_time", "input": {}}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "Value at 'messages' failed to satisfy constraint"),
        (turn_body(model="x"), "extraneous key [model] is not permitted"),
        (turn_body(stream=True), "extraneous key [stream] is not permitted"),
        (_said([]), "The content field in the Message object at messages.0 is empty"),
        (_said([{"text": " "}]), "The text field in the ContentBlock object at messages.0.content.0 is blank"),
        (_said([{"type": "text", "text": "x"}]), "must set exactly one of the members of the ContentBlock union"),
        ({"messages": [{"role": "assistant", "content": [{"text": "x"}]}]}, "must start with a user message"),
        ({"messages": [{"role": "tool", "content": [{"text": "x"}]}]}, "Member must satisfy enum value set"),
        (_said([{"image": {"format": "jpg", "source": {"bytes": ""}}}]), "must be one of png, jpeg, gif, webp"),
        (_said([{"document": {"format": "pdf", "name": "a.pdf", "source": {}}}]), "may only contain alphanumeric"),
        (_said([{"text": "q"}], [{"toolUse": {**USE["toolUse"], "toolUseId": "x" * 65}}]), "length at most 64"),
        (_said([{"text": "q"}], [{"toolUse": {**USE["toolUse"], "input": "{}"}}]), "Provide a json object"),
        ({**_said([{"text": "q"}], [USE]), "toolConfig": TOOLS}, "Expected toolResult blocks at messages.2.content"),
        (turn_body(system=[{"text": ""}]), "SystemContentBlock at system.0 is blank"),
        (turn_body(toolConfig={"tools": []}), "must have length greater than or equal to 1"),
        (turn_body(toolConfig={**TOOLS, "toolChoice": {"none": {}}}), "exactly one of auto, any or tool"),
        (turn_body(toolConfig={"tools": [{"toolSpec": {"name": "a", "description": ""}}]}), "description' failed"),
        (turn_body(inferenceConfig={"max_tokens": 1}), "#/inferenceConfig: extraneous key [max_tokens]"),
        (turn_body(inferenceConfig={"temperature": 1.5}), "'inferenceConfig.temperature' failed"),
        (turn_body(outputConfig={"textFormat": {"structure": {"jsonSchema": {"schema": {}}}}}), "string of JSON"),
    ],
)
async def test_what_bedrock_refuses_is_refused(clock: FakeClock, body: dict[str, Any], text: str) -> None:
    """A ValidationException: its name in a header, its words in the body."""
    refused = await post(emulator(clock), CONVERSE, body)

    assert (refused.status_code, refused.headers["x-amzn-errortype"].partition(":")[0]) == (400, "ValidationException")
    assert text in refused.json()["message"]
    assert len(refused.headers["x-amzn-requestid"]) == 36


async def test_claude_is_invoked_in_anthropics_form(clock: FakeClock) -> None:
    """The version in the body, the events in frames, whole and streamed."""
    served = emulator(clock)
    body = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}

    whole = (await post(served, f"{MODEL}/invoke", body)).json()
    streamed = frames((await post(served, f"{MODEL}/invoke-with-response-stream", body)).content)
    refused = await post(served, f"{MODEL}/invoke", {**body, "stream": True})

    events = [orjson.loads(b64decode(orjson.loads(payload)["bytes"])) for _, payload in streamed]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    assert {headers[":event-type"] for headers, _ in streamed} == {"chunk"}
    assert text == whole["content"][0]["text"]
    assert events[-1]["type"] == "message_stop"
    assert refused.headers["x-amzn-errortype"].startswith("ValidationException")


async def test_texts_are_embedded_by_titan_and_cohere(clock: FakeClock) -> None:
    """One text a call, or up to 96."""
    served = emulator(clock)
    titan, cohere = "/model/amazon.titan-embed-text-v2:0/invoke", "/model/cohere.embed-v4:0/invoke"

    one = (await post(served, titan, {"inputText": "a word", "dimensions": 256})).json()
    two = await post(served, cohere, {"texts": ["a word", "b"], "input_type": "search_query", "output_dimension": 256})
    untold = await post(served, cohere, {"texts": ["a word"]})

    assert (len(one["embedding"]), one["inputTextTokenCount"]) == (256, 2)
    assert two.json()["embeddings"][0] == one["embedding"]
    assert two.headers["x-amzn-bedrock-input-token-count"] == "2"
    assert untold.status_code == 400


async def test_tokens_are_counted_of_either_form(clock: FakeClock) -> None:
    """Of a Converse call, and of one in Anthropic's form."""
    served = emulator(clock)
    claude = {
        "anthropic_version": "bedrock-2023-05-31",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "hi"}],
    }
    carried = {"invokeModel": {"body": b64encode(orjson.dumps(claude)).decode()}}

    told = await post(served, f"{MODEL}/count-tokens", {"input": {"converse": turn_body("x" * 40)}})
    other = await post(served, f"{MODEL}/count-tokens", {"input": carried})

    assert (told.json(), other.status_code) == ({"inputTokens": 10}, 200)


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (
            "AWS4-HMAC-SHA256 Credential=AKID/20261123/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0",
            200,
        ),
        ("Bearer AKID", 200),
        (
            "AWS4-HMAC-SHA256 Credential=OTHER/20261123/us-east-1/bedrock/aws4_request, SignedHeaders=host, Signature=0",
            403,
        ),
        ("", 403),
    ],
)
async def test_the_key_is_the_id_in_the_signature_or_a_bearer(clock: FakeClock, header: str, status: int) -> None:
    """A wrong one is a 403."""
    served = emulator(clock, api_key="AKID")

    answer = await post(served, CONVERSE, turn_body(), {"authorization": header} if header else {})

    assert answer.status_code == status


@pytest.mark.parametrize(
    ("key", "path", "status", "kind"),
    [
        ("AKID:SECRET", "/model/us.claude-v1%3A0/converse", 200, ""),
        ("AKID:OTHER", "/model/us.claude-v1%3A0/converse", 403, "InvalidSignatureException"),
        ("AKID:SECRET", "/model/us.claude-v2%3A0/converse", 403, "InvalidSignatureException"),
        ("OTHER:SECRET", "/model/us.claude-v1%3A0/converse", 403, "UnrecognizedClientException"),
    ],
)
async def test_a_signature_is_verified_where_the_secret_is_told(
    clock: FakeClock, key: str, path: str, status: int, kind: str
) -> None:
    """This one is botocore's, of this body at this time."""
    headers = {
        "content-type": "application/json",
        "x-amz-date": "20261123T090000Z",
        "authorization": "AWS4-HMAC-SHA256 Credential=AKID/20261123/us-east-1/bedrock/aws4_request, "
        "SignedHeaders=content-type;host;x-amz-date, "
        "Signature=813cbae82b1785196cd7337c770968c122ff7a044a4c14605e4968119fd8c1ef",
    }
    body = b'{"messages":[{"role":"user","content":[{"text":"hi"}]}]}'

    async with client_of(emulator(clock, api_key=key)) as client:
        answer = await client.post(path, content=body, headers=headers)

    assert (answer.status_code, answer.headers.get("x-amzn-errortype", "").partition(":")[0]) == (status, kind)


async def test_limits_charge_what_an_answer_might_need(clock: FakeClock) -> None:
    """Input and `maxTokens` together; the refusal says no more than which limit it was."""
    served = emulator(clock, tpm=100)
    body = turn_body(inferenceConfig={"maxTokens": 60})

    first, second = await post(served, CONVERSE, body), await post(served, CONVERSE, body)

    assert first.status_code == 200
    assert (second.status_code, second.headers["x-amzn-errortype"].partition(":")[0]) == (429, "ThrottlingException")
    assert second.json() == {"message": "Too many tokens, please wait before trying again."}
    assert "retry-after" not in second.headers
