"""Transports by provider: shared, kept over reloads, closed when nobody uses them any more."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Literal

import httpx
import pytest
import trustme

from gateway.core.http.client.transport import EmulatedTransport, Http1Transport, Pools, why_unreachable
from gateway.core.snapshot import Provider
from tests.fixtures.transports import fetch, server_tls
from tests.support.raw_server import READ, RawServer

PROVIDER = Provider("p", "openai", "http://p.test/v1")
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def no_emulator(_name: str) -> str:
    raise AssertionError("no emulator is asked for")


async def test_equal_providers_share_one_transport() -> None:
    """A reload that changes nothing keeps every connection."""
    pools = Pools(no_emulator)

    assert pools.transport(PROVIDER) is pools.transport(replace(PROVIDER))
    assert pools.transport(PROVIDER) is not pools.transport(replace(PROVIDER, api_key="other"))
    await pools.aclose()


@pytest.mark.parametrize("kind", ["http1", "httpx"])
async def test_a_retired_transport_serves_the_calls_that_came_in_before(kind: Literal["http1", "httpx"]) -> None:
    """A call keeps its policy to its end: a reload neither cuts its answer nor takes away what it may turn to late."""
    async with RawServer([[READ, OK]] * 2) as server:
        pools = Pools(no_emulator)
        transport = pools.transport(replace(PROVIDER, transport=kind))

        pools.keep_only(set(), {"early", "earlier"})
        await pools.close_retired({"early", "late"})
        response = await transport.handle_async_request(httpx.Request("GET", server.url))
        assert response.status_code == 200
        await response.aclose()
        await pools.aclose()


async def test_a_retired_transport_closes_behind_the_last_of_them() -> None:
    """Its connections do not wait for their expiry."""
    async with RawServer([[READ, OK]]) as server:
        pools = Pools(no_emulator)
        transport = pools.transport(PROVIDER)
        pools.keep_only(set(), {"early"})

        await pools.close_retired({"late"})

        with pytest.raises(httpx.ConnectError):
            await transport.handle_async_request(httpx.Request("GET", server.url))


async def test_stats_name_the_provider_and_the_state() -> None:
    """What the connections gauge shows."""
    async with RawServer([[READ, OK]]) as server:
        pools = Pools(no_emulator)
        response = await pools.transport(PROVIDER).handle_async_request(httpx.Request("GET", server.url))
        assert pools.stats() == {"p": {"active": 0, "idle": 1, "waiting": 0}}
        await response.aclose()
        await pools.aclose()


async def test_an_emulated_provider_starts_the_emulator_with_the_first_request() -> None:
    """`emulator://NAME` costs nothing until it is used; the path and the body go there unchanged."""
    async with RawServer([[READ, OK]]) as server:
        started: list[str] = []

        async def start(name: str) -> str:
            started.append(name)
            return server.url

        pools = Pools(start)
        transport = pools.transport(replace(PROVIDER, base_url="emulator://default"))
        assert isinstance(transport, EmulatedTransport)
        assert not started

        request = httpx.Request("POST", "emulator://default/chat/completions", content=b"{}")
        response = await transport.handle_async_request(request)

        assert response.status_code == 200
        assert started == ["default"]
        await response.aclose()
        await pools.aclose()


async def test_a_provider_with_its_own_authority_gets_its_own_context(tmp_path: Path) -> None:
    """`ca_file` is for that provider alone."""
    ca_file = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca_file)
    pools = Pools(no_emulator)

    own = pools.transport(replace(PROVIDER, ca_file=str(ca_file)))
    shared = pools.transport(PROVIDER)

    assert isinstance(own, Http1Transport)
    assert isinstance(shared, Http1Transport)
    assert own is not shared
    await pools.aclose()


async def test_another_content_of_the_file_is_loaded_again(tmp_path: Path) -> None:
    """An authority that was taken out is trusted no more, by calls or by sessions; the same content is loaded once."""
    first, second = trustme.CA(), trustme.CA()
    ca_file = tmp_path / "ca.pem"
    pools, contexts, transports = Pools(no_emulator), [], []
    for authority, digest in ((first, "1"), (second, "2"), (second, "2")):
        authority.cert_pem.write_to_path(ca_file)
        provider = replace(PROVIDER, base_url="https://p.test/v1", ca_file=str(ca_file), ca_digest=digest)
        contexts.append(pools.socket_tls(provider))
        transports.append(pools.transport(provider))
        pools.keep_only({provider}, set())

    serials = [context.get_ca_certs()[0]["serialNumber"] for context in contexts]
    assert serials[0] != serials[1]
    assert contexts[1] is contexts[2]
    assert transports[0] is not transports[1] is transports[2]
    await pools.aclose()


async def test_the_systems_authorities_are_loaded_for_https_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading them takes 20 ms and a megabyte or two, which a gateway in front of plain HTTP does without."""
    loaded: list[str | None] = []
    create = ssl.create_default_context

    def load(cafile: str | None) -> ssl.SSLContext:
        loaded.append(cafile)
        return create(cafile=cafile)

    monkeypatch.setattr(ssl, "create_default_context", load)
    pools = Pools(no_emulator)

    pools.transport(PROVIDER)
    assert loaded == []
    pools.transport(replace(PROVIDER, base_url="HTTPS://p.test/v1"))
    pools.transport(replace(PROVIDER, base_url="https://q.test/v1"))
    assert loaded == [None]
    await pools.aclose()


@pytest.mark.parametrize("own_authority", [False, True], ids=["the system's", "its own"])
async def test_http2_of_one_provider_does_not_reach_another(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_authority: bool
) -> None:
    """httpx asks for HTTP/2 on its own TLS context; the others go on asking for HTTP/1.1 alone."""
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca_file)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca_file))
    both = server_tls(authority, "localhost")
    both.set_alpn_protocols(["h2", "http/1.1"])
    pools = Pools(no_emulator)
    plain = pools.transport(
        replace(PROVIDER, base_url="https://p.test/v1", ca_file=str(ca_file) if own_authority else None)
    )
    http2 = pools.transport(replace(PROVIDER, transport="httpx", http2=True))

    async with RawServer([[READ, OK]], tls=server_tls(authority, "localhost")) as only_http1:
        await fetch(http2, httpx.Request("GET", f"https://localhost:{only_http1.port}"))
    async with RawServer([[READ, OK]], tls=both) as server:
        await fetch(plain, httpx.Request("GET", f"https://localhost:{server.port}"))
        assert server.protocols == ["http/1.1"]
    await pools.aclose()


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.7', 80)"), "connection refused"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "no such host"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"), "TLS failed"),
        (OSError("Multiple exceptions: [Errno 113] Connect call failed ('10.0.0.7', 80)"), "no route to host"),
        (UnicodeError("label too long"), "no connection"),
    ],
)
def test_why_a_provider_cannot_be_reached_names_no_address(cause: Exception, reason: str) -> None:
    """In words that everybody may read."""
    error = httpx.ConnectError(f"cannot connect to http://10.0.0.7: {cause}")
    error.__cause__ = cause

    assert why_unreachable(error) == reason
