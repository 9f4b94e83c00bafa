"""Which headers cross the gateway: allow-lists in both directions, because a header nobody thought of must not leak.

Hop-by-hop fields, `host`, cookies, lengths and encodings never pass: they belong to one connection (RFC 9110, 7.6.1).
"""

from __future__ import annotations

from gateway.ports import RawHeaders

_MEMO_LIMIT = 512


class AllowList:
    """Keeps the headers whose lower-case name is listed or starts with a listed prefix."""

    __slots__ = ("_exact", "_memo", "_prefixes")

    def __init__(self, exact: frozenset[bytes], prefixes: tuple[bytes, ...]) -> None:
        self._exact = exact
        self._prefixes = prefixes
        self._memo: dict[bytes, bool] = {}  # names repeat on every call: decide once, but never grow without bound

    def keep(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        """The allowed headers, in their order."""
        memo = self._memo
        try:
            return [header for header in headers if memo[header[0]]]
        except KeyError:
            return [header for header in headers if self._allows(header[0])]

    def _allows(self, name: bytes) -> bool:
        allowed = name in self._exact or name.startswith(self._prefixes)
        if len(self._memo) < _MEMO_LIMIT:
            self._memo[name] = allowed
        return allowed


def request_headers() -> AllowList:
    """Client to provider. Credentials and the content's length are set by the target, not passed on from here."""
    return AllowList(
        frozenset((b"content-type", b"accept", b"user-agent", b"traceparent", b"tracestate", b"x-client-request-id")),
        (b"openai-beta", b"x-stainless-", b"anthropic-beta", b"anthropic-version"),
    )


def account_headers() -> AllowList:
    """Client to provider, only beside the client's own credential: they name its account."""
    return AllowList(frozenset((b"openai-organization", b"openai-project")), ())


def response_headers() -> AllowList:
    """Provider to client."""
    return AllowList(
        frozenset(
            (
                b"content-type",
                b"content-encoding",
                b"content-disposition",
                b"cache-control",
                b"retry-after",
                b"retry-after-ms",
                b"x-should-retry",
                b"request-id",
                b"apim-request-id",
                b"x-ms-region",
                b"policy-id",
                b"deprecation",
                b"sunset",
                b"warning",
            )
        ),
        (b"openai-", b"x-ratelimit-", b"x-rate-limit-", b"anthropic-ratelimit-", b"ratelimit", b"x-ratelimitbysize-"),
    )
