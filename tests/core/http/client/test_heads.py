"""Heads of answers, read at once: whatever the parser lets pass is read as the parser reads it header by header."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.http.client.exchange import split_head
from tests.core.http.client.test_http1_protocol import connect
from tests.rows import rows


class OneByOne:
    """What the parser tells of the first answer in some bytes."""

    def __init__(self, wire: bytes) -> None:
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(wire)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return

    def on_status(self, reason: bytes) -> None:
        if not self.is_complete:
            self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_complete:
            self.headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        self.is_complete = True


PIECES = st.one_of(
    st.sampled_from(
        [
            b"\r\n",
            b"\n",
            b"\r",
            b": ",
            b":",
            b" ",
            b"\t",
            b"\0",
            b"X-A",
            b"x-b: 1\r\n",
            b"\x0b",
            b"\x0c",
            b"\xa0",
            b"\xff",
        ]
    ),
    st.binary(max_size=4),
)


@example([b"X-A: 1\r\n", b"X-B:2\r\n", b"x-c :3\r\n"])
@example([b"X-A: \t  1 \t \r\n", b"X-B:\r\n"])
@example([b"X-A: a: b\r\n", b"X-B: \x85\xa0\r\n"])
@example([b"X-A: 1\r\n\r\n", b"X-B: 2\r\n"])
@given(st.lists(PIECES, max_size=12))
@pytest.mark.parametrize("before", [b"", b"\r\n", b"\n\r\n"])
def test_whatever_the_parser_accepts_is_read_as_it_reads_it(before: bytes, pieces: list[bytes]) -> None:
    """Names, values, the reason, and where the head ends; also behind the empty lines that it skips."""
    wire = before + b"HTTP/1.1 200 Fine\r\n" + b"".join(pieces) + b"\r\n\r\nbody"
    told = OneByOne(wire)
    if not told.is_complete:
        return

    line, headers, rest = split_head(wire)

    assert (line, headers) == (b"HTTP/1.1 200 " + told.reason, told.headers)
    assert wire.endswith(b"\r\n\r\n" + rest)


@pytest.mark.parametrize("between", [b"", b"\r\n", b"\n"])
@rows("cut", range(1, 90))
async def test_an_interim_answer_leaves_nothing_in_the_next_head(between: bytes, cut: int) -> None:
    """However the bytes of both are cut."""
    wire = (
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
        + between
        + b"HTTP/1.1 200 OK\r\nX-A: 1\r\ncontent-length: 2\r\n\r\nok"
    )
    connection, exchange, _, pool = connect()

    for piece in (wire[:cut], wire[cut:]):
        if piece:
            connection.data_received(piece)

    assert exchange.error is None
    assert (exchange.status, exchange.headers) == (200, [(b"x-a", b"1"), (b"content-length", b"2")])
    assert pool.told == ["release"]
