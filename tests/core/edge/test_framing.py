"""What follows a head and is no body: trailers, heads of chunks, offers of other protocols, rests of refused requests.

None of it may cost memory without bound, get into the request, or be read as another one.
"""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from gateway.core.http import connection
from gateway.core.http.writing import MAX_TRAILER_BYTES, MAX_TRAILER_LINES, Trailers, TrailersTooLarge
from tests.core.edge.test_bad_http import BODY, CHAT, GOOD_CHUNK, head
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import (
    ADMIN_KEY,
    KEYS,
    WEB_KEY,
    Peer,
    Response,
    Running,
    chat,
    config_of,
    connect,
    get,
    post,
    until,
)

UNTIL_TRAILERS = head("transfer-encoding: chunked") + GOOD_CHUNK + b"0\r\n"
LINES = b"a:b\r\n" * (MAX_TRAILER_LINES + 2)
ENDLESS = {
    "lines": LINES,
    "one_line": b"x-a: " + b"a" * 5 * MAX_TRAILER_BYTES,
    "long_lines": (b"x-a: " + b"a" * 10_000 + b"\r\n") * 32,
    "one_name": b"a" * 5 * MAX_TRAILER_BYTES,
}


async def refusal(peer: Peer) -> Response:
    """The answer, and the end behind it."""
    answer = await peer.response()
    assert await peer.rest() == b""
    return answer


@pytest.mark.parametrize("piece_bytes", [500, 100_000])
@pytest.mark.parametrize("what", ENDLESS)
async def test_trailers_without_end_are_answered_with_431(gateway: Running, what: str, piece_bytes: int) -> None:
    """64 KiB and 100 lines, however they are cut; nothing reaches a provider, the one refusal is counted."""
    sent = UNTIL_TRAILERS + ENDLESS[what]
    async with connect(gateway.url) as peer:
        for start in range(0, len(sent), piece_bytes):
            peer.send(sent[start : start + piece_bytes])
            await peer.writer.drain()
        answer = await refusal(peer)

    assert answer.status == 431
    assert answer.error["code"] == "headers_too_large"
    assert answer.header("connection") == "close"
    assert gateway.upstream_calls() == 0
    await gateway.idle()
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(post())).status == 200
    await gateway.stop()
    assert [(one["event"], one["status"]) for one in gateway.records] == [("refused", 431), ("call", 200)]


async def test_trailers_within_the_bounds_are_no_part_of_the_request(gateway: Running) -> None:
    """100 lines of nearly 64 KiB are read and forgotten; what they say of keys, ids and agents reaches nobody."""
    lines = [b"user-agent: trailer\r\n", b"x-request-id: trailer\r\n", b"x-gateway-lane: nonsense\r\n"]
    lines += [b"x-a: %s\r\n" % (b"a" * 600)] * (MAX_TRAILER_LINES - len(lines))
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(UNTIL_TRAILERS + b"".join(lines) + b"\r\n")
        again = await peer.exchange(post())

    assert (answer.status, again.status) == (200, 200)
    assert answer.header("x-request-id") != "trailer"
    assert b"trailer" not in orjson.dumps(gateway.received()[0]["headers"])


@pytest.mark.parametrize("name", ["authorization: Bearer ", "x-api-key: ", "api-key: "])
async def test_a_key_in_a_trailer_opens_nothing(start: StartGateway, name: str) -> None:
    """RFC 9112, 7.1.2: a trailer is not merged into the head."""
    gateway = await start(lambda url: config_of(url, keys=KEYS))
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(UNTIL_TRAILERS + f"{name}{WEB_KEY}\r\n\r\n".encode())

    assert answer.status == 401
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize("what", ENDLESS)
async def test_trailers_behind_an_early_answer_end_the_connection(start: StartGateway, what: str) -> None:
    """The 401 has been given, so there is no second answer to the same request."""
    gateway = await start(lambda url: config_of(url, keys=KEYS))
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(UNTIL_TRAILERS)
        peer.send(ENDLESS[what])
        assert await peer.rest() == b""

    assert answer.status == 401
    await until(lambda: not gateway.connections)


@pytest.mark.parametrize("what", ENDLESS)
async def test_the_admin_port_bounds_trailers_too(start: StartGateway, what: str) -> None:
    """It is the same protocol, without a key."""
    gateway = await start(lambda url: config_of(url, admin={"listen": "127.0.0.1:0", "key": ADMIN_KEY}))
    admin = gateway.gateway._servers[1]
    async with connect(admin.url) as peer:
        peer.send(UNTIL_TRAILERS.replace(CHAT.encode(), b"/admin/config"))
        peer.send(ENDLESS[what])
        assert (await peer.rest()).count(b"HTTP/1.1 ") == 1

    await until(lambda: not admin._state.connections)


def test_trailers_keep_nothing() -> None:
    """What is counted is not held."""
    trailers = Trailers()
    for _ in range(MAX_TRAILER_LINES):
        trailers.append((b"a", b"b"))
    assert [getattr(trailers, name) for name in trailers.__slots__] == [600, MAX_TRAILER_LINES]
    with pytest.raises(TrailersTooLarge):
        trailers.append((b"a", b"b"))


async def test_the_head_of_a_chunk_is_bounded(gateway: Running) -> None:
    """Its extensions, too, mean nothing to us."""
    async with connect(gateway.url) as peer:
        peer.send(head("transfer-encoding: chunked") + b"5;a=" + b"a" * 400_000)
        answer = await refusal(peer)

    assert answer.status == 431


async def test_a_bad_body_behind_a_call_under_way_is_refused_in_its_turn(gateway: Running) -> None:
    """The first call gets its answer, then the second its refusal, then the connection closes."""
    async with connect(gateway.url) as peer:
        peer.send(post() + UNTIL_TRAILERS + LINES)
        first = await peer.response()
        second = await refusal(peer)

    assert (first.status, second.status) == (200, 431)
    assert gateway.upstream_calls() == 1


async def test_a_malformed_rest_behind_an_early_answer_gets_no_second_answer(start: StartGateway) -> None:
    """Else the client would take it for the answer to its next request."""
    gateway = await start(lambda url: config_of(url, keys=KEYS))
    async with connect(gateway.url) as peer:
        answer = await peer.exchange(head("transfer-encoding: chunked") + GOOD_CHUNK)
        peer.send(b"nonsense\r\n")
        assert await peer.rest() == b""

    assert answer.status == 401


async def test_the_rest_of_an_answered_request_is_bounded(start: StartGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bytes, and by the keep-alive in time: who has its answer and sends on for ever is cut off."""
    monkeypatch.setattr(connection, "MAX_REST_BYTES", 200_000)
    gateway = await start(lambda url: config_of(url, keys=KEYS))
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(head("transfer-encoding: chunked") + GOOD_CHUNK)).status == 401
        for _ in range(3):
            peer.send(b"%x\r\n%s\r\n" % (60_000, b"x" * 60_000))
        peer.send(b"0\r\n\r\n")
        served = await peer.exchange(post(CHAT, None, f"authorization: Bearer {WEB_KEY}"))
        assert served.status == 200

        assert (await peer.exchange(head("transfer-encoding: chunked") + GOOD_CHUNK)).status == 401
        for _ in range(4):
            peer.send(b"%x\r\n%s\r\n" % (60_000, b"x" * 60_000))
        assert await peer.rest() == b""


async def test_what_is_sent_behind_a_refusal_is_bounded(gateway: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is dropped so that the client sees its error, but not for ever."""
    monkeypatch.setattr(connection, "MAX_DROPPED_BYTES", 100_000)
    async with connect(gateway.url) as peer:
        assert (await peer.exchange(b"NONSENSE\r\n\r\n")).status == 400
        peer.send(b"x" * 200_000)
        await until(lambda: not gateway.connections)


HANDSHAKE = ("connection: Upgrade", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version: 13")


@pytest.mark.parametrize("offer", ["websocket", "WebSocket", "h2c, websocket", "websocket/13"])
@pytest.mark.parametrize("path", ["/v1/realtime/x?model=gpt-4o", "/v1/responses/x", "/v1/chat/completions", "/healthz"])
async def test_a_websocket_handshake_is_refused(start: StartGateway, path: str, offer: str) -> None:
    """There is none but at /v1/realtime and /v1/responses, and a GET would not mean the same."""
    gateway = await start(lambda url: config_of(url, passthrough="main"))
    async with connect(gateway.url) as peer:
        peer.send(get(path, *HANDSHAKE, f"upgrade: {offer}"))
        answer = await refusal(peer)

    assert answer.status == 501
    assert (answer.error["code"], answer.error["param"]) == ("websocket_not_supported", "Upgrade")
    assert answer.header("x-should-retry") == "false"
    assert gateway.upstream_calls() == 0


FIRST: dict[str, Callable[[str], bytes]] = {
    "length": lambda offer: post(CHAT, BODY, "connection: upgrade", offer),
    "chunked": lambda offer: (
        head("transfer-encoding: chunked", "connection: upgrade", offer) + GOOD_CHUNK + b"0\r\n\r\n"
    ),
    "none": lambda offer: get("/v1/models", "connection: upgrade", offer),
    "empty": lambda offer: get("/v1/models", "connection: upgrade", "content-length: 0", offer),
}


@pytest.mark.parametrize("piece_bytes", [1, 50, 100_000])
@pytest.mark.parametrize("first", FIRST)
async def test_a_request_behind_an_offer_is_not_read(gateway: Running, first: str, piece_bytes: int) -> None:
    """It could be of the other protocol; never does a byte of it get into the request that made the offer."""
    sent = FIRST[first]("upgrade: h2c") + post(CHAT, orjson.dumps(chat(user="second")))
    async with connect(gateway.url) as peer:
        for start in range(0, len(sent), piece_bytes):
            peer.send(sent[start : start + piece_bytes])
            await peer.writer.drain()
        answer = await refusal(peer)

    assert answer.status == 200
    assert [one["body"].encode() for one in gateway.received()] == ([BODY] if first in ("length", "chunked") else [])


@pytest.mark.parametrize("what", ENDLESS)
async def test_trailers_of_an_upgraded_request_are_bounded(gateway: Running, what: str) -> None:
    """Its body is read by a parser of its own."""
    offer = ("connection: upgrade", "upgrade: h2c")
    async with connect(gateway.url) as peer:
        peer.send(head("transfer-encoding: chunked", *offer) + GOOD_CHUNK + b"0\r\n" + ENDLESS[what] + b"\r\n" * 2)
        answer = await refusal(peer)

    assert answer.status == 431


@pytest.mark.parametrize("coding", ["gzip, chunked", "GZIP,chunked", "identity, chunked", "deflate , Chunked"])
@pytest.mark.parametrize("lines", [1, 2])
async def test_another_transfer_coding_is_answered_with_501(gateway: Running, coding: str, lines: int) -> None:
    """RFC 9112, 6.1: whoever does not know a coding must not take its bytes for the body."""
    first, _, second = coding.partition(",")
    headers = [coding] if lines == 1 else [first, second.strip()]
    async with connect(gateway.url) as peer:
        peer.send(head(*[f"transfer-encoding: {one}" for one in headers]) + GOOD_CHUNK + b"0\r\n\r\n")
        answer = await refusal(peer)

    assert answer.status == 501
    assert (answer.error["code"], answer.error["param"]) == ("transfer_encoding_not_supported", "Transfer-Encoding")
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /healthz HTTP/2.0\r\nhost: a\r\n\r\n",
        b"GET /healthz HTTP/3.0\r\nhost: a\r\n\r\n",
        post().replace(b"HTTP/1.1", b"HTTP/2.0"),
    ],
)
async def test_another_version_is_answered_with_505(gateway: Running, request_bytes: bytes) -> None:
    """RFC 9110, 15.6.6; also where the parser would take it."""
    async with connect(gateway.url) as peer:
        peer.send(request_bytes)
        answer = await refusal(peer)

    assert answer.status == 505
    assert answer.error["code"] == "http_version_not_supported"
    assert gateway.upstream_calls() == 0


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET /healthz\r\n"],
        [b"GET /healthz\n"],
        [b"GET /hea", b"lthz", b"\r", b"\n"],
        [b"GET /healthz\r\n\r\n"],
        [b"GET /healthz\r\nhost: a\r\n\r\n"],
        [b"GET /healthz HTTP/0.9\r\nhost: a\r\n\r\n"],
        [b"POST /v1/chat/completions\r\ncontent-length: 5\r\n\r\nhello"],
    ],
)
async def test_http_0_9_is_refused_at_its_line_end(gateway: Running, pieces: list[bytes]) -> None:
    """Its request is one line: waiting for headers would leave its client waiting until the head's time is over."""
    async with connect(gateway.url) as peer:
        for piece in pieces:
            peer.send(piece)
            await peer.writer.drain()
        answer = await refusal(peer)

    assert answer.status == 400
    assert answer.error["code"] == "invalid_http"


async def test_a_request_line_in_pieces_is_not_taken_for_http_0_9(gateway: Running) -> None:
    """Byte by byte, behind blank lines, twice on one connection."""
    async with connect(gateway.url) as peer:
        for _ in range(2):
            for byte in b"\r\n" + post():
                peer.send(bytes([byte]))
                await peer.writer.drain()
            assert (await peer.response()).status == 200
