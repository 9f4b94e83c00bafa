"""URLs that requests name, over the wire: a real gateway behind a proxy, a receiver with TLS, and OpenAI's verifier."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
import trustme
from openai.types.webhooks import BatchCompletedWebhookEvent

from gateway.drivers import outward
from tests.e2e.batches import begin, end_of, line
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import ASYNC, NIGHTLY, WEB, ask, new_job, policies, result_of, take, with_jobs
from tests.e2e.harness import ADMIN_KEY, KEYS, PATIENCE_S, chat, get, post, until
from tests.e2e.test_webhooks import parts, telling, types
from tests.fixtures.transports import server_tls
from tests.receiver import OK, Receiver, receiver

HOST = "hooks.example.com"
URL = f"https://{HOST}:8443/in?t=s3cret"
SECRET, OTHER = bytes(range(32)), bytes(range(1, 33))
HOOK = f"x-gateway-webhook: {URL}"


def text_of(secret: bytes) -> str:
    return "whsec_" + base64.b64encode(secret).decode()


SIGNING = [{**KEYS[0], "webhook_secrets": [text_of(SECRET)]}, KEYS[1]]


@dataclass
class Proxy:
    """A proxy that leads every tunnel to one place, and remembers for whom they were asked."""

    port: int
    url: str = ""
    asked: list[bytes] = field(default_factory=list)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"HTTP/1.1 200 Go\r\n\r\n")
            await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


@dataclass
class Outside:
    """What lies behind the gateway's proxy."""

    there: Receiver
    proxy: Proxy
    settings: dict[str, Any]


@pytest.fixture
async def outside(tmp_path: Path) -> AsyncIterator[Outside]:
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    there = Receiver(OK)
    async with _listening(there.handle, ssl=server_tls(authority, HOST)) as port:
        proxy = Proxy(port)
        async with _listening(proxy.handle) as proxy_port:
            settings = {"egress_proxy": f"http://u:pr0xy@127.0.0.1:{proxy_port}", "ca_file": str(ca_file)}
            yield Outside(there, proxy, settings)


@asynccontextmanager
async def _listening(handle: Any, **options: Any) -> AsyncIterator[int]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0, **options)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_the_official_sdk_unwraps_what_a_requests_url_is_told(
    start: StartGateway, tmp_path: Path, outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a batch, a job, and a call that nobody waits for; each through the proxy, under the key's own secret."""
    place = policies(tmp_path, jobs={"allow_request_urls": True})
    gateway = await start(with_jobs(tmp_path, keys=SIGNING, policies=place, webhook_settings=outside.settings))
    async with gateway.sdk() as sdk:
        made = await begin(sdk, [line("a")], extra_headers={"x-gateway-webhook": URL})
        batch = await end_of(sdk, made.id)
    job = await take(gateway.url, new_job(webhook=URL, dedupe_key="k"))
    call = await ask(gateway.url, post("/v1/chat/completions", chat(), WEB, ASYNC, HOOK))
    plain = await take(gateway.url, new_job())
    await result_of(gateway.url, plain["id"])
    await until(lambda: len(outside.there.requests) == 3)
    conflict = await ask(gateway.url, new_job(webhook=f"{URL}2", dedupe_key="k"))

    assert conflict.status == 409
    told = {batch.id: "batch.completed", job["id"]: "job.succeeded", orjson.loads(call.body)["id"]: "job.succeeded"}
    assert types(outside.there) == told
    assert set(outside.proxy.asked) == {b"CONNECT hooks.example.com:8443 HTTP/1.1"}
    assert outside.there.requests[0].startswith(b"POST /in?t=s3cret HTTP/1.1\r\n")
    headers, body = next(parts(one) for one in outside.there.requests if batch.id.encode() in one)
    event = openai.OpenAI(api_key="unused", webhook_secret=text_of(SECRET)).webhooks.unwrap(body, headers)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert event.data.id == batch.id
    with pytest.raises(openai.InvalidWebhookSignatureError):
        openai.OpenAI(api_key="unused", webhook_secret=text_of(OTHER)).webhooks.unwrap(body, headers)
    assert "s3cret" not in caplog.text
    assert "pr0xy" not in caplog.text


async def test_no_secret_of_webhooks_is_seen_anywhere(
    start: StartGateway, tmp_path: Path, outside: Outside, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a signing secret, nor a path with its token, nor the proxy's password: in no log, also of failures, no metric,
    no page of operators, no object of callers.
    """
    caplog.set_level(logging.DEBUG)
    hooks = {"crm": {"url": f"https://{HOST}/crm?t=s3cret", "secrets": [text_of(OTHER)]}}
    place = policies(tmp_path, jobs={"allow_request_urls": True})
    sections = {"webhooks": hooks, "webhook_settings": outside.settings, "admin": {"key": ADMIN_KEY}}
    gateway = await start(with_jobs(tmp_path, keys=SIGNING, policies=place, **sections))
    outside.there.answer = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"
    job = await take(gateway.url, new_job(webhook=URL))
    await until(lambda: len(outside.there.requests) == 2)
    await until(lambda: "was not told of" in caplog.text)
    operator = f"authorization: Bearer {ADMIN_KEY}"
    pages = ["/metrics", "/admin/config", "/admin/webhooks", "/admin/targets"]
    shown = [await ask(gateway.url, get(page, operator)) for page in pages]
    shown += [await ask(gateway.url, get(path, WEB)) for path in ("/v1/jobs", f"/v1/jobs/{job['id']}")]
    heard = caplog.text + "".join(one.body.decode() for one in shown) + repr(gateway.gateway.policy)

    assert [one.status for one in shown] == 6 * [200]
    assert "(requests)" in heard
    for secret in ("s3cret", "pr0xy", text_of(SECRET)[6:], text_of(OTHER)[6:], repr(SECRET), repr(OTHER)):
        assert secret not in heard


async def test_endpoints_of_the_config_go_through_the_proxy_too(
    start: StartGateway, tmp_path: Path, outside: Outside
) -> None:
    """Plain ones as well; names are the proxy's to look up."""
    async with receiver(OK) as there:
        hooks = {"crm": telling(there)["crm"] | {"url": f"https://{HOST}/crm"}}
        gateway = await start(with_jobs(tmp_path, webhooks=hooks, webhook_settings=outside.settings))
        job = await take(gateway.url, new_job())
        await until(lambda: len(outside.there.requests) == 1)

    assert types(outside.there) == {job["id"]: "job.succeeded"}
    assert outside.proxy.asked == [b"CONNECT hooks.example.com:443 HTTP/1.1"]


async def test_a_name_that_stands_for_this_machine_is_never_connected_to(
    start: StartGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a real gateway, whatever its resolver says: the delivery has failed, and the log names no path."""
    look_up = socket.getaddrinfo

    def lying(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        return look_up("127.0.0.1" if host == HOST else host, port, *rest, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lying)
    there = Receiver(OK)
    async with _listening(there.handle) as port:
        monkeypatch.setattr(outward, "PORTS", (443, 8443, port))
        place = policies(tmp_path, jobs={"allow_request_urls": True})
        gateway = await start(with_jobs(tmp_path, keys=SIGNING, policies=place))
        await take(gateway.url, new_job(webhook=f"https://{HOST}:{port}/in?t=s3cret"))
        refused = 'gateway_webhook_deliveries_total{endpoint="(requests)",result="refused"} 1.0'
        async with asyncio.timeout(PATIENCE_S):
            while refused not in (await ask(gateway.url, get("/metrics", WEB))).body.decode():  # noqa: ASYNC110 - a poll
                await asyncio.sleep(0.05)

    assert there.connections == 0


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://hooks.example.com/", "must begin with https://"),
        ("https://127.0.0.1/", "has an address that is not public"),
        ("https://u:p@hooks.example.com/", "must not carry a user or password"),
        (7, "must be a text"),
    ],
)
async def test_a_url_that_leads_inside_is_refused_at_once(
    start: StartGateway, tmp_path: Path, url: object, why: str
) -> None:
    """Naming the field, or the header; nothing is taken."""
    place = policies(tmp_path, jobs={"allow_request_urls": True})
    gateway = await start(with_jobs(tmp_path, keys=SIGNING, policies=place))
    answers = [await ask(gateway.url, new_job(webhook=url))]
    if isinstance(url, str):
        hook = f"x-gateway-webhook: {url}"
        answers.append(await ask(gateway.url, post("/v1/chat/completions", chat(), WEB, ASYNC, hook)))
        asked = {"input_file_id": "file-x", "endpoint": "/v1/embeddings", "completion_window": "24h"}
        answers.append(await ask(gateway.url, post("/v1/batches", asked, WEB, hook)))
    for answer, name in zip(answers, ("webhook", "x-gateway-webhook", "x-gateway-webhook"), strict=False):
        error = orjson.loads(answer.body)["error"]
        assert (answer.status, error["param"]) == (400, name)
        kind = "field" if name == "webhook" else "header"
        assert f"The {kind} '{name}' {why}" in error["message"]


async def test_nobody_names_a_url_before_it_is_allowed_and_signed(start: StartGateway, tmp_path: Path) -> None:
    """Off by default; and a key without secrets would send what nobody can verify."""
    gateway = await start(with_jobs(tmp_path, keys=SIGNING))
    asked = {"input_file_id": "file-x", "endpoint": "/v1/embeddings", "completion_window": "24h"}
    off = [
        await ask(gateway.url, new_job(webhook=URL)),
        await ask(gateway.url, post("/v1/chat/completions", chat(), WEB, ASYNC, HOOK)),
        await ask(gateway.url, post("/v1/batches", asked, WEB, HOOK)),
    ]
    await gateway.stop()
    place = policies(tmp_path, jobs={"allow_request_urls": True})
    gateway = await start(with_jobs(tmp_path, keys=SIGNING, policies=place))
    unsigned = await ask(gateway.url, new_job(webhook=URL, key=NIGHTLY))

    for answer in off:
        error = orjson.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["param"]) == (400, "webhook_not_allowed", "webhook")
        assert "allow_request_urls: true in policies/jobs.yaml" in error["message"]
    error = orjson.loads(unsigned.body)["error"]
    assert (unsigned.status, error["code"]) == (400, "webhook_not_allowed")
    assert "give the key 'nightly' webhook_secrets" in error["message"]
