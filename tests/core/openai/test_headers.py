"""Allow-lists of headers: what is listed passes, all else stays here."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.openai.headers import (
    AllowList,
    account_headers,
    passthrough_response_headers,
    request_headers,
    response_headers,
)
from tests.rows import rows

BOUNDED = settings(deadline=None, derandomize=True)

LISTS = {"request": request_headers, "account": account_headers, "response": response_headers}

HOP_BY_HOP = (
    *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
    *(b"te", b"trailer", b"transfer-encoding", b"upgrade"),
)
OURS = (
    *(b"host", b"cookie", b"set-cookie", b"content-length", b"authorization", b"x-api-key", b"api-key"),
    *(b"accept-encoding", b"expect", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"),
    *(b"x-gateway-deadline-ms", b"x-gateway-lane", b"idempotency-key", b"x-request-id", b"date", b"server", b"via"),
    *(b"strict-transport-security", b"alt-svc", b"access-control-allow-origin", b"location", b""),
)

names = st.sampled_from([*HOP_BY_HOP, *OURS, b"accept", b"x-ratelimit-limit", b"openai-beta"]) | st.binary(max_size=12)
headers = st.lists(st.tuples(names, st.binary(max_size=4)), max_size=12)


@rows("make", LISTS.values(), ids=LISTS.keys())
@rows("name", [*HOP_BY_HOP, *OURS])
def test_what_belongs_to_one_connection_never_passes(make: type[AllowList], name: bytes) -> None:
    """Nor do credentials, cookies and lengths, in either direction; asked twice, because names are remembered."""
    allowed = make()  # type: ignore[call-arg]  # a function without arguments, called like the class it returns

    assert allowed.keep([(name, b"x")]) == []
    assert allowed.keep([(name, b"x")]) == []


@rows(
    ("allowed", "name"),
    [
        (request_headers(), b"content-type"),
        (request_headers(), b"traceparent"),
        (request_headers(), b"x-stainless-retry-count"),
        (request_headers(), b"openai-beta"),
        (account_headers(), b"openai-organization"),
        (response_headers(), b"content-type"),
        (response_headers(), b"retry-after-ms"),
        (response_headers(), b"x-ratelimit-remaining-tokens"),
        (response_headers(), b"openai-processing-ms"),
        (response_headers(), b"anthropic-ratelimit-tokens-reset"),
    ],
)
def test_what_applications_read_passes(allowed: AllowList, name: bytes) -> None:
    """By its whole name or by the start of it."""
    assert allowed.keep([(name, b"x")]) == [(name, b"x")]


def test_our_account_is_not_named_to_clients() -> None:
    """Whose organisation has paid is the operator's business."""
    named = [(b"openai-organization", b"o"), (b"openai-project", b"p"), (b"openai-version", b"v")]

    assert response_headers().keep(named) == named[2:]
    assert passthrough_response_headers().keep(named) == named[2:]


def test_an_account_is_named_only_beside_its_own_credential() -> None:
    """The ordinary list does not carry it to a provider with another key."""
    assert request_headers().keep([(b"openai-organization", b"o"), (b"openai-project", b"p")]) == []


@BOUNDED
@given(st.lists(headers, max_size=4), st.frozensets(names, max_size=4), st.frozensets(names, max_size=2))
def test_headers_keep_their_order_whatever_came_before(
    requests: list[list[tuple[bytes, bytes]]], exact: frozenset[bytes], prefixes: frozenset[bytes]
) -> None:
    """What was decided for earlier requests changes nothing."""
    allowed = AllowList(exact, tuple(prefixes))

    for sent in requests:
        kept = allowed.keep(sent)

        assert kept == [(name, value) for name, value in sent if name in exact or name.startswith(tuple(prefixes))]


def test_the_memory_of_names_is_bounded() -> None:
    """A client that invents names fills a small table, once; the decisions stay right."""
    allowed = request_headers()

    for start in range(0, 10_000, 100):
        assert allowed.keep([(b"x-%d" % number, b"") for number in range(start, start + 100)]) == []

    assert len(allowed._memo) <= 512
    assert allowed.keep([(b"x-9999", b""), (b"accept", b"a"), (b"cookie", b"c")]) == [(b"accept", b"a")]
