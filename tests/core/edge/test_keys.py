"""Who may call, what they may call, and which secret goes where.

Invariant of all of it: a secret that opens the gateway never reaches a provider, and a provider's secret never a client.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    KEYS,
    NIGHTLY_KEY,
    PROVIDER_KEY,
    WEB_KEY,
    Running,
    chat,
    config_of,
    connect,
    get,
    post,
)

CHAT = "/v1/chat/completions"
CALLERS_OWN = "sk-callers-own-canary-55aa"


def with_keys(url: str) -> dict[str, Any]:
    """Keys, and a provider with a secret of its own."""
    return config_of(url, keys=KEYS)


def passing_on(url: str, **sections: Any) -> dict[str, Any]:
    """A provider without a secret: it gets the caller's."""
    return config_of(url, providers={"main": {"dialect": "openai", "base_url": url}}, **sections)


def headers_received(gateway: Running) -> dict[str, str]:
    """The headers of the only request that reached the provider; each name occurs once."""
    (request,) = gateway.received()
    headers = [(name, value) for name, value in request["headers"]]
    assert len({name for name, _ in headers}) == len(headers)
    return dict(headers)


@pytest.mark.parametrize(
    "header",
    [
        f"authorization: Bearer {WEB_KEY}",
        f"authorization: bearer {WEB_KEY}",
        f"authorization: BEARER  {WEB_KEY} ",
        f"x-api-key: {WEB_KEY}",
        f"api-key: {WEB_KEY}",
        f"API-Key: {WEB_KEY}",
    ],
)
async def test_a_key_opens_the_gateway_in_any_of_its_headers(start: StartGateway, header: str) -> None:
    """And only the provider's own secret goes on."""
    gateway = await start(with_keys)

    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, None, header))

    assert answer.status == 200
    assert headers_received(gateway)["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert WEB_KEY not in str(gateway.received())


@pytest.mark.parametrize(
    "headers",
    {
        "none": (),
        "empty": ("authorization: ",),
        "bearer_alone": ("authorization: Bearer",),
        "bearer_blank": ("authorization: Bearer   ",),
        "wrong": ("authorization: Bearer wrong-key-0123456789abcdef",),
        "prefix": (f"authorization: Bearer {WEB_KEY[:-1]}",),
        "longer": (f"authorization: Bearer {WEB_KEY}x",),
        "other_case": (f"authorization: Bearer {WEB_KEY.upper()}",),
        "no_scheme": (f"authorization: {WEB_KEY}",),
        "basic": (f"authorization: Basic {WEB_KEY}",),
        "not_latin1": ("authorization: Bearer \xe4\xf6\xfc\xff",),
        "quotes": ("authorization: Bearer ' OR 1=1 --",),
        "of_60_kb": ("authorization: Bearer " + "k" * 60_000,),
        "empty_x_api_key": ("x-api-key: ",),
        "wrong_x_api_key": ("x-api-key: nope",),
        "provider_key": (f"authorization: Bearer {PROVIDER_KEY}",),
        "in_cookie": (f"cookie: key={WEB_KEY}",),
    }.items(),
    ids=lambda item: item[0],
)
async def test_without_a_good_key_nothing_is_served(start: StartGateway, headers: tuple[str, tuple[str, ...]]) -> None:
    """44: 401 on every endpoint, the same answer for a missing key as for a missing model, no upstream call, no echo."""
    gateway = await start(lambda url: config_of(url, keys=KEYS, passthrough="main"))

    async with connect(gateway.url) as peer:
        answers = [
            await peer.exchange(request)
            for request in (
                post(CHAT, None, *headers[1]),
                post("/embeddings", b"{", *headers[1]),
                post("/v1/files", b"x", *headers[1]),
                get("/v1/models", *headers[1]),
                get("/v1/models/no-such-model", *headers[1]),
                get("/v1/files/file-1", *headers[1]),
            )
        ]

    for answer in answers:
        assert answer.status == 401
        assert answer.error["code"] == "invalid_api_key"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.header("x-should-retry") == "false"
        assert answer.error["message"] == answers[0].error["message"]
        assert all(secret not in answer.body.decode() for secret in ("wrong-key", WEB_KEY, PROVIDER_KEY))
    assert gateway.upstream_calls() == 0


async def test_a_key_in_the_query_is_no_key(start: StartGateway) -> None:
    """Addresses end up in logs."""
    gateway = await start(with_keys)

    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(f"{CHAT}?api_key={WEB_KEY}&key={WEB_KEY}"))

    assert answer.status == 401


async def test_a_key_is_held_to_its_models(start: StartGateway) -> None:
    """403 for the others, on every endpoint that takes a model; the list shows what it may use."""
    gateway = await start(lambda url: config_of(url, keys=KEYS, passthrough="main"))
    key = f"authorization: Bearer {NIGHTLY_KEY}"

    async with connect(gateway.url) as peer:
        allowed = await peer.exchange(post(CHAT, None, key))
        refused = await peer.exchange(post(CHAT, orjson.dumps(chat("renamed")), key))
        embedding = await peer.exchange(post("/v1/embeddings", orjson.dumps({"model": "e", "input": "x"}), key))
        shown = await peer.exchange(get("/v1/models/renamed", key))
        listed = await peer.exchange(get("/v1/models", key))
        relayed = await peer.exchange(get("/v1/files", key))

    assert allowed.status == 200
    assert (refused.status, refused.error["code"], refused.error["param"]) == (403, "model_not_allowed", "model")
    assert (embedding.status, shown.status) == (403, 403)
    assert [model["id"] for model in orjson.loads(listed.body)["data"]] == ["gpt-4o"]
    assert (relayed.status, relayed.error["code"]) == (403, "path_not_allowed")
    assert gateway.upstream_calls() == 1


async def test_a_call_may_choose_its_own_lane_or_a_lower_one(start: StartGateway) -> None:
    """Priority is granted by the key, not by the caller."""
    gateway = await start(with_keys)
    web, nightly = f"authorization: Bearer {WEB_KEY}", f"authorization: Bearer {NIGHTLY_KEY}"

    async with connect(gateway.url) as peer:
        lower = await peer.exchange(post(CHAT, None, web, "x-gateway-lane: background"))
        higher = await peer.exchange(post(CHAT, None, nightly, "x-gateway-lane: interactive"))
        unknown = await peer.exchange(post(CHAT, None, web, "x-gateway-lane: vip"))
        own = await peer.exchange(post(CHAT, None, nightly))
    await gateway.stop()

    assert (lower.status, own.status) == (200, 200)
    assert (higher.status, higher.error["code"]) == (403, "lane_not_allowed")
    assert unknown.status == 400
    assert "x-gateway-lane" in unknown.error["message"]
    served = [(one["key"], one["lane"]) for one in gateway.records if one["event"] == "call"]
    assert served == [("web", "background"), ("nightly", "batch")]


@pytest.mark.parametrize("deadline", ["0", "-1", "1.5", "soon", "9" * 30, ""])
async def test_a_deadline_that_is_no_number_is_refused(gateway: Running, deadline: str) -> None:
    """Naming the header."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, None, f"x-gateway-deadline-ms: {deadline}"))

    assert answer.status == 400
    assert "'x-gateway-deadline-ms'" in answer.error["message"]
    assert gateway.upstream_calls() == 0


async def test_without_keys_the_callers_credential_goes_to_a_provider_that_has_none(start: StartGateway) -> None:
    """With the account headers that belong to it, as they came."""
    gateway = await start(passing_on)

    async with connect(gateway.url) as peer:
        await peer.exchange(
            post(
                CHAT, None, f"authorization: Bearer {CALLERS_OWN}", "openai-organization: org-1", "openai-project: p-1"
            )
        )

    headers = headers_received(gateway)
    assert headers["authorization"] == f"Bearer {CALLERS_OWN}"
    assert (headers["openai-organization"], headers["openai-project"]) == ("org-1", "p-1")


@pytest.mark.parametrize("name", ["x-api-key", "api-key"])
async def test_a_credential_in_another_header_is_passed_on_as_a_bearer(start: StartGateway, name: str) -> None:
    """So that any client works with any provider."""
    gateway = await start(passing_on)

    async with connect(gateway.url) as peer:
        await peer.exchange(post(CHAT, None, f"{name}: {CALLERS_OWN}"))

    headers = headers_received(gateway)
    assert headers["authorization"] == f"Bearer {CALLERS_OWN}"
    assert name not in headers


async def test_a_provider_with_a_secret_never_sees_the_callers(start: StartGateway) -> None:
    """Nor the account that the caller names."""
    gateway = await start()

    async with connect(gateway.url) as peer:
        await peer.exchange(post(CHAT, None, f"authorization: Bearer {CALLERS_OWN}", "openai-organization: org-1"))

    headers = headers_received(gateway)
    assert headers["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert "openai-organization" not in headers or headers["openai-organization"] != "org-1"
    assert CALLERS_OWN not in str(headers)


async def test_with_keys_a_second_credential_may_be_the_providers(start: StartGateway) -> None:
    """The gateway's key in `x-api-key`, the provider's in `Authorization`: each goes where it belongs."""
    gateway = await start(lambda url: passing_on(url, keys=KEYS))

    async with connect(gateway.url) as peer:
        await peer.exchange(post(CHAT, None, f"x-api-key: {WEB_KEY}", f"authorization: Bearer {CALLERS_OWN}"))

    headers = headers_received(gateway)
    assert headers["authorization"] == f"Bearer {CALLERS_OWN}"
    assert WEB_KEY not in str(headers)


@pytest.mark.parametrize(
    "headers",
    [
        (f"authorization: Bearer {WEB_KEY}",),
        (f"x-api-key: {WEB_KEY}",),
        (f"x-api-key: {WEB_KEY}", f"authorization: Bearer {WEB_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: {WEB_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: Basic {NIGHTLY_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: Bearer\t{WEB_KEY}"),
        (f"authorization: Bearer {WEB_KEY}", f"api-key: {NIGHTLY_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: Basic {b64encode(f'u:{WEB_KEY}'.encode()).decode()}"),
        (f"x-api-key: {WEB_KEY}", f'authorization: Bearer "{WEB_KEY}"'),
        (f"x-api-key: {WEB_KEY}", f"authorization: Bearer,{WEB_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: Bearer sk-{WEB_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: Bearer a, Bearer {WEB_KEY}"),
        (f"x-api-key: {WEB_KEY}", f"authorization: Bearer {NIGHTLY_KEY}"),
    ],
)
async def test_the_gateways_secret_never_reaches_a_provider(start: StartGateway, headers: tuple[str, ...]) -> None:
    """Also where the caller's credential is passed on, and however it is written."""
    gateway = await start(lambda url: passing_on(url, keys=KEYS))

    async with connect(gateway.url) as peer:
        await peer.exchange(post(CHAT, None, *headers))

    received = headers_received(gateway)
    assert "authorization" not in received
    assert WEB_KEY not in str(received)
    assert NIGHTLY_KEY not in str(received)


PAGES = {
    "other_site": ("origin: https://evil.example", "origin_not_allowed"),
    "sandboxed": ("origin: null", "origin_not_allowed"),
    "looks_local": ("origin: http://localhost.evil.example", "origin_not_allowed"),
    "looks_like_an_address": ("origin: http://127.0.0.1.evil.example", "origin_not_allowed"),
    "rebound_name": ("host: evil.example", "host_not_allowed"),
    "rebound_name_and_port": ("host: evil.example:8080", "host_not_allowed"),
    "rebound_odd": ("host: a#b@localhost", "host_not_allowed"),
}


@pytest.mark.parametrize("name", PAGES)
async def test_without_keys_no_web_page_can_spend_the_operators_money(start: StartGateway, name: str) -> None:
    """A page needs no permission to send a text body to this machine, so its origin and the name it used are looked at."""
    gateway = await start(lambda url: config_of(url, passthrough="main"))
    line, code = PAGES[name]

    async with connect(gateway.url) as peer:
        for request in (post(CHAT, None, "content-type: text/plain"), post("/v1/files"), get("/v1/models")):
            sent = request.replace(b"host: localhost", line.encode() if line.startswith("host") else
                                   b"host: localhost\r\n" + line.encode())  # fmt: skip
            answer = await peer.exchange(sent)
            assert (answer.status, answer.error["code"]) == (403, code)

    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "127.1.2.3:8080", "[::1]", "[::1]:80"])
async def test_without_keys_this_machine_is_served_under_each_of_its_names(gateway: Running, host: str) -> None:
    """Also a page of its own."""
    request = post(CHAT, None, f"origin: http://{host}").replace(b"host: localhost", f"host: {host}".encode())

    async with connect(gateway.url) as peer:
        assert (await peer.exchange(request)).status == 200


async def test_with_keys_origin_and_host_do_not_matter(start: StartGateway) -> None:
    """The key is what a page does not have."""
    gateway = await start(with_keys)
    lines = ("origin: https://app.example", f"authorization: Bearer {WEB_KEY}")

    async with connect(gateway.url) as peer:
        request = post(CHAT, None, *lines).replace(b"host: localhost", b"host: gateway.internal")
        assert (await peer.exchange(request)).status == 200
