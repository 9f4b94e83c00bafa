"""Gemini's generateContent over bare HTTP: answers, streams, embeddings, and what is refused in its words."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.emulator.conftest import FakeClock, client_of
from tests.emulator.native.support import GENERATE, SCHEMA, STREAMED, content_body, data_chunks, emulator, post

DECLARED = [{"name": "get_weather", "parametersJsonSchema": SCHEMA}, {"name": "get_time", "description": "x"}]
TOOLS = [{"functionDeclarations": DECLARED}]
ANY = {"functionCallingConfig": {"mode": "ANY"}}
THOUGHTS = {"thinkingConfig": {"includeThoughts": True, "thinkingLevel": "LOW"}}
MODEL = "/v1beta/models/gemini-3-flash-preview"


def merged(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts that the chunks add up to, neighbouring texts of a kind joined."""
    parts: list[dict[str, Any]] = []
    for chunk in chunks:
        for part in chunk["candidates"][0]["content"]["parts"]:
            if "text" in part and parts and "text" in parts[-1] and part.get("thought") == parts[-1].get("thought"):
                parts[-1] = {**parts[-1], "text": parts[-1]["text"] + part["text"]}
            elif part != {"text": ""}:
                parts.append(part)
    return parts


def without_ids(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {**part, "functionCall": {**part["functionCall"], "id": ""}} if "functionCall" in part else part
        for part in parts
    ]


@pytest.mark.parametrize(
    ("extra", "kinds", "reason"),
    [
        ({}, ["text"], "STOP"),
        ({"generationConfig": {"maxOutputTokens": 3}}, ["text"], "MAX_TOKENS"),
        ({"generationConfig": THOUGHTS}, ["thought", "text"], "STOP"),
        ({"generation_config": {"thinking_config": {"thinking_level": "low"}}}, ["text"], "STOP"),
        ({"tools": TOOLS, "toolConfig": ANY}, ["functionCall"], "STOP"),
        ({"tools": TOOLS, "toolConfig": ANY, "generationConfig": THOUGHTS}, ["thought", "functionCall"], "STOP"),
        ({"tools": TOOLS}, ["text"], "STOP"),
        (
            {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}},
            ["text"],
            "STOP",
        ),
        ({"generationConfig": {"responseMimeType": "application/json"}}, ["text"], "STOP"),
    ],
)
async def test_a_stream_adds_up_to_the_answer(
    clock: FakeClock, extra: dict[str, Any], kinds: list[str], reason: str
) -> None:
    """Parts and usage are the same whole and streamed; the reason comes in a chunk of its own."""
    served = emulator(clock)

    whole = (await post(served, GENERATE, content_body(**extra))).json()
    chunks = data_chunks((await post(served, STREAMED, content_body(**extra))).content)
    array = orjson.loads((await post(served, STREAMED.partition("?")[0], content_body(**extra))).content)

    candidate = whole["candidates"][0]
    parts = candidate["content"]["parts"]
    names = ["thought" if part.get("thought") else next(iter(part)) for part in parts]
    assert (names, candidate["finishReason"]) == (kinds, reason)
    for told in (chunks, array):
        assert without_ids(merged(told)) == without_ids(parts)
        assert told[-1]["usageMetadata"] == whole["usageMetadata"]
        assert told[-1]["candidates"][0]["content"]["parts"] == [{"text": ""}]
        assert ["finishReason" in chunk["candidates"][0] for chunk in told].count(True) == 1
    usage = whole["usageMetadata"]
    counted = usage["promptTokenCount"] + usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
    assert usage["totalTokenCount"] == counted


async def test_calls_are_signed_at_the_first_and_come_back_so(clock: FakeClock) -> None:
    """A missing or a wrong signature is refused; the documented stand-in for another model's call is not."""
    served = emulator(clock)
    body = content_body("use get_weather and get_time", tools=TOOLS)
    answer = (await post(served, GENERATE, body)).json()["candidates"][0]["content"]
    first, second = answer["parts"]
    results = [
        {"functionResponse": {"name": part["functionCall"]["name"], "id": part["functionCall"]["id"], "response": {}}}
        for part in answer["parts"]
    ]

    async def replayed(signature: str | None, given: list[dict[str, Any]] = results) -> Any:
        call = {**first, "thoughtSignature": signature} if signature else {"functionCall": first["functionCall"]}
        turns = [*body["contents"], {"role": "model", "parts": [call, second]}, {"role": "user", "parts": given}]
        return (await post(served, GENERATE, {**body, "contents": turns})).json()

    assert first["functionCall"]["args"] == {"city": "emulated", "days": 1}
    assert "thoughtSignature" not in second
    assert "candidates" in await replayed(first["thoughtSignature"])
    assert "candidates" in await replayed("skip_thought_signature_validator")
    assert "missing a thought_signature" in (await replayed(None))["error"]["message"]
    assert (await replayed("bm8="))["error"]["message"] == "Corrupted thought signature."
    assert (
        "number of function response parts"
        in (await replayed(first["thoughtSignature"], results[:1]))["error"]["message"]
    )


async def test_several_candidates_come_one_by_one(clock: FakeClock) -> None:
    """Each with its number and its end."""
    served = emulator(clock)
    body = content_body(generationConfig={"candidateCount": 2})

    whole = (await post(served, GENERATE, body)).json()["candidates"]
    chunks = data_chunks((await post(served, STREAMED, body)).content)

    assert [candidate["index"] for candidate in whole] == [0, 1]
    assert whole[0]["content"] != whole[1]["content"]
    ended = [chunk["candidates"][0]["index"] for chunk in chunks if "finishReason" in chunk["candidates"][0]]
    assert ended == [0, 1]


async def test_a_system_instruction_is_cached_by_itself(clock: FakeClock) -> None:
    """The second call says how much of the prompt it did not have to read."""
    served = emulator(clock)
    body = content_body(systemInstruction={"parts": [{"text": "x" * 400}]})

    used = [(await post(served, GENERATE, body)).json()["usageMetadata"] for _ in range(2)]

    assert [usage.get("cachedContentTokenCount") for usage in used] == [None, 100]
    assert used[0]["promptTokenCount"] == used[1]["promptTokenCount"]


def _calls(*names: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in names]}


ASKED = {"role": "user", "parts": [{"text": "q"}]}
REFERRED = {"functionResponse": {"name": "f", "response": {"$ref": "#/x"}}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "contents is not specified"),
        ({"contents": []}, "contents is not specified"),
        (content_body(model_name="x"), 'Unknown name "modelName": Cannot find field.'),
        (content_body(messages=[]), 'Unknown name "messages": Cannot find field.'),
        ({"contents": [{"role": "assistant", "parts": [{"text": "x"}]}]}, "Please use a valid role: user, model."),
        ({"contents": [{"role": "user", "parts": []}]}, "contents.parts must not be empty"),
        ({"contents": [{"role": "user", "parts": [{}]}]}, "required oneof field 'data'"),
        ({"contents": [{"role": "user", "parts": [{"type": "text", "text": "x"}]}]}, 'Unknown name "type" at "parts"'),
        ({"contents": [{"parts": [{"inlineData": {"data": "data:x"}}]}]}, "Base64 decoding failed"),
        ({"contents": [_calls("f")]}, "function call turn comes immediately after a user turn"),
        ({"contents": [ASKED, _calls("f"), ASKED]}, "number of function response parts is equal"),
        ({"contents": [ASKED, _calls("f")]}, "function response turn comes immediately after"),
        (
            {"contents": [ASKED, _calls("f"), {"role": "user", "parts": [{"functionResponse": {"response": {}}}]}]},
            "function_response.name: Name cannot be empty",
        ),
        ({"contents": [ASKED, _calls("f"), {"role": "user", "parts": [REFERRED]}]}, "Reference to '#/x'"),
        (content_body(tools=[{"functionDeclarations": [{"name": "a b"}]}]), "Invalid function name"),
        (content_body(tools=TOOLS + TOOLS), "Duplicate function declaration found: get_weather"),
        (content_body(toolConfig=ANY), "without function_declarations"),
        (
            content_body(tools=TOOLS, toolConfig={"functionCallingConfig": {"allowedFunctionNames": ["get_time"]}}),
            "allowed_function_names should only be set when mode is ANY",
        ),
        (content_body(generationConfig={"temperature": 3}), "must be in the range [0, 2]"),
        (content_body(generationConfig={"max_tokens": 3}), 'Unknown name "maxTokens" at "generationConfig"'),
        (content_body(generationConfig={"responseJsonSchema": SCHEMA}), "only supported with response_mime_type"),
    ],
)
async def test_what_google_refuses_is_refused(clock: FakeClock, body: dict[str, Any], text: str) -> None:
    """A 400 in its words and its shape."""
    refused = await post(emulator(clock), GENERATE, body)

    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert text in error["message"]


async def test_tokens_and_texts_are_counted_and_embedded(clock: FakeClock) -> None:
    """Alone and in a batch; the same text has the same vector on every path."""
    served = emulator(clock)
    content = {"parts": [{"text": "a word"}]}
    name, path = "gemini-embedding-001", "/v1beta/models/gemini-embedding-001"
    one = {"content": content, "outputDimensionality": 8, "taskType": "RETRIEVAL_QUERY"}

    counted = (await post(served, f"{MODEL}:countTokens", content_body("x" * 40))).json()
    alone = (await post(served, f"{path}:embedContent", one)).json()
    batch = (
        await post(served, f"{path}:batchEmbedContents", {"requests": [{"model": f"models/{name}", **one}] * 2})
    ).json()
    project = "/v1/projects/p/locations/l/publishers/google/models/text-embedding-005:predict"
    vertex = {"instances": [{"content": "a word"}], "parameters": {"outputDimensionality": 8}}
    predicted = (await post(served, project, vertex)).json()["predictions"][0]["embeddings"]
    unnamed = await post(served, f"{path}:batchEmbedContents", {"requests": [one]})

    assert counted["totalTokens"] == 10
    assert len(alone["embedding"]["values"]) == 8
    assert batch["embeddings"] == [alone["embedding"]] * 2
    assert (predicted["values"], predicted["statistics"]["token_count"]) == (alone["embedding"]["values"], 2)
    assert unnamed.status_code == 400


async def test_a_fine_tuned_models_name_is_no_call_of_googles(clock: FakeClock) -> None:
    """OpenAI's names have colons, too."""
    async with client_of(emulator(clock)) as client:
        found = (await client.get("/v1/models/ft:gpt-4o:org::id")).json()

    assert (found["id"], found["object"]) == ("ft:gpt-4o:org::id", "model")


async def test_a_project_of_vertex_ai_may_stand_before_the_model(clock: FakeClock) -> None:
    """Claude, too, in Anthropic's form with the version in the body."""
    served = emulator(clock)
    home = "/v1/projects/p/locations/l/publishers"
    claude = {"anthropic_version": "vertex-2023-10-16", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}

    gemini = await post(served, f"{home}/google/models/gemini-2.5-pro:generateContent", content_body())
    carried = await post(served, f"{home}/anthropic/models/claude-x@1:rawPredict", claude)
    named = await post(served, f"{home}/anthropic/models/claude-x@1:rawPredict", {**claude, "model": "claude-x"})

    asked = {name: claude[name] for name in ("anthropic_version", "messages")} | {"model": "claude-x@1"}
    counted = await post(served, f"{home}/anthropic/models/count-tokens:rawPredict", asked)

    assert gemini.json()["modelVersion"] == "gemini-2.5-pro"
    assert counted.json()["input_tokens"] > 0
    assert (carried.json()["model"], carried.json()["stop_reason"]) == ("claude-x@1", "max_tokens")
    assert named.json()["error"]["message"] == "model: Extra inputs are not permitted"


async def test_the_key_is_in_a_header_or_in_the_query(clock: FakeClock) -> None:
    """A wrong one is Google's 400."""
    served = emulator(clock, api_key="right")

    good = [
        await post(served, GENERATE, content_body(), {"x-goog-api-key": "right"}),
        await post(served, f"{GENERATE}?key=right", content_body()),
        await post(served, GENERATE, content_body(), {"authorization": "Bearer right"}),
    ]
    bad = await post(served, GENERATE, content_body(), {"x-goog-api-key": "wrong"})

    assert [answer.status_code for answer in good] == [200, 200, 200]
    assert (bad.status_code, bad.json()["error"]["details"][0]["reason"]) == (400, "API_KEY_INVALID")


async def test_limits_are_known_by_the_refusal_alone(clock: FakeClock) -> None:
    """Which quota it was, and when to come again, to the millisecond; waiting as told is enough."""
    served = emulator(clock, rpm=7)
    answers = [await post(served, GENERATE, content_body()) for _ in range(7)]

    refused = await post(served, GENERATE, content_body())

    details = {detail["@type"].rpartition(".")[2]: detail for detail in refused.json()["error"]["details"]}
    assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
    assert details["QuotaFailure"]["violations"][0]["quotaId"] == "GenerateRequestsPerMinutePerProjectPerModel"
    assert details["RetryInfo"]["retryDelay"] == "8.572s"
    assert not [name for name in (*answers[-1].headers, *refused.headers) if "ratelimit" in name or "retry" in name]
    clock.at_s += 8.572
    assert (await post(served, GENERATE, content_body())).status_code == 200


async def test_models_are_listed_in_googles_shape(clock: FakeClock) -> None:
    """By the path, or by its key's header."""
    served = emulator(clock, models=("gemini-a",))

    async with client_of(served) as client:
        by_path = (await client.get("/v1beta/models")).json()
        by_header = (await client.get("/v1/models/gemini-a", headers={"x-goog-api-key": "k"})).json()
        unknown = await client.get("/v1beta/models/other")

    assert [model["name"] for model in by_path["models"]] == ["models/gemini-a"]
    assert by_header["inputTokenLimit"] == 200_000
    assert (unknown.status_code, unknown.json()["error"]["status"]) == (404, "NOT_FOUND")
