"""Where sessions go: by dialect, without a model, past targets that have none; and clients who leave before they are open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from websockets.asyncio.server import ServerConnection
from websockets.utils import accept_key

from tests.e2e.harness import KEYS, PROVIDER_KEY, connect, get, until
from tests.fixtures.sessions import StartRealtime
from tests.products.realtime.provider import created, provider
from tests.products.realtime.test_sessions import lines_of, refusal, session

HANDSHAKE = (
    "connection: Upgrade",
    "upgrade: websocket",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
    "sec-websocket-version: 13",
)


@pytest.mark.parametrize(
    ("version", "path"),
    [
        (None, "/v1/openai/v1/realtime?model=my-deployment&x=1"),
        ("2025-04-01", "/v1/openai/realtime?api-version=2025-04-01&deployment=my-deployment&x=1"),
    ],
)
async def test_azure_has_addresses_of_its_own(start: StartRealtime, version: str | None, path: str) -> None:
    """The GA one, and with `api_version` the older one; the key goes in its header."""
    async with provider() as upstream:
        azure: dict[str, Any] = {"dialect": "azure", "base_url": upstream.url, "api_key": PROVIDER_KEY}
        azure |= {} if version is None else {"api_version": version}
        models = {"gpt-realtime": {"targets": ["az/my-deployment"]}}
        gateway = await start(upstream.url, providers={"az": azure}, models=models)
        async with session(gateway, "?x=1&model=gpt-realtime") as socket:
            assert await socket.recv() == created()
    (asked,) = upstream.handshakes
    assert asked.path == path
    assert asked.headers["api-key"] == PROVIDER_KEY
    assert "authorization" not in asked.headers


async def test_a_providers_certificate_is_looked_at(start: StartRealtime, tmp_path: Path) -> None:
    """With the authorities of `ca_file` a session opens; with the system's own it does not, and the error says why."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with provider(ssl=tls) as upstream:
        secured = {"dialect": "openai", "base_url": upstream.url, "api_key": PROVIDER_KEY}
        known = {**secured, "ca_file": str(tmp_path / "ca.pem")}
        gateway = await start(
            upstream.url,
            providers={"known": known, "stranger": secured},
            models={"gpt-realtime": {"targets": ["known/x"]}, "other": {"targets": ["stranger/x"]}},
        )
        for _ in range(2):
            async with session(gateway) as socket:
                assert await socket.recv() == created()
        status, error = await refusal(session(gateway, "?model=other"))
    assert (status, error["code"]) == (502, "no_target_available")
    assert "certificate" in error["message"]


@pytest.mark.parametrize("is_secured", [False, True])
async def test_a_proxy_is_gone_through(start: StartRealtime, tmp_path: Path, *, is_secured: bool) -> None:
    """By CONNECT, with the proxy's own credential; one that refuses is a provider that cannot be reached."""
    asked: list[bytes] = []
    refuses = False

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        asked.append(head)
        if refuses:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = head.split(b" ")[1].partition(b":")
        there, onward = await asyncio.open_connection(host.decode(), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                to.write(data)
            to.close()

        await asyncio.gather(pump(reader, onward), pump(there, writer), return_exceptions=True)

    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server, provider(ssl=tls if is_secured else None) as upstream:
        port = server.sockets[0].getsockname()[1]
        behind = {
            "dialect": "openai",
            "base_url": upstream.url,
            "api_key": PROVIDER_KEY,
            "ca_file": str(tmp_path / "ca.pem"),
            "transport": "httpx",
            "proxy": f"http://user:proxy-password-1234@127.0.0.1:{port}",
        }
        gateway = await start(upstream.url, providers={"p0": behind}, models={"gpt-realtime": {"targets": ["p0/x"]}})
        async with session(gateway) as socket:
            assert await socket.recv() == created()
        refuses = True
        hurried = {"x-gateway-deadline-ms": "2500"}  # a patient session waits until it is let in
        status, error = await refusal(session(gateway, additional_headers=hurried))
        assert (status, error["code"]) == (502, "no_target_available")
        assert "proxy-password" not in str(error) + gateway.log.getvalue()
    assert asked[0].startswith(b"CONNECT 127.0.0.1:")
    assert b"Proxy-Authorization: Basic dXNlcjpwcm94eS1wYXNzd29yZC0xMjM0" in asked[0]


async def test_without_a_model_the_session_goes_where_such_calls_go(start: StartRealtime) -> None:
    """`?call_id=` names none: the passthrough provider takes it, or the entry of every name."""
    async with provider() as upstream:
        relayed = await start(upstream.url, passthrough="p0")
        async with session(relayed, "?call_id=rtc_1") as socket:
            assert await socket.recv() == created()
        named = await start(upstream.url, models={"*": {"targets": ["p0"]}})
        async with session(named, "?intent=transcription") as socket:
            assert await socket.recv() == created()
        async with session(named, "?model=gpt-any") as socket:
            assert await socket.recv() == created()
        (line,) = await lines_of(relayed)
    paths = [each.path for each in upstream.handshakes]
    assert paths == ["/v1/realtime?call_id=rtc_1", "/v1/realtime?intent=transcription", "/v1/realtime?model=gpt-any"]
    assert (line["status"], line["outcome"]) == (101, "ok")


async def test_what_a_target_does_to_bodies_is_nothing_to_sessions(start: StartRealtime) -> None:
    """`body` of its config is for requests that have one."""
    async with provider() as upstream:
        target = {"provider": "p0", "model": "gpt-realtime-2", "body": {"set": {"store": False}, "drop": ["user"]}}
        gateway = await start(upstream.url, models={"gpt-realtime": {"targets": [target]}})
        async with session(gateway) as socket:
            assert await socket.recv() == created()


async def test_a_limited_key_has_to_name_its_model(start: StartRealtime) -> None:
    """Else it could use any."""
    async with provider() as upstream:
        key = {**KEYS[0], "models": ["gpt-realtime"]}
        gateway = await start(upstream.url, keys=[key], passthrough="p0")
        status, _ = await refusal(session(gateway, "?call_id=rtc_1"))
        assert status == 403
        async with session(gateway) as socket:
            assert await socket.recv() == created()


async def test_targets_of_other_languages_have_no_sessions(start: StartRealtime) -> None:
    """They are left out; a model without any other is refused, and so are clouds' endpoints and the emulator."""
    async with provider() as upstream:
        providers = {
            "p0": {"dialect": "openai", "base_url": upstream.url, "api_key": PROVIDER_KEY},
            "claude": {"dialect": "anthropic", "base_url": "http://127.0.0.1:9", "api_key": "sk-ant-0123456789"},
            "toy": {"dialect": "openai", "base_url": "emulator://toy"},
            "cloud": {
                "dialect": "openai",
                "base_url": "http://127.0.0.1:9/openai/v1",
                "auth": {
                    "aws": "keys",
                    "access_key": "AKIA0123456789",
                    "secret_key": "q7Zk29xLw04mVb81",
                    "region": "eu-west-1",
                },
            },
        }
        models = {
            "mixed": {"targets": ["claude/x"], "fallbacks": ["real"]},
            "real": {"targets": ["p0/gpt-realtime"]},
            "foreign": {"targets": ["claude/x", "cloud/x"]},
            "toy": {"targets": ["toy/x"], "fallbacks": ["real"]},
        }
        gateway = await start(upstream.url, providers=providers, models=models)
        async with session(gateway, "?model=mixed") as socket:
            assert await socket.recv() == created()
        async with session(gateway, "?model=toy") as socket:
            assert await socket.recv() == created()
        status, error = await refusal(session(gateway, "?model=foreign"))
    assert (status, error["code"]) == (400, "unsupported_by_targets")
    assert "'claude' has the dialect anthropic" in error["message"]
    assert "'cloud' is called with a cloud's credential" in error["message"]


@asynccontextmanager
async def switching(*lines: bytes, accept: bytes | None = None) -> AsyncIterator[str]:
    """A server that switches protocols, and says these lines besides; or with another `accept` than is due."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        key = next(line for line in asked.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key:"))
        due = accept_key(key.split(b":")[1].strip().decode()).encode()
        head = [b"upgrade: websocket", b"connection: Upgrade", b"sec-websocket-accept: " + (accept or due), *lines]
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n\r\n" % b"\r\n".join(head))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


@pytest.mark.parametrize(
    ("lines", "accept"),
    [
        ((), b"AAAA"),
        ((b"sec-websocket-extensions: permessage-deflate",), None),
        ((b"sec-websocket-protocol: odd",), None),
    ],
)
async def test_an_answer_that_is_no_websocket_opens_no_session(
    start: StartRealtime, lines: tuple[bytes, ...], accept: bytes | None
) -> None:
    """A 101 with a wrong key, an extension or a subprotocol that nobody has offered: the next target is asked."""
    async with switching(*lines, accept=accept) as odd, provider() as upstream:
        gateway = await start(odd, upstream.url)
        async with session(gateway) as socket:
            assert await socket.recv() == created()


async def test_keys_in_the_query_go_to_nobody(start: StartRealtime) -> None:
    """Azure's clients in browsers put theirs there; it is for the gateway, if for anybody."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        async with session(gateway, "?api-key=sk-0123456789&model=gpt-realtime&Api%2Dkey=x&call_id=1&token=x"):
            pass
        lines = await lines_of(gateway)
    assert upstream.handshakes[0].path == "/v1/realtime?model=gpt-realtime-2&call_id=1"
    assert "sk-0123456789" not in str(lines)


async def test_who_leaves_before_the_session_is_open_leaves_nothing(start: StartRealtime) -> None:
    """The provider's side is dropped in the middle of its handshake."""
    entered, left = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        entered.set()
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        gateway = await start(f"http://127.0.0.1:{port}/v1")
        async with connect(gateway.url) as peer:
            peer.send(get("/v1/realtime?model=gpt-realtime", *HANDSHAKE, f"authorization: Bearer {KEYS[0]['key']}"))
            await entered.wait()
        async with asyncio.timeout(5):
            await left.wait()
        (line,) = await lines_of(gateway)
    assert line["outcome"] == "client_gone"


async def test_what_comes_behind_the_handshake_is_the_sessions(start: StartRealtime) -> None:
    """The provider's first frames may come in the same packet as its 101; none is lost."""

    async def chatters(socket: ServerConnection) -> None:
        for number in range(50):
            await socket.send(str(number))
        await socket.close(1000, "done")

    async with provider(chatters) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            assert [str(message) async for message in socket] == [str(number) for number in range(50)]
            assert (socket.close_code, socket.close_reason) == (1000, "done")
        await until(lambda: not gateway.sessions.open_sessions)
        assert gateway.sessions.traffic()["p0/gpt-realtime-2"] == (0, 0, 50, 0)


@pytest.mark.parametrize("missing", ["sec-websocket-key", "sec-websocket-version", "connection"])
async def test_a_broken_handshake_is_named(start: StartRealtime, missing: str) -> None:
    """400, before any provider is asked."""
    async with provider() as upstream:
        gateway = await start(upstream.url)
        lines = [line for line in HANDSHAKE if not line.startswith(missing)]
        if missing == "connection":
            lines.append("connection: keep-alive, x-upgrade")
        async with connect(gateway.url) as peer:
            peer.send(get("/v1/realtime?model=gpt-realtime", *lines, f"authorization: Bearer {KEYS[0]['key']}"))
            answer = await peer.response()
    assert (answer.status, answer.error["code"]) == (400, "invalid_handshake")
    assert upstream.handshakes == []
