"""Keys whose models are restricted name no other by a field that only some providers read."""

from __future__ import annotations

from itertools import product
from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, NIGHTLY_KEY, WEB_KEY, Response, Running, chat, config_of, connect, post
from tests.rows import rows

CHAT = "/v1/chat/completions"
FORM = "content-type: multipart/form-data; boundary=b"


async def gateway_of(start: StartGateway) -> Running:
    return await start(lambda url: config_of(url, keys=KEYS))


async def ask(running: Running, body: bytes, secret: str, *headers: str, path: str = CHAT) -> Response:
    async with connect(running.url) as peer:
        return await peer.exchange(post(path, body, f"authorization: Bearer {secret}", *headers))


def form(*parts: str) -> bytes:
    """A form with a permitted model, and these parts behind it."""
    listed = ['Content-Disposition: form-data; name="model"\r\n\r\ngpt-4o', *parts]
    return b"".join(f"--b\r\n{part}\r\n".encode() for part in listed) + b"--b--\r\n"


ELSEWHERE = (
    '"Model": "o1"',
    '"MODEL": "o1"',
    '"mod\\u0065ls": ["o1"]',
    '"models": ["o1", "gpt-4o"]',
    '"model\\u017f": ["o1"]',
    '"provider": {"order": ["x"]}',
    '"fallbacks": ["o1"]',
    '"Engine": "o1"',
)


@pytest.fixture
async def running(start: StartGateway) -> Running:
    """A gateway with a key for some models, and one for all."""
    return await gateway_of(start)


@rows("text, padding", product(ELSEWHERE, (0, 300_000, 5_000_000)))
async def test_a_restricted_key_names_no_other_model_beside(running: Running, text: str, padding: int) -> None:
    """Whatever the size of the body; a key for every model may, for the provider to judge."""
    before = running.upstream_calls()
    rest = orjson.dumps(chat(user="x" * padding))[1:]
    body = b"{" + text.encode() + b"," + rest

    refused = await ask(running, body, NIGHTLY_KEY)
    assert (refused.status, refused.error["code"]) == (403, "field_not_allowed")
    assert running.upstream_calls() == before
    if "\\u" not in text:  # large bodies are refused for whatever is escaped there
        assert (await ask(running, body, WEB_KEY)).status == 200


async def test_what_stands_deeper_or_in_a_text_is_nobodys_choice(start: StartGateway) -> None:
    """Only the top level chooses."""
    running = await gateway_of(start)
    deep: Any = {"metadata": {"models": "o1", "provider": "x"}, "user": '"Model": "o1"'}

    assert (await ask(running, orjson.dumps(chat(**deep)), NIGHTLY_KEY)).status == 200


@rows("padding", [0, 5_000_000])
async def test_a_tool_that_is_another_model_is_not_for_a_restricted_key(running: Running, padding: int) -> None:
    """Of Messages alone: Anthropic's advisor."""
    tool = {"type": "advisor_20260301", "name": "advisor", "model": "o1"}
    asked = chat(tools=[tool], max_tokens=9, metadata={"user_id": "x" * padding})

    refused = await ask(running, orjson.dumps(asked), NIGHTLY_KEY, path="/v1/messages")

    error = orjson.loads(refused.body)["error"]
    assert (refused.status, error["type"], error["code"]) == (403, "permission_error", "field_not_allowed")
    allowed = await ask(running, orjson.dumps(chat(max_tokens=9)), NIGHTLY_KEY, path="/v1/messages")
    assert allowed.status == 200


@pytest.mark.parametrize(
    "part",
    [
        'Content-Disposition: form-data; name="Model"\r\n\r\no1',
        "Content-Disposition: form-data; name*=utf-8''model\r\n\r\no1",
        "Content-Disposition: form-data; NAME*=UTF-8''mod%65l\r\n\r\no1",
        "Content-Disposition: form-data; name=\"x\"; name*=utf-8''model\r\n\r\no1",
        'Content-Disposition: form-data; name="models"\r\n\r\no1',
    ],
)
async def test_a_form_names_no_other_model_either(start: StartGateway, part: str) -> None:
    """In another case, or in the way of RFC 5987."""
    running = await gateway_of(start)

    refused = await ask(running, form(part), NIGHTLY_KEY, FORM, path="/v1/audio/transcriptions")

    assert (refused.status, refused.error["code"]) == (403, "field_not_allowed")
    assert running.upstream_calls() == 0
