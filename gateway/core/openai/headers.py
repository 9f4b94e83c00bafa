"""The allow-lists of headers in both directions: a header that the lists do not name must not leak.

Hop-by-hop fields, `host`, cookies, lengths and encodings never pass: they belong to one connection (RFC 9110, 7.6.1).
"""

from __future__ import annotations

from gateway.core.types import RawHeaders

_MEMO_LIMIT = 512


class AllowList:
    """Keeps the headers whose lower-case name is listed or starts with a listed prefix."""

    __slots__ = ("_exact", "_memo", "_never", "_prefixes")

    def __init__(
        self, exact: frozenset[bytes], prefixes: tuple[bytes, ...], never: frozenset[bytes] = frozenset()
    ) -> None:
        """`never` are names that are dropped although a prefix allows them."""
        self._exact = exact
        self._never = never
        self._prefixes = prefixes
        self._memo: dict[bytes, bool] = {}  # names repeat on every call: decide once, but never grow without bound

    def keep(self, headers: RawHeaders) -> list[tuple[bytes, bytes]]:
        """Returns the allowed headers, in their order."""
        memo = self._memo
        kept = []
        try:
            for header in headers:  # no comprehension: up to Python 3.11 each is a function of its own, and called
                if memo[header[0]]:
                    kept.append(header)
        except KeyError:
            return [header for header in headers if self._allows(header[0])]
        return kept

    def _allows(self, name: bytes) -> bool:
        allowed = name in self._exact or (name.startswith(self._prefixes) and name not in self._never)
        if len(self._memo) < _MEMO_LIMIT:
            self._memo[name] = allowed
        return allowed


_REQUEST = frozenset(
    b"content-type accept user-agent traceparent tracestate baggage x-client-request-id anthropic-user-profile-id".split()
)
_REQUEST_PREFIXES = (b"openai-beta", b"x-stainless-", b"anthropic-beta", b"anthropic-version")
_RESPONSE = frozenset(
    b"content-type content-encoding content-disposition cache-control retry-after retry-after-ms x-should-retry request-id "
    b"apim-request-id mistral-correlation-id inference-id x-ms-request-id x-ms-client-request-id x-ms-correlation-request-id "
    b"x-ms-region policy-id deprecation sunset warning".split()
)
REQUEST_IDS = (
    b"x-request-id",
    b"request-id",
    b"apim-request-id",
    b"mistral-correlation-id",
    b"inference-id",
    b"x-ms-request-id",
    b"x-ms-correlation-request-id",
)
"""The headers with the id that a provider's support asks for; the first one present counts."""
ALL_REQUEST_IDS = frozenset(REQUEST_IDS)
_LIMIT_PREFIXES = (b"x-ratelimit", b"x-rate-limit-", b"anthropic-ratelimit-", b"ratelimit")
"""The limits of the provider's account."""


ACCOUNTS = frozenset((b"openai-organization", b"openai-project", b"anthropic-workspace-id"))
"""The headers that name a credential's account; they go upstream only with the caller's own credential."""


def request_headers() -> AllowList:
    """Returns the list from client to provider. Credentials and the content's length are set by the target instead."""
    return AllowList(_REQUEST, _REQUEST_PREFIXES)


def passthrough_request_headers() -> AllowList:
    """Returns the list from client to provider on passthrough paths: also the headers for files and conditional requests."""
    more = (
        b"range if-range if-match if-none-match if-modified-since if-unmodified-since idempotency-key accept-language"
    )
    return AllowList(_REQUEST | frozenset(more.split()), _REQUEST_PREFIXES)


def account_headers() -> AllowList:
    """Returns the list from client to provider that goes only with the client's own credential: it names its account."""
    return AllowList(ACCOUNTS, ())


def response_headers(*, limits: bool = True) -> AllowList:
    """Returns the list from provider to client, without the names of the paying account, which is the gateway's.

    `limits` False: also without the limits of that account.
    """
    return AllowList(_RESPONSE, (b"openai-", *(_LIMIT_PREFIXES if limits else ())), ACCOUNTS)


def passthrough_response_headers() -> AllowList:
    """Returns the list from provider to client on passthrough paths: also for files, redirects and conditional requests."""
    more = b"accept-ranges content-range content-language etag last-modified location x-content-type-options"
    return AllowList(_RESPONSE | frozenset(more.split()), (b"openai-", *_LIMIT_PREFIXES), ACCOUNTS)
