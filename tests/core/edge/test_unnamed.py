"""Calls that name no model, where OpenAI lets them: who takes them, and who may send them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, NIGHTLY_KEY, WEB_KEY, Running, config_of, connect, post
from tests.support.raw_server import READ, RawServer

ANSWER = b'{"id":"x_1","object":"o","output":[]}'
PATHS = ["/v1/responses", "/v1/images/generations", "/v1/moderations", "/responses", "/moderations"]
NAMED = {"targets": ["main/gpt-4o"]}


def answer(body: bytes = ANSWER, kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


def without(url: str, **sections: Any) -> dict[str, Any]:
    """A config without `"*"`."""
    return config_of(url, **{"models": {"gpt-4o": NAMED}, **sections})


async def ask(gateway: Running, path: str, body: Any, *headers: str) -> tuple[int, Any]:
    async with connect(gateway.url) as peer:
        said = await peer.exchange(post(path, body if isinstance(body, bytes) else orjson.dumps(body), *headers))
    return said.status, orjson.loads(said.body)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", [b'{"input": "x"}', b'{"input": "x", "model": null}'])
async def test_the_model_of_every_name_takes_them_as_they_are(start: StartGateway, path: str, body: bytes) -> None:
    async with RawServer([[READ, answer()]]) as provider:
        gateway = await start(lambda _: config_of(provider.url))
        assert await ask(gateway, path, body) == (200, orjson.loads(ANSWER))

    assert provider.requests[0].body == body


async def test_a_large_one_is_taken_as_well(start: StartGateway) -> None:
    body = orjson.dumps({"input": "x" * 5_000_000})
    async with RawServer([[READ, answer()]]) as provider:
        gateway = await start(lambda _: config_of(provider.url))
        assert (await ask(gateway, "/v1/responses", body))[0] == 200

    assert provider.requests[0].body == body


@pytest.mark.parametrize("path", ["/v1/responses", "/moderations"])
async def test_without_one_pass_through_relays_them(start: StartGateway, path: str) -> None:
    """As all else that the gateway does not know, answer and all."""
    async with RawServer([[READ, answer(b'{"any": "shape"}')]]) as provider:
        gateway = await start(lambda _: without(f"{provider.url}/v1", passthrough="main"))
        assert await ask(gateway, path, {"input": "x"}) == (200, {"any": "shape"})

    assert provider.requests[0].line == f"POST /v1/{path.rpartition('/')[2]} HTTP/1.1".encode()


async def test_pass_through_relays_their_streams(start: StartGateway) -> None:
    events = b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_1"}}\n\n'
    async with RawServer([[READ, answer(events, b"text/event-stream")]]) as provider:
        gateway = await start(lambda _: without(provider.url, passthrough="main"))
        async with connect(gateway.url) as peer:
            said = await peer.exchange(post("/v1/responses", b'{"input": "x", "stream": true}'))

    assert (said.status, said.body) == (200, events)


@pytest.mark.parametrize("path", PATHS)
async def test_with_neither_a_model_has_to_be_named(start: StartGateway, path: str) -> None:
    gateway = await start(without)

    status, said = await ask(gateway, path, {"input": "x"})

    assert (status, said["error"]["code"], said["error"]["param"]) == (400, "missing_field", "model")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/v1/audio/speech"])
async def test_elsewhere_it_has_to_be_named_whatever_the_config_says(start: StartGateway, path: str) -> None:
    gateway = await start(lambda url: config_of(url, passthrough="main"))

    status, said = await ask(gateway, path, {"input": "x"})

    assert (status, said["error"]["code"]) == (400, "missing_field")


@pytest.mark.parametrize(
    "sections", [{}, {"passthrough": "main"}, {"models": {"gpt-4o": NAMED}, "passthrough": "main"}]
)
async def test_a_key_of_some_models_may_not_leave_it_out(start: StartGateway, sections: dict[str, Any]) -> None:
    """Nobody knows which one it would be."""
    gateway = await start(lambda url: config_of(url, keys=KEYS, **sections))

    status, said = await ask(gateway, "/v1/responses", {"input": "x"}, f"authorization: Bearer {NIGHTLY_KEY}")

    assert (status, said["error"]["code"]) == (403, "model_not_allowed")
    assert gateway.upstream_calls() == 0


async def test_a_key_of_all_models_may(start: StartGateway) -> None:
    async with RawServer([[READ, answer()]]) as provider:
        gateway = await start(lambda _: config_of(provider.url, keys=KEYS))
        assert (await ask(gateway, "/v1/responses", {"input": "x"}, f"authorization: Bearer {WEB_KEY}"))[0] == 200


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b'{"input": "x"}', {"model": "gpt-4o-mini", "input": "x"}),
        (b'{"model": null, "input": "x"}', {"model": "gpt-4o-mini", "input": "x"}),
        (b'{"prompt": {"id": "pmpt_1"}}', {"prompt": {"id": "pmpt_1"}}),
    ],
)
async def test_a_target_that_stands_for_one_model_gets_its_name_unless_a_stored_prompt_has_one(
    start: StartGateway, sent: bytes, received: dict[str, Any]
) -> None:
    async with RawServer([[READ, answer()]]) as provider:
        gateway = await start(lambda _: config_of(provider.url, models={"*": {"targets": ["main/gpt-4o-mini"]}}))
        assert (await ask(gateway, "/v1/responses", sent))[0] == 200

    assert orjson.loads(provider.requests[0].body) == received


@pytest.mark.parametrize("body", [b'{"model": null, "model": "gpt-4o"}', b'{"model": "gpt-4o", "model": null}'])
async def test_a_model_that_is_named_and_not_is_refused(start: StartGateway, body: bytes) -> None:
    """Two parsers would read it differently."""
    gateway = await start(config_of)

    status, said = await ask(gateway, "/v1/responses", body)

    assert (status, said["error"]["code"]) == (400, "duplicate_field")


async def test_a_key_with_a_budget_may_not_have_it_relayed_for_nobody_knows_what(start: StartGateway) -> None:
    keys = [{"name": "web", "key": WEB_KEY, "budget_usd_per_day": 5}]
    gateway = await start(lambda url: without(url, keys=keys, passthrough="main"))

    status, said = await ask(gateway, "/v1/responses", {"input": "x"}, f"authorization: Bearer {WEB_KEY}")

    assert (status, said["error"]["code"]) == (403, "unpriced_endpoint")
