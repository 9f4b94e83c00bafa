"""What crosses the gateway: only headers that are listed, in both directions; and nothing in a request steers its routing."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import PROVIDER_KEY, Running, chat, config_of, connect, get, post
from tests.support.raw_server import READ, RawServer

CHAT = "/v1/chat/completions"
NOT_FOR_PROVIDERS = {
    "cookie": "session=canary",
    "x-forwarded-for": "10.9.8.7",
    "x-forwarded-host": "canary.example",
    "x-forwarded-proto": "https",
    "x-real-ip": "10.9.8.7",
    "forwarded": "for=10.9.8.7",
    "via": "1.1 canary",
    "te": "trailers",
    "trailer": "x-canary",
    "keep-alive": "timeout=5",
    "proxy-authorization": "Basic canary",
    "proxy-connection": "keep-alive",
    "referer": "http://canary/",
    "origin": "http://localhost:3000",
    "accept-language": "canary",
    "x-gateway-lane": "interactive",
    "x-gateway-deadline-ms": "10000",
    "x-custom": "canary",
    "idempotency-key": "canary",
    "x-amz-security-token": "canary",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "vendor=canary",
    "baggage": "user=canary",
}
FOR_PROVIDERS = {
    "accept": "application/json",
    "user-agent": "app/1",
    "openai-beta": "assistants=v2",
    "x-stainless-lang": "python",
    "x-client-request-id": "mine",
}


PASSED_THROUGH = {
    "range": "bytes=0-1",
    "if-none-match": '"a"',
    "if-modified-since": "Sat, 01 Jan 2000 00:00:00 GMT",
    "if-match": '"a"',
    "idempotency-key": "mine",
}


async def test_other_endpoints_get_what_files_and_conditions_need(start: StartGateway) -> None:
    """More than calls do, and still no cookie and no address of the client."""
    gateway = await start(lambda url: config_of(url, passthrough="main"))
    sent = NOT_FOR_PROVIDERS | {"accept-language": "en"} | FOR_PROVIDERS | PASSED_THROUGH
    lines = [f"{name}: {value}" for name, value in sent.items()]

    async with connect(gateway.url) as peer:
        await peer.exchange(get("/v1/files", *lines))

    (request,) = gateway.received()
    headers = dict(request["headers"])
    assert headers.items() >= (FOR_PROVIDERS | PASSED_THROUGH).items()
    assert "canary" not in str({name: value for name, value in headers.items() if name != "authorization"})


async def test_only_listed_headers_reach_the_provider(gateway: Running) -> None:
    """Host and length are the gateway's own; cookies, hop-by-hop fields and whatever names the client stay here."""
    lines = [f"{name}: {value}" for name, value in (NOT_FOR_PROVIDERS | FOR_PROVIDERS).items()]

    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, None, *lines, "connection: x-hop", "x-hop: canary"))

    assert answer.status == 200
    (request,) = gateway.received()
    headers = dict(request["headers"])
    assert len(headers) == len(request["headers"])
    assert headers == FOR_PROVIDERS | {
        "host": gateway.emulator.url.removeprefix("http://"),
        "content-type": "application/json",
        "content-length": str(request["body_bytes"]),
        "accept-encoding": "identity",
        "authorization": f"Bearer {PROVIDER_KEY}",
    }


@pytest.mark.parametrize(
    ("kind", "is_told"), [("openai", False), ("other", False), ("vllm", True), ("ollama", True), ("tgi", True)]
)
async def test_a_callers_trace_goes_to_servers_of_the_own_house_only(
    start: StartGateway, kind: str, is_told: bool
) -> None:
    """Who else is told whose spans a call belongs to learns what it need not; pass-through is no other way."""
    trace = {name: NOT_FOR_PROVIDERS[name] for name in ("traceparent", "tracestate", "baggage")}
    lines = [f"{name}: {value}" for name, value in trace.items()]

    def config(url: str) -> dict[str, Any]:
        main = {"dialect": "openai", "base_url": url, "api_key": PROVIDER_KEY, "kind": kind}
        return config_of(url, providers={"main": main}, passthrough="main")

    gateway = await start(config)
    async with connect(gateway.url) as peer:
        await peer.exchange(post(CHAT, None, *lines))
        await peer.exchange(get("/v1/files", *lines))

    for request in gateway.received():
        told = {name: value for name, value in request["headers"] if name in trace}
        assert told == (trace if is_told else {})
    assert len(gateway.received()) == 2


@pytest.mark.parametrize(
    "name", ["request-id", "apim-request-id", "mistral-correlation-id", "inference-id", "x-ms-request-id"]
)
async def test_a_providers_id_comes_back_and_is_logged_whatever_it_is_called(start: StartGateway, name: str) -> None:
    """It is what its support asks for."""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{name}: id-7\r\ncontent-length: {len(BODY)}\r\n\r\n"
    async with RawServer([[READ, head.encode() + BODY]]) as provider:
        gateway = await start(lambda _url: config_of(f"{provider.url}/v1"))
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(post(CHAT))
        await gateway.stop()

    assert (answer.header(name), answer.header("x-request-id")) == ("id-7", "id-7")
    assert gateway.records[-1]["upstream_request_id"] == "id-7"


BODY = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{}}],"usage":null}'
FROM_PROVIDER = (
    b"content-type: application/json\r\nx-request-id: req_provider\r\nopenai-processing-ms: 7\r\n"
    b"x-ratelimit-remaining-requests: 9\r\nretry-after: 3\r\nopenai-organization: org-1\r\n"
)
NOT_FOR_CLIENTS = (
    b"set-cookie: canary=1\r\nserver: canary\r\nx-powered-by: canary\r\nkeep-alive: timeout=5\r\nvia: canary\r\n"
    b"alt-svc: canary\r\ncf-ray: canary\r\nstrict-transport-security: canary\r\nx-gateway-target: canary\r\n"
    b"location: http://canary/\r\nwww-authenticate: canary\r\naccess-control-allow-origin: canary\r\n"
)


@pytest.mark.parametrize("status", [b"200 OK", b"400 Bad Request"])
async def test_only_listed_headers_reach_the_client(start: StartGateway, status: bytes) -> None:
    """The provider's limits and ids come through; its cookies, its server and its connection do not; none occurs twice."""
    head = b"HTTP/1.1 %s\r\n%s%scontent-length: %d\r\n\r\n" % (status, FROM_PROVIDER, NOT_FOR_CLIENTS, len(BODY))
    async with RawServer([[READ, head + BODY]]) as provider:
        gateway = await start(lambda _url: config_of(f"{provider.url}/v1"))
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(post())

    names = [name for name, _ in answer.headers]
    assert len(set(names)) == len(names)
    assert b"canary" not in answer.raw
    assert answer.header("x-request-id") == "req_provider"
    assert answer.header("x-ratelimit-remaining-requests") == "9"
    assert answer.header("openai-processing-ms") == "7"
    assert answer.header("x-gateway-target") == "main/gpt-4o"
    assert answer.header("content-length") == str(len(answer.body))
    assert answer.header("date")
    assert answer.header("server") is None


@pytest.mark.parametrize("line", [b"HTTP/1.1 999 Odd", b"HTTP/1.1 600 Odd", b"HTTP/1.1 099 Odd", b"HTTP/1.1 307 Go"])
async def test_a_status_that_no_client_knows_is_no_defect(start: StartGateway, line: bytes) -> None:
    """Whatever a provider calls its answer, the client gets one of HTTP's."""
    head = line + b"\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\n\r\n{}"
    async with RawServer([[READ, head] * 4]) as provider:
        gateway = await start(lambda _url: config_of(f"{provider.url}/v1"))
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(post())

    assert answer.status == 502
    assert answer.error["code"] == "no_target_available"
    assert answer.header("x-should-retry") == "false"


FIELDS: dict[str, Any] = {
    "api_base": "{url}",
    "base_url": "{url}",
    "api_key": "sk-canary-elsewhere",
    "api_version": "1",
    "custom_llm_provider": "openai",
    "extra_headers": {"authorization": "Bearer canary"},
    "extra_body": {"api_base": "{url}"},
    "user_config": {"model_list": [{"litellm_params": {"api_base": "{url}", "api_key": "x"}}]},
    "fallbacks": [{"model": "gpt-4o", "api_base": "{url}"}],
    "metadata": {"api_base": "{url}", "deep": {"deeper": [{"base_url": "{url}"}]}},
    "provider": {"base_url": "{url}"},
    "callback_url": "{url}",
    "litellm_params": {"api_base": "{url}"},
    "targets": [{"custom_host": "{url}"}],
}
ENDPOINTS = {
    CHAT: chat(),
    "/v1/embeddings": {"model": "e", "input": "hi"},
    "/v1/responses": {"model": "gpt-4o", "input": "hi"},
    "/v1/completions": {"model": "gpt-4o", "prompt": "hi"},
    "/v1/moderations": {"model": "m", "input": "hi"},
    "/v1/images/generations": {"model": "i", "prompt": "hi"},
}


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_no_field_header_or_query_steers_where_a_call_goes(gateway: Running, path: str) -> None:
    """A listener that all of them point at never sees a connection; the fields are forwarded as they came."""
    async with RawServer([[READ]]) as elsewhere:
        fields = orjson.loads(orjson.dumps(FIELDS).replace(b"{url}", elsewhere.url.encode()))
        body = orjson.dumps(ENDPOINTS[path] | fields)
        query = f"?api_base={elsewhere.url}&base_url={elsewhere.url}&api_key=x&model=other"
        headers = [
            f"{name}: {elsewhere.url}"
            for name in ("x-api-base", "x-base-url", "api-base", "base-url", "x-portkey-custom-host", "x-target-url")
        ]
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(post(path + query, body, *headers, f"host: {elsewhere.url[7:]}"
                                              ).replace(b"host: localhost\r\n", b""))  # fmt: skip
        await asyncio.sleep(0)

        assert elsewhere.connections == 0
    assert answer.status == 200
    (request,) = gateway.received()
    assert request["body"].encode() == body
    assert request["path"] == path
    assert dict(request["headers"])["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert elsewhere.url not in str(request["headers"])
    assert "sk-canary" not in str(request["headers"])


async def test_form_fields_do_not_steer_either(gateway: Running) -> None:
    """The same in a multipart body, which is relayed byte for byte."""
    async with RawServer([[READ]]) as elsewhere:
        fields = {"model": "whisper-1", "api_base": elsewhere.url, "base_url": elsewhere.url, "api_key": "canary"}
        parts = [f'--bb\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
        body = ("".join(parts) + "--bb--\r\n").encode()
        async with connect(gateway.url) as peer:
            answer = await peer.exchange(
                post("/v1/audio/transcriptions", body, "content-type: multipart/form-data; boundary=bb")
            )

        assert elsewhere.connections == 0
    assert answer.status == 200
    assert gateway.received()[0]["body"].encode() == body
