"""Transports by provider: equal providers share one, a reload that changes nothing keeps every connection.

A transport that no provider uses any more is closed once every call has ended that came in before: a call keeps its policy
to its end, and may turn to any target of it late. Policies are compiled in a thread, so the tables are only ever iterated as
copies.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Set
from dataclasses import asdict, replace
from typing import Final

import httpx

from gateway.core.http.client.connection import LoopTurns
from gateway.core.http.client.transport import Http1Transport, HttpxTransport
from gateway.core.snapshot import Provider
from gateway.core.types import EMULATOR

# Certificates that a provider shows and TLS does not take: what is wrong with them, and who can mend it.
#
# Nothing was sent then, and nothing will be until somebody renews a certificate or corrects the config.


_EXPIRED, _NOT_YET_VALID, _WRONG_NAME, _WRONG_ADDRESS = 10, 9, 62, 64
_SELF_SIGNED = frozenset((18, 19))
_UNKNOWN_AUTHORITY = frozenset((2, 20, 21, 27))
"""OpenSSL's X509_V_ERR_ numbers (x509_vfy.h): they are the same in every version, its words are not."""


def certificate_error(error: BaseException) -> ssl.SSLCertVerificationError | None:
    """The refused certificate that an error comes from, however often it was wrapped; None: it is about something else."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__  # httpcore raises again `from None`
    return cause


def explain(error: ssl.SSLCertVerificationError, provider: str) -> tuple[str, str]:
    """What is wrong, fit for everybody; and the remedy, for the operator."""
    code = error.verify_code
    there = f"providers.{provider}"
    if code == _EXPIRED:
        return "its TLS certificate has expired", "it has to be renewed there"
    if code == _NOT_YET_VALID:
        return "its TLS certificate is not valid yet", "is the clock of this machine right?"
    if code in (_WRONG_NAME, _WRONG_ADDRESS):
        return "its TLS certificate is for another name", f"correct {there}.base_url, or the certificate there"
    if code in _SELF_SIGNED or code in _UNKNOWN_AUTHORITY:
        return "its TLS certificate is of an unknown authority", f"name the authority's certificate in {there}.ca_file"
    reason = str(error.verify_message or error.reason or "certificate verify failed")[:100]
    return f"its TLS certificate is not accepted: {reason}", f"see {there}.ca_file and {there}.base_url"


_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")


def why_unreachable(error: BaseException) -> str:
    """Returns why no connection came about, in words that hold no address."""
    cause = error.__cause__ or error
    if isinstance(cause, socket.gaierror):
        return "no such host"
    if isinstance(cause, ssl.SSLError):
        reason = getattr(cause, "reason", None)  # set by OpenSSL's own errors alone
        return f"TLS failed: {reason.lower().replace('_', ' ')}" if reason else "TLS failed"
    number = _ERRNO.search(str(cause))  # of several addresses, asyncio raises one error with the words of all
    return os.strerror(int(number[1])).lower() if number else "no connection"


StartEmulator = Callable[[str], Awaitable[str]]
"""Starts the emulator of that name inside the process, once, and returns its base URL."""


class EmulatedTransport(httpx.AsyncBaseTransport):
    """`emulator://NAME`: starts the emulator with the first request and sends everything there."""

    def __init__(self, name: str, start: StartEmulator, turns: LoopTurns) -> None:
        self._name = name
        self._start = start
        self.inner = Http1Transport(turns=turns)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As any transport; the origin is the emulator's, the path stays."""
        origin = httpx.URL(await self._start(self._name))
        url = request.url.copy_with(scheme=origin.scheme, host=origin.host, port=origin.port)
        headers = httpx.Headers([*request.headers.raw])
        headers["host"] = origin.netloc.decode()
        moved = httpx.Request(
            request.method, url, headers=headers, stream=request.stream, extensions=request.extensions
        )
        return await self.inner.handle_async_request(moved)

    async def aclose(self) -> None:
        """Close its connections; the emulator itself belongs to the application."""
        await self.inner.aclose()


class Pools:
    """All transports of the process."""

    def __init__(self, start_emulator: StartEmulator) -> None:
        self._start_emulator = start_emulator
        self._turns = LoopTurns()
        self._by_provider: dict[Provider, httpx.AsyncBaseTransport] = {}
        self._retired: dict[httpx.AsyncBaseTransport, Set[object]] = {}  # with the calls that may still use it
        self._default_tls: ssl.SSLContext | None = None
        self._tls_of_file: dict[tuple[str, str | None], ssl.SSLContext] = {}

    def transport(self, provider: Provider) -> httpx.AsyncBaseTransport:
        """The transport for this provider, made at its first use."""
        found = self._by_provider.get(provider)
        if found is None:
            found = self._by_provider[provider] = self._build(provider)
        return found

    def keep_only(self, providers: set[Provider], calls: Set[object]) -> None:
        """Retire the transports that none of these providers uses; `calls` are those being served now."""
        for provider in [one for one in self._by_provider if one not in providers]:
            self._retired[self._by_provider.pop(provider)] = calls
        used = {(one.ca_file, one.ca_digest) for one in providers}
        self._tls_of_file = {content: tls for content, tls in self._tls_of_file.items() if content in used}

    async def close_retired(self, calls: Set[object]) -> None:
        """Close retired transports that none of `calls`, those being served now, can use; called about once a second."""
        for transport in [one for one, users in list(self._retired.items()) if users.isdisjoint(calls)]:
            del self._retired[transport]
            await transport.aclose()

    def stats(self) -> dict[str, dict[str, int]]:
        """Connections by provider and state (`active`, `idle`, `waiting`), where the transport can tell."""
        return {
            provider.name: asdict(ours.stats())
            for provider, transport in list(self._by_provider.items())
            if isinstance(ours := getattr(transport, "inner", transport), Http1Transport)
        }

    async def aclose(self) -> None:
        """Close everything, answers being read included."""
        for transport in [*self._by_provider.values(), *self._retired.keys()]:
            await transport.aclose()
        self._by_provider.clear()
        self._retired.clear()

    def _build(self, provider: Provider) -> httpx.AsyncBaseTransport:
        if provider.base_url.startswith(EMULATOR):
            return EmulatedTransport(httpx.URL(provider.base_url).host, self._start_emulator, self._turns)
        if provider.transport == "httpx":
            return HttpxTransport(
                ssl_context=self._tls(provider),
                max_connections=provider.max_connections,
                idle_expiry_s=provider.idle_expiry_s,
                http2=provider.http2,
                proxy=provider.proxy,
            )
        needs_tls = httpx.URL(provider.base_url).scheme == "https" or provider.ca_file is not None
        return Http1Transport(
            ssl_context=self._tls(provider) if needs_tls else None,
            max_connections=provider.max_connections,
            idle_expiry_s=provider.idle_expiry_s,
            turns=self._turns,
        )

    def socket_tls(self, provider: Provider) -> ssl.SSLContext:
        """Returns the context for connections that are in no pool; each content of a file of authorities is loaded once."""
        if provider.ca_file is None:
            return self._tls(replace(provider, transport="http1"))
        content = (provider.ca_file, provider.ca_digest)
        known = self._tls_of_file.get(content)
        if known is None:
            known = self._tls_of_file[content] = self._tls(provider)
        return known

    def _tls(self, provider: Provider) -> ssl.SSLContext:
        """Loading the system's authorities takes time and memory: providers without their own share one context.

        The httpx transport gets one to itself, because it sets the protocols of each connection on the context.
        """
        is_shared = provider.ca_file is None and provider.transport == "http1"
        if is_shared and self._default_tls is not None:
            return self._default_tls
        context = ssl.create_default_context(cafile=provider.ca_file)
        context.set_alpn_protocols(["http/1.1"])
        if is_shared:
            self._default_tls = context
        return context
