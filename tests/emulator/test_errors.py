"""Bad requests get the provider's errors, in the provider's shape."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from gateway.emulator.app import create_app
from gateway.emulator.config import EmulatorConfig
from tests.emulator.conftest import chat_body, client_of

_NAMES = st.sampled_from(
    [
        "model",
        "messages",
        "role",
        "content",
        "text",
        "input",
        "prompt",
        "stream",
        "stream_options",
        "include_usage",
        "n",
        "max_tokens",
        "tools",
        "tool_choice",
        "function",
        "name",
        "parameters",
        "properties",
        "type",
        "items",
        "enum",
        "anyOf",
        "$ref",
        "response_format",
        "json_schema",
        "schema",
        "format",
        "dimensions",
        "encoding_format",
        "instructions",
        "metadata",
        "temperature",
    ]
)
_PATHS = [f"/v1/{name}" for name in ("chat/completions", "completions", "embeddings", "responses", "moderations")]


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (chat_body(temperature=-1), "temperature", "decimal_below_min_value"),
        (chat_body(temperature=2.5), "temperature", "decimal_above_max_value"),
        (chat_body(temperature="hot"), "temperature", "invalid_type"),
        (chat_body(max_tokens=0), "max_tokens", "integer_below_min_value"),
        (chat_body(max_tokens=1.5), "max_tokens", "invalid_type"),
        (chat_body(n=True), "n", "invalid_type"),
        (chat_body(stream_options={"include_usage": True}), "stream_options", None),
        ({"model": "m", "messages": []}, "messages", "empty_array"),
        ({"model": "m"}, "messages", "missing_required_parameter"),
        ({"model": "m", "messages": "hi"}, "messages", "invalid_type"),
        ({"model": "m", "messages": ["hi"]}, "messages[0]", "invalid_type"),
        ({"model": "m", "messages": [{"role": "user", "content": 5}]}, "messages[0].content", "invalid_type"),
        ({"model": "m", "messages": [{}], "stream": "yes"}, "stream", "invalid_type"),
        ({"model": 5, "messages": [{}]}, "model", "invalid_type"),
    ],
)
async def test_a_bad_parameter_is_named(body: dict[str, Any], param: str, code: str | None) -> None:
    """400 with `param` and the provider's code."""
    async with client_of(create_app(EmulatorConfig())) as client:
        answer = await client.post("/v1/chat/completions", json=body)

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'"text"', b"null", b"{}", b'{"model":""}'])
async def test_a_body_that_is_no_request_is_a_400(content: bytes) -> None:
    """Broken JSON, other JSON, and no model."""
    async with client_of(create_app(EmulatorConfig())) as client:
        answer = await client.post("/v1/chat/completions", content=content)

    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/embeddings", {"model": "m"}, "input"),
        ("/v1/embeddings", {"model": "m", "input": []}, "input"),
        ("/v1/embeddings", {"model": "m", "input": [{"a": 1}, 5]}, "input[1]"),
        ("/v1/embeddings", {"model": "m", "input": "a", "encoding_format": "hex"}, "encoding_format"),
        ("/v1/embeddings", {"model": "m", "input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/responses", {"model": "m"}, "input"),
        ("/v1/responses", {"model": "m", "input": 5}, "input"),
        ("/v1/completions", {"model": "m", "prompt": 5}, "prompt"),
        ("/v1/moderations", {}, "input"),
        ("/v1/images/generations", {}, "prompt"),
        ("/v1/audio/speech", {"model": "tts-1", "input": 5}, "input"),
    ],
)
async def test_every_endpoint_names_what_is_wrong(path: str, body: dict[str, Any], param: str) -> None:
    """Not only chat."""
    async with client_of(create_app(EmulatorConfig())) as client:
        answer = await client.post(path, json=body)

    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("GET", "/chat/completions", 405),
        ("DELETE", "/openai/deployments/d/chat/completions", 405),
        ("POST", "/openai/deployments/d", 404),
    ],
)
async def test_unknown_paths_and_methods_have_the_error_shape(method: str, path: str, status: int) -> None:
    """404 and 405 are JSON too."""
    async with client_of(create_app(EmulatorConfig())) as client:
        answer = await client.request(method, path)

    assert answer.status_code == status
    assert path in answer.json()["error"]["message"]


@pytest.mark.parametrize("header", [("authorization", "Bearer sk-right"), ("api-key", "sk-right")])
async def test_a_configured_key_is_wanted(header: tuple[str, str]) -> None:
    """401 without it or with another one, which is not shown in full."""
    async with client_of(create_app(EmulatorConfig(api_key="sk-right"))) as client:
        right = await client.get("/v1/models", headers=[header])
        none = await client.get("/v1/models")
        wrong = await client.post(
            "/v1/chat/completions", json=chat_body(), headers={"authorization": "Bearer sk-wrong-0123456789"}
        )

    assert (right.status_code, none.status_code, wrong.status_code) == (200, 401, 401)
    assert wrong.json()["error"]["code"] == "invalid_api_key"
    assert "sk-wrong" not in wrong.text


async def test_only_configured_models_are_served() -> None:
    """404 model_not_found elsewhere, and the list says what there is."""
    async with client_of(create_app(EmulatorConfig(models=("a", "b")))) as client:
        listed = await client.get("/v1/models")
        known = await client.post("/v1/chat/completions", json=chat_body(model="a"))
        unknown = await client.post("/v1/chat/completions", json=chat_body(model="c"))
        looked_up = await client.get("/v1/models/c")

    assert [model["id"] for model in listed.json()["data"]] == ["a", "b"]
    assert known.status_code == 200
    assert unknown.status_code == looked_up.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("dialect", "code", "text"),
    [
        ("openai", "context_length_exceeded", "maximum context length is 10 tokens"),
        ("anthropic", None, "prompt is too long: 23 tokens > 10 maximum"),
    ],
)
async def test_a_context_window_is_kept(dialect: str, code: str | None, text: str) -> None:
    """Prompt and output cap together must fit."""
    async with client_of(create_app(EmulatorConfig(context_window=10, dialect=dialect))) as client:
        fits = await client.post("/v1/chat/completions", json=chat_body(max_tokens=7))
        long = await client.post("/v1/chat/completions", json=chat_body(max_tokens=20))

    assert fits.status_code == 200
    assert (long.status_code, long.json()["error"]["code"]) == (400, code)
    assert text in long.json()["error"]["message"]


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        ("openai", ["x-request-id", "openai-processing-ms", "openai-organization", "openai-version"]),
        ("azure", ["x-request-id", "apim-request-id", "x-ms-region"]),
        ("anthropic", ["x-request-id", "request-id"]),
    ],
)
async def test_every_answer_carries_the_providers_ids(dialect: str, names: list[str]) -> None:
    """Good and bad answers alike."""
    async with client_of(create_app(EmulatorConfig(dialect=dialect))) as client:
        answers = [await client.get("/v1/models"), await client.get("/nothing")]

    assert all(name in answer.headers for answer in answers for name in names)


async def test_the_same_paths_are_served_without_v1_and_under_azures() -> None:
    """`/chat/completions`, `/openai/v1/…`, `/openai/deployments/…`."""
    paths = ("/chat/completions", "/openai/v1/chat/completions", "/openai/deployments/gpt-4o/chat/completions")
    async with client_of(create_app(EmulatorConfig())) as client:
        answers = [await client.post(path, json=chat_body()) for path in paths]

    assert [answer.json()["choices"][0]["message"]["content"][:8] for answer in answers] == ["emulated"] * 3


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.sampled_from(_PATHS), st.dictionaries(_NAMES, _JSON, max_size=8))
def test_no_body_makes_the_emulator_fail(path: str, body: dict[str, Any]) -> None:
    """Any JSON object is answered or refused, never a 5xx or an exception."""

    async def post() -> int:
        async with client_of(create_app(EmulatorConfig(output_tokens=4))) as client:
            content = orjson.dumps({"model": "m", **body}, option=orjson.OPT_NON_STR_KEYS)
            return (await client.post(path, content=content)).status_code

    try:
        assert asyncio.run(post()) in (200, 400)
    except orjson.JSONEncodeError:
        reject()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_deep_nesting_is_refused_or_ignored(path: str) -> None:
    """What orjson reads but will not write back is a 400."""
    deep = b"[" * 900 + b"]" * 900
    body = b'{"model":"m","input":"hi","messages":[{"content":"hi"}],"tools":%b}' % deep
    async with client_of(create_app(EmulatorConfig())) as client:
        answer = await client.post(path, content=body)

    assert answer.status_code in (200, 400)
