"""Pass-through: which paths, with which methods, and whose word it is that comes back."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.core.request_fields import SEGMENTS
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import config_of, connect, get, post
from tests.support.raw_server import READ, RawServer

UNSHAPED = b"<html>upstream is being restarted</html>"


def with_passthrough(url: str, **sections: Any) -> dict[str, Any]:
    return config_of(url, **{"passthrough": "main", **sections})


@pytest.mark.parametrize("prefix", ["/v1", ""])
@pytest.mark.parametrize("segment", sorted(SEGMENTS - {"models"}))
async def test_what_openai_has_is_relayed_with_v1_and_without(start: StartGateway, prefix: str, segment: str) -> None:
    """A client's base URL may leave out the version."""
    async with RawServer([[READ, answer(b"200 OK", b"{}")]] * 2) as provider:
        gateway = await start(lambda _: with_passthrough(f"{provider.url}/v1"))
        async with connect(gateway.url) as peer:
            assert (await peer.exchange(get(f"{prefix}/{segment}/x-1?after=y"))).status == 200

    assert provider.requests[0].line == b"GET /v1/%b/x-1?after=y HTTP/1.1" % segment.encode()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/files"),
        ("DELETE", "/models/ft:gpt-4o:x"),
        ("GET", "/chat/completions"),
        ("POST", "/chat/completions/chatcmpl-1"),
        ("GET", "/responses/resp_1"),
        ("PATCH", "/threads/thread_1"),
    ],
)
async def test_other_methods_and_paths_are_relayed_without_v1(start: StartGateway, method: str, path: str) -> None:
    async with RawServer([[READ, answer(b"200 OK", b"{}")]]) as provider:
        gateway = await start(lambda _: with_passthrough(provider.url))
        async with connect(gateway.url) as peer:
            assert (await peer.exchange(get(path, method=method))).status == 200

    assert provider.requests[0].line == f"{method} {path} HTTP/1.1".encode()


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/responses/resp_1"), ("POST", "/responses/input_tokens"), ("POST", "/v1/responses/compact")],
)
async def test_what_a_provider_of_chat_has_not_is_told(start: StartGateway, method: str, path: str) -> None:
    """And is not asked of it; what has no model is converted or refused there, all else relayed."""

    def chat_only(url: str) -> dict[str, Any]:
        config = with_passthrough(url)
        config["providers"]["main"]["speaks"] = ["chat"]
        return config

    gateway = await start(chat_only)
    async with connect(gateway.url) as peer:
        refused = await peer.exchange(get(path, method=method))
        kept = await peer.exchange(post("/v1/responses", b'{"prompt":{"id":"pmpt_1"}}'))

    assert refused.status == 404
    assert "chat completions and no Responses" in orjson.loads(refused.body)["error"]["message"]
    assert kept.status == 400
    assert orjson.loads(kept.body)["error"]["code"] == "unsupported_by_targets"
    assert gateway.received() == []


@pytest.mark.parametrize(
    "path",
    ["/", "/v2/files", "/Files", "/filesystem", "/files%2fx", "/fil%65s", "//files", "/v1", "/admin/x", "/organization/costs",
     "/v1/organization/costs", "/v1/organ%69zation/costs", "/v1/organ%2569zation/x", "/v1/ORGANIZATION/x", "/v1/projects/p"],
)  # fmt: skip
async def test_all_else_stays_unknown(start: StartGateway, path: str) -> None:
    """What stands beside the gateway is not a provider's, and an account's administration is not everybody's."""
    gateway = await start(with_passthrough)

    async with connect(gateway.url) as peer:
        answer = await peer.exchange(get(path))

    assert (answer.status, answer.error["code"]) == (404, "not_found")
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize("path", ["/organization/costs", "/v1/organization/costs"])
async def test_the_administration_of_an_account_is_relayed_where_the_config_says_so(
    start: StartGateway, path: str
) -> None:
    async with RawServer([[READ, answer(b"200 OK", b"{}")]]) as provider:
        gateway = await start(lambda _: with_passthrough(provider.url, passthrough={"provider": "main", "admin": True}))
        async with connect(gateway.url) as peer:
            assert (await peer.exchange(get(path))).status == 200

    assert provider.requests[0].line == b"GET /organization/costs HTTP/1.1"


async def test_without_pass_through_nothing_below_the_root_is_relayed(start: StartGateway) -> None:
    gateway = await start(lambda url: config_of(url, jobs="off"))

    async with connect(gateway.url) as peer:
        listed = await peer.exchange(get("/files"))
        deleted = await peer.exchange(get("/models/x", method="DELETE"))

    assert (listed.status, listed.error["code"], deleted.status) == (404, "jobs_off", 405)


@pytest.mark.parametrize("status", [b"500 Oops", b"502 Bad", b"503 Busy", b"504 Late", b"529 Full"])
@pytest.mark.parametrize("body", [UNSHAPED, b"", b'{"detail": "no"}'])
async def test_a_providers_5xx_is_its_own_word_in_any_shape(start: StartGateway, status: bytes, body: bytes) -> None:
    """With its `Retry-After`: whether to come again is for the client to decide."""
    sent = answer(status, body, b"retry-after: 17\r\ncontent-type: text/html\r\n")
    async with RawServer([[READ, sent]]) as provider:
        gateway = await start(lambda _: with_passthrough(provider.url))
        async with connect(gateway.url) as peer:
            found = await peer.exchange(get("/v1/files"))

    assert (found.status, found.body) == (int(status[:3]), body)
    assert (found.header("retry-after"), found.header("content-type")) == ("17", "text/html")
    assert found.header("x-should-retry") is None


async def test_pages_of_other_sites_are_refused_though_they_send_no_origin(start: StartGateway) -> None:
    """Browsers send none with images, links and forms by GET; `Sec-Fetch-Site` tells all the same."""
    gateway = await start(with_passthrough)

    async with connect(gateway.url) as peer:
        for request in (get("/v1/files", "sec-fetch-site: cross-site"), get("/files", "Sec-Fetch-Site: Cross-Site ")):
            answer = await peer.exchange(request)
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed")
        own = [get("/v1/files", "sec-fetch-site: same-origin"), get("/v1/files", "sec-fetch-site: none")]
        own.append(get("/v1/files", "origin: http://localhost:3000", "sec-fetch-site: cross-site"))
        assert [(await peer.exchange(request)).status for request in own] == [200] * 3


async def test_metrics_are_not_for_pages_under_a_name_that_was_made_to_lead_here(start: StartGateway) -> None:
    """DNS rebinding: the page reads the answer as its own site's. With keys the port is open to others, too."""
    rebound = get("/metrics").replace(b"host: localhost", b"host: evil.example")
    gateway = await start(config_of)
    async with connect(gateway.url) as peer:
        refused = await peer.exchange(rebound)
        served = await peer.exchange(get("/metrics"))

    assert (refused.status, refused.error["code"], served.status) == (403, "host_not_allowed", 200)


async def test_metrics_are_served_under_any_name_where_there_are_keys(start: StartGateway) -> None:
    keys = [{"name": "web", "key": "a-key-of-sixteen-characters"}]
    gateway = await start(lambda url: config_of(url, keys=keys))

    async with connect(gateway.url) as peer:
        assert (await peer.exchange(get("/metrics").replace(b"localhost", b"gateway.prod"))).status == 200


async def test_pass_through_relays_what_a_post_to_it_carries(start: StartGateway) -> None:
    async with RawServer([[READ, answer(b"200 OK", b"{}")]]) as provider:
        gateway = await start(lambda _: with_passthrough(provider.url))
        async with connect(gateway.url) as peer:
            await peer.exchange(post("/images/edits", orjson.dumps({"a": 1})))

    assert (provider.requests[0].line, provider.requests[0].body) == (b"POST /images/edits HTTP/1.1", b'{"a":1}')


def answer(status: bytes, body: bytes, headers: bytes = b"content-type: application/json\r\n") -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body)
