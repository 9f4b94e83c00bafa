"""Requests that are not what they should be below the body: framing, targets, methods, headers.

Each gets an answer in OpenAI's error shape or is served; the connection lives on only when both sides still agree where
the next request begins.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import orjson
import pytest

from gateway.core.http.connection import UNCUT_BYTES
from tests.core.edge.test_bad_bodies import survives
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, Running, chat, config_of, connect, get, post, until

CHAT = "/v1/chat/completions"
PARSED_AHEAD = UNCUT_BYTES // len(get("/healthz")) + 1
BODY = orjson.dumps(chat())


def head(*lines: str, path: str = CHAT) -> bytes:
    """The head of a request with these header lines, as they are written."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", *lines, "", ""]).encode("latin-1")


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A request with a chunked body; the chunks are as they are written."""
    return head("transfer-encoding: chunked") + b"".join(chunks) + end


GOOD_CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)
MALFORMED = {
    "34_length_and_chunked": head(f"content-length: {len(BODY)}", "transfer-encoding: chunked") + GOOD_CHUNK,
    "34_chunked_and_length": head("transfer-encoding: chunked", "content-length: 5") + GOOD_CHUNK,
    "35_chunked_not_last": head("transfer-encoding: chunked, identity") + GOOD_CHUNK,
    "35_xchunked": head("transfer-encoding: xchunked") + GOOD_CHUNK,
    "36_lengths_differ": head("content-length: 5", "content-length: 6") + b"hello",
    "36_length_with_sign": head("content-length: +5") + b"hello",
    "36_length_list": head("content-length: 5,5") + b"hello",
    "36_length_negative": head("content-length: -5") + b"hello",
    "36_length_hex": head("content-length: 0x5") + b"hello",
    "36_length_of_30_digits": head("content-length: " + "9" * 30) + b"hello",
    "37_space_before_colon": head("x-a : 1") + b"hello",
    "37_nul_in_value": head("x-a: 1\0"),
    "37_nul_in_name": head("x\0a: 1"),
    "37_bare_cr_in_value": head("x-a: 1\rx-b: 2"),
    "38_chunk_size_overflows": chunked(b"fffffffffffffffff\r\n"),
    "38_chunk_size_not_hex": chunked(b"xyz\r\n"),
    "38_chunk_without_line_end": chunked(b"5\r\nhelloX\r\n"),
    "40_tls_hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "40_authority_form": b"GET gateway:80 HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "40_connect": b"CONNECT provider:443 HTTP/1.1\r\nhost: provider:443\r\n\r\n",
    "40_no_such_method": b"FETCH /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n",
    "40_line_noise": b"hello?\r\n\r\n",
    "41_no_host": post().replace(b"host: localhost\r\n", b""),
    "42_raw_utf8_in_path": "GET /v1/m\N{ROCKET} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode(),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_http_is_answered_with_400_and_the_connection_closed(gateway: Running, name: str) -> None:
    """Nobody knows where the next request would begin, so there is none on this connection; others are served."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(MALFORMED[name])
        rest = await peer.rest()

    assert answer.status == 400
    assert answer.error["code"] == "invalid_http"
    assert answer.header("connection") == "close"
    assert rest == b""
    assert gateway.upstream_calls() == 0
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post())).status == 200
        assert b'gateway_requests_refused_total{code="invalid_http"} 1.0' in (await peer.exchange(get("/metrics"))).body
    await gateway.stop()
    refused = [one for one in gateway.records if one["event"] == "refused"]
    assert [(one["id"], one["status"]) for one in refused] == [(answer.header("x-request-id"), 400)]


async def test_a_malformed_request_behind_a_good_one_does_not_spoil_its_answer(gateway: Running) -> None:
    """The good call is answered in full; then the connection closes."""
    async with connect(gateway.url) as peer:
        peer.send(post() + b"NONSENSE\r\n\r\n")
        answer = await peer.response()
        await peer.rest()

    assert answer.status == 200
    assert orjson.loads(answer.body)["object"] == "chat.completion"
    await gateway.idle()


EITHER = {
    "36_same_length_twice": head(f"content-length: {len(BODY)}", f"content-length: {len(BODY)}") + BODY,
    "37_bare_line_feeds": post().replace(b"\r\n", b"\n"),
    "37_folded_header": post(CHAT, None, "x-request-id: a\r\n b"),
    "37_tab_before_value": post(CHAT, None, "x-a:\tb"),
    "37_header_without_name": post(CHAT, None, ": b"),
    "37_header_without_colon": post(CHAT, None, "b"),
    "37_delete_in_value": post(CHAT, None, "x-a: \x7f\x01"),
    "35_chunked_twice": head("transfer-encoding: chunked, chunked") + GOOD_CHUNK + b"0\r\n\r\n",
    "35_chunked_in_capitals": head("transfer-encoding: CHUNKED") + GOOD_CHUNK + b"0\r\n\r\n",
    "35_vertical_tab_before_chunked": head("transfer-encoding: \x0bchunked") + GOOD_CHUNK + b"0\r\n\r\n",
    "38_bad_trailer": chunked(GOOD_CHUNK, end=b"0\r\nno colon\r\n\r\n"),
    "38_bare_line_feed_in_chunk_head": chunked(GOOD_CHUNK.replace(b"\r\n", b"\n", 1)),
    "40_asterisk": get("*", method="OPTIONS"),
    "40_full_url_without_path": get("http://gateway"),
    "40_other_scheme": get("ftp://gateway/v1/models"),
    "42_space_in_path": get("/v1/models/a b"),
    "42_fragment": get("/v1/models#x"),
    "42_percent_alone": get("/v1/models/%"),
}


@pytest.mark.parametrize("name", EITHER)
async def test_questionable_http_is_served_or_refused_but_never_breaks(gateway: Running, name: str) -> None:
    """The parser's judgement; what counts is a clear answer, no smuggled second request, and the next one served."""
    async with connect(gateway.url) as peer:
        peer.send(EITHER[name])
        answer = await peer.response()
        if answer.header("connection") != "close":
            assert (await peer.exchange(get("/healthz"))).status == 200

    assert answer.status in (200, 400, 404, 405)
    if answer.status != 200:
        assert answer.error["message"]
    assert gateway.upstream_calls() <= 1
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post())).status == 200


SERVED = {
    "35_chunked": chunked(GOOD_CHUNK),
    "35_space_before_chunked": head("transfer-encoding:  chunked") + GOOD_CHUNK + b"0\r\n\r\n",
    "38_trailer": chunked(GOOD_CHUNK, end=b"0\r\nx-checksum: 1\r\n\r\n"),
    "38_chunk_extension": chunked(b"%x;a=b\r\n%s\r\n" % (len(BODY), BODY)),
    "40_absolute_form": post("http://elsewhere.example/v1/chat/completions"),
    "41_empty_host": post().replace(b"host: localhost", b"host: "),
    "41_host_ipv6": post().replace(b"host: localhost", b"host: [::1]:80"),
    "45_idempotency_key_of_255": post(CHAT, None, "idempotency-key: " + "k" * 255),
    "45_idempotency_key_quoted": post(CHAT, None, r'idempotency-key: "k \" \\"'),
    "46_request_id_of_10_kb": post(CHAT, None, "x-request-id: " + "r" * 10_000),
    "46_request_id_empty": post(CHAT, None, "x-request-id: "),
    "46_request_id_odd": post(CHAT, None, 'x-request-id: "><script>'),
    "46_request_id_not_ascii": post(CHAT, None, "x-request-id: \xff"),
    "upgrade_to_h2c": post(CHAT, None, "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AA"),
    "leading_line_breaks": b"\r\n\r\n" + post(),
}


@pytest.mark.parametrize("name", SERVED)
async def test_odd_but_unambiguous_http_is_served(gateway: Running, name: str) -> None:
    """What cannot be misread is no reason to refuse a call."""
    answer = await survives(gateway, SERVED[name])

    assert answer.status == 200
    assert answer.header("x-request-id")
    assert gateway.received()[0]["body"].encode() == BODY


@pytest.mark.parametrize("key", ["", '"', '""', "k" * 256, '"' + "k" * 256 + '"', "\xe4\xff", "a\tb", '"a', '"a\\b"'])
async def test_an_idempotency_key_that_is_none_is_refused(gateway: Running, key: str) -> None:
    """The error names the header and what it may hold; nothing is sent anywhere."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, BODY, f"idempotency-key: {key}"))
    assert answer.status == 400
    assert answer.error["code"] == "invalid_idempotency_key"
    assert answer.error["param"] == "Idempotency-Key"
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize(
    "name", ["authorization", "x-api-key", "host", "x-request-id", "idempotency-key", "content-type", "x-gateway-lane"]
)
async def test_a_header_that_must_be_unique_is_refused_when_it_occurs_twice(gateway: Running, name: str) -> None:
    """44, 45, 41: which of the two counts is a question an attacker answers differently."""
    answer = await survives(gateway, post(CHAT, None, f"{name}: a", f"{name}: b"))

    assert answer.status == 400
    assert f"'{name}'" in answer.error["message"]
    assert gateway.upstream_calls() == 2


async def test_a_request_id_is_taken_over_when_it_is_fit_and_replaced_when_not(gateway: Running) -> None:
    """46: nothing that a client sends gets into a header or a log line unless it is plain."""
    async with connect(gateway.url) as peer:
        fit = await peer.exchange(post(CHAT, None, "x-request-id: trace-1:a/b+c=@d"))
        long = await peer.exchange(post(CHAT, None, "x-request-id: " + "r" * 129))
        refused = await peer.exchange(post(CHAT, b"{", "x-request-id: mine"))
        lost = await peer.exchange(get("/nowhere", "x-request-id: mine"))

    assert fit.header("x-request-id") == fit.header("x-gateway-request-id") == "trace-1:a/b+c=@d"
    assert (long.header("x-gateway-request-id") or "").startswith("req_")
    assert refused.header("x-request-id") == "mine"
    assert lost.header("x-request-id") == "mine"


TOO_LARGE = {
    "39_header_of_100_kb": post(CHAT, None, "x-a: " + "a" * 100_000),
    "39_header_of_1_mb": post(CHAT, None, "x-a: " + "a" * 1_000_000),
    "39_headers_of_70_kb_in_all": post(CHAT, None, *[f"x-{number}: {'a' * 1000}" for number in range(70)]),
    "39_10000_headers": post(CHAT, None, *[f"x-{number}: 1" for number in range(10_000)]),
    "39_1000_short_headers": post(CHAT, None, *[f"x-{number}: 1" for number in range(1000)]),
    "39_url_of_1_mb": get("/v1/models/" + "a" * 1_000_000),
    "39_url_of_70_kb": get("/v1/models/" + "a" * 70_000),
    "44_authorization_of_1_mb": post(CHAT, None, "authorization: Bearer " + "a" * 1_000_000),
    "39_header_without_end": b"GET /v1/models HTTP/1.1\r\nx-a: " + b"a" * 400_000,
    "39_headers_behind_a_good_request": post() + get("/v1/models", "x-a: " + "a" * 1_000_000),
}


@pytest.mark.parametrize("name", TOO_LARGE)
async def test_a_head_over_the_cap_is_answered_with_431(gateway: Running, name: str) -> None:
    """However it is cut into packets: 64 KiB and 256 headers, then the connection closes."""
    async with connect(gateway.url) as peer:
        peer.send(TOO_LARGE[name])
        answer = await peer.response()
        if name == "39_headers_behind_a_good_request":
            assert answer.status == 200
            return
        await peer.rest()

    assert answer.status == 431
    assert answer.error["code"] == "headers_too_large"
    assert gateway.upstream_calls() == 0


async def test_a_head_below_the_cap_is_served_however_it_arrives(gateway: Running) -> None:
    """60 KB of headers, in one packet or in many; and a body in the same packet is not counted as head."""
    request = post(CHAT, orjson.dumps(chat(user="u" * 150_000)), "x-a: " + "a" * 60_000)
    async with connect(gateway.url) as peer:
        whole = await peer.exchange(request)
        for start in range(0, len(request), 1000):
            peer.send(request[start : start + 1000])
            await peer.writer.drain()
        cut = await peer.response()

    assert (whole.status, cut.status) == (200, 200)


async def test_http_1_0_is_answered_and_the_connection_closed(gateway: Running) -> None:
    """40: no keep-alive, whatever the client asks."""
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(post(CHAT, None, "connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert await peer.rest() == b""

    assert answer.status == 200
    assert answer.header("connection") == "close"


async def test_http_0_9_gets_an_answer_and_an_end(gateway: Running) -> None:
    """40: nobody speaks it; the connection must not hang."""
    async with connect(gateway.url) as peer:
        peer.send(b"GET /healthz\r\n\r\n")
        assert (await peer.rest()).startswith(b"HTTP/1.1 ")


@dataclass(frozen=True)
class Path:
    """A spelling of a path and what it is: with a good key, and without one."""

    path: str
    status: int
    anonymous: int
    method: str = "POST"


PATHS = [
    Path("/v1/chat/completions", 200, 401),
    Path("/chat/completions", 200, 401),
    Path("/v1/chat%2Fcompletions", 200, 401),
    Path("/v1/%63hat/completions", 200, 401),
    Path("/v1/chat/completions?api_base=http://127.0.0.1:1", 200, 401),
    Path("//v1/chat/completions", 404, 404),
    Path("/v1//chat/completions", 404, 404),
    Path("/v1/chat/completions/", 404, 404),
    Path("/V1/chat/completions", 404, 404),
    Path("/v1/Chat/Completions", 404, 404),
    Path("/v1/./chat/completions", 404, 404),
    Path("/v1/../v1/chat/completions", 404, 404),
    Path("/v1/%2e%2e/admin/config", 404, 404, "GET"),
    Path("/v1/../admin/config", 404, 404, "GET"),
    Path("/v1/chat/completions%00", 404, 404),
    Path("/v1/chat/completions%0d%0ax", 404, 404),
    Path("/v1/chat/completions%ff", 404, 404),
    Path("/admin/config/", 404, 404, "GET"),
    Path("/admin/../admin/config", 404, 404, "GET"),
    Path("/v1/models", 200, 401, "GET"),
    Path("/models", 200, 401, "GET"),
    Path("/v1/models/", 404, 401, "GET"),
    Path("/v1/models/gpt-4o", 200, 401, "GET"),
    Path("/v1/models/gpt%2D4o", 200, 401, "GET"),
    Path("/healthz", 200, 200, "GET"),
    Path("/", 404, 404, "GET"),
    Path("/v1", 404, 404, "GET"),
    Path("/v1/", 404, 404, "GET"),
    Path("/v1/files", 200, 401, "GET"),
    Path("/v1/assistants", 404, 404, "GET"),
    Path("/v1/fine_tuning/jobs", 404, 404, "GET"),
    Path("/favicon.ico", 404, 404, "GET"),
]


@pytest.mark.parametrize("case", PATHS, ids=lambda case: case.path)
async def test_each_spelling_of_a_path_is_one_endpoint_or_none(start: StartGateway, case: Path) -> None:
    """42, 52: the key is asked for exactly where something would be served, and errors have the one shape."""
    gateway = await start(lambda url: config_of(url, keys=KEYS, models={"gpt-4o": {"targets": ["main/gpt-4o"]}}))

    def request(*headers: str) -> bytes:
        return post(case.path, None, *headers) if case.method == "POST" else get(case.path, *headers)

    async with connect(gateway.url) as peer:
        anonymous = await peer.exchange(request())
        keyed = await peer.exchange(request(f"authorization: Bearer {WEB_KEY}"))

    assert (keyed.status, anonymous.status) == (case.status, case.anonymous)
    for answer in (keyed, anonymous):
        assert answer.status == 200 or answer.error["code"] in ("not_found", "model_not_found", "invalid_api_key")
        assert answer.header("x-request-id")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../admin/config",
        "/v1/%2e%2e/x",
        "/v1//files",
        "/v1/a%2fb",
        "/v1/a%00",
        "/v1/a%5cb",
        "/v1/a\\b",
        "/%76%31/x",
        "/v1%2ffiles",
        "/v1/v1/files/x",
        "/v1/%76%2531/files/x",
        "/v1/V1beta/files",
        "/v1/files;x",
        "/v1/files%3Bx/y",
        "/v1/files%3fx",
        "/v1/files%23/y",
        "/files%23",
    ],
)
async def test_a_path_that_climbs_is_not_relayed(start: StartGateway, path: str) -> None:
    """42: with pass-through on, only plain paths below /v1 reach the provider."""
    gateway = await start(lambda url: config_of(url, passthrough="main"))

    answer = await survives(gateway, get(path))

    assert answer.status == 404
    assert answer.error["code"] == "not_found"
    assert gateway.upstream_calls() == 2


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", CHAT, "POST"),
        ("DELETE", "/v1/embeddings", "POST"),
        ("PATCH", "/responses", "POST"),
        ("OPTIONS", CHAT, "POST"),
        ("HEAD", CHAT, "POST"),
        ("TRACE", CHAT, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/gpt-4o", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
        ("OPTIONS", "/v1/models", "GET, HEAD"),
    ],
)
async def test_the_wrong_method_is_answered_with_405_and_what_is_allowed(
    gateway: Running, method: str, path: str, allow: str
) -> None:
    """51: in OpenAI's shape, without a word to the provider."""
    async with connect(gateway.url) as peer:
        peer.send(get(path, method=method))
        answer = await peer.response(head=method == "HEAD")
        assert (await peer.exchange(post())).status == 200

    assert answer.status == 405
    assert answer.header("allow") == allow
    if method != "HEAD":
        assert answer.error["code"] == "method_not_allowed"
    assert gateway.upstream_calls() == 1


async def test_other_methods_of_known_paths_are_relayed_where_pass_through_is_on(start: StartGateway) -> None:
    """`GET /v1/chat/completions` is an endpoint of OpenAI's own: an application may point everything here."""
    gateway = await start(lambda url: config_of(url, passthrough="main"))

    async with connect(gateway.url) as peer:
        relayed = await peer.exchange(get(CHAT))
        listed = await peer.exchange(get("/v1/files"))

    assert relayed.status == 405
    assert relayed.error["code"] == "method_not_supported"
    assert orjson.loads(listed.body)["object"] == "list"
    assert gateway.upstream_calls() == 2


async def test_head_is_answered_like_get_without_a_body(gateway: Running) -> None:
    """And the next request on the connection is read from the right place."""
    async with connect(gateway.url) as peer:
        for path in ("/v1/models", "/healthz", "/metrics"):
            peer.send(get(path, method="HEAD"))
            assert (await peer.response(head=True)).status == 200
        assert (await peer.exchange(post())).status == 200


async def test_pipelined_requests_are_answered_in_their_order(gateway: Running) -> None:
    """47: a thousand at once, good and bad mixed, each with its own answer."""
    batch = [
        post(CHAT, orjson.dumps(chat(user=str(number)))) if number % 10 else post(CHAT, b"{") for number in range(1000)
    ]
    async with connect(gateway.url) as peer:
        peer.send(b"".join(batch))
        statuses = [(await peer.response()).status for _ in batch]

    assert statuses == [200 if number % 10 else 400 for number in range(1000)]
    assert [orjson.loads(one["body"])["user"] for one in gateway.received()][-1] == "999"


async def test_few_requests_are_parsed_ahead_of_their_turn(gateway: Running) -> None:
    """47: the thousands behind it stay bytes, and go with a client that leaves."""
    requests = get("/healthz") * 5_000
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(get("/healthz"))).status == 200
        (connection,) = gateway.connections
        connection.data_received(requests)
        assert 0 < len(connection.pipeline) <= PARSED_AHEAD
        await peer.response()
        assert len(connection.pipeline) <= PARSED_AHEAD
        peer.close()
        await until(lambda: not gateway.connections)

    assert not connection.pipeline
    assert connection._unparsed is None


@pytest.mark.parametrize("seed", range(3))
async def test_pipelined_requests_are_answered_however_their_bytes_come(gateway: Running, seed: int) -> None:
    """47: whole and chunked bodies, blank lines in bodies, between requests, and cut by the pieces."""
    draw = random.Random(seed)
    kinds = (
        get("/healthz"),
        post(CHAT, orjson.dumps(chat()) + b"\r\n\r\n" * 700),
        b"\r\n" + get("/nothing"),
        chunked(GOOD_CHUNK, end=b"0\r\na: b\r\n\r\n"),
        post(CHAT, orjson.dumps(chat(user="u" * 70_000))),
    )
    expected = (200, 200, 404, 200, 200)
    order = draw.choices(range(len(kinds)), k=40)
    sent = b"".join(kinds[number] for number in order)
    async with connect(gateway.url) as peer:
        start = 0
        while start < len(sent):
            size = draw.choice((1, 3, 100, 3_000, 300_000))
            peer.send(sent[start : start + size])
            await peer.writer.drain()
            start += size
        statuses = [(await peer.response()).status for _ in order]

    assert statuses == [expected[number] for number in order]


async def test_a_body_announced_for_later_is_awaited_after_100_continue(gateway: Running) -> None:
    """43: the client hears that it may go on, and its call is served."""
    request = post(CHAT, None, "expect: 100-continue")
    at = request.index(b"\r\n\r\n") + 4
    async with connect(gateway.url) as peer:
        first = await peer.exchange(request[:at])
        answer = await peer.exchange(request[at:])

    assert first.status == 100
    assert answer.status == 200


async def test_a_refusal_before_the_announced_body_closes_the_connection(start: StartGateway) -> None:
    """43: the client may send the body or not after a final answer, so the next request cannot be found (RFC 9110, 10.1.1)."""
    gateway = await start(lambda url: config_of(url, keys=KEYS))
    request = post(CHAT, None, "expect: 100-continue")
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(request[: request.index(b"\r\n\r\n") + 4])
        assert await peer.rest() == b""

    assert answer.status == 401
    assert answer.header("connection") == "close"


async def test_a_refusal_before_the_body_leaves_the_connection_usable(start: StartGateway) -> None:
    """The rest of the body is read and forgotten: a large prompt with a wrong key gets its 401, not a reset."""
    gateway = await start(lambda url: config_of(url, keys=KEYS))
    large = orjson.dumps(chat(user="u" * 5_000_000))
    async with connect(gateway.url) as peer:
        refused = await peer.exchange(post(CHAT, large))
        served = await peer.exchange(post(CHAT, None, f"authorization: Bearer {WEB_KEY}"))

    assert (refused.status, served.status) == (401, 200)


@pytest.mark.parametrize("offer", ["h2c", "websocket", "TLS/1.2"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_an_offer_to_upgrade_is_declined_by_serving_the_call(gateway: Running, offer: str, framing: str) -> None:
    """Some HTTP libraries offer h2c with every first request: its body, however large, is read as HTTP/1.1 (RFC 9110, 7.8)."""
    body = orjson.dumps(chat(user="u" * 500_000))
    upgrade = ("connection: Upgrade", f"upgrade: {offer}")
    request = post(CHAT, body, *upgrade)
    if framing == "chunked":
        request = head("transfer-encoding: chunked", *upgrade) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    async with connect(gateway.url) as peer:
        for start in range(0, len(request), 60_000):
            peer.send(request[start : start + 60_000])
            await peer.writer.drain()
        answer = await peer.response()
        assert await peer.rest() == b""

    assert answer.status == 200
    assert answer.header("connection") == "close"
    assert gateway.received()[0]["body"].encode() == body


async def test_an_accepted_encoding_changes_nothing(gateway: Running) -> None:
    """50: an event stream is neither compressed nor held back: the first event is here while the provider stalls."""
    gateway.script("stall;after_chunks=1")
    async with connect(gateway.url) as peer:
        peer.send(post(CHAT, orjson.dumps(chat(stream=True)), "accept-encoding: gzip, br"))
        head_bytes = await peer.reader.readuntil(b"\r\n\r\n")
        first = await peer.reader.readuntil(b"\n\n")

    assert b"content-encoding" not in head_bytes
    assert first.partition(b"\r\n")[2].startswith(b"data: {")
    assert dict(gateway.received()[0]["headers"])["accept-encoding"] == "identity"
    await gateway.idle()
