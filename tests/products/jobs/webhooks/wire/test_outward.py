"""Requests to webhooks over a real socket: what is sent, what is heard, and what is never followed, waited for or read."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gateway.drivers.outward import MOST_READ_BYTES, HttpOutward, OutwardAnswer, Unreachable
from tests.receiver import receiver

HEADERS = [(b"content-type", b"application/json"), (b"webhook-id", b"msg_1")]


@pytest.fixture
async def outward() -> AsyncIterator[HttpOutward]:
    found = HttpOutward()
    yield found
    await found.aclose()


async def test_a_body_is_posted_as_it_is(outward: HttpOutward) -> None:
    """With its headers; the connection is used again."""
    async with receiver(b"HTTP/1.1 204 No Content\r\n\r\n") as there:
        answers = [await outward.post(there.url, HEADERS, b'{"a":1}', 5.0) for _ in range(3)]

    assert answers == 3 * [OutwardAnswer(204)]
    assert there.connections == 1
    first = there.requests[0]
    assert first.startswith(b"POST /hooks?t=1 HTTP/1.1\r\n")
    assert b"webhook-id: msg_1\r\n" in first
    assert first.endswith(b'\r\n\r\n{"a":1}')


async def test_a_redirect_is_an_answer_and_is_not_followed(outward: HttpOutward) -> None:
    """Not even to the same host."""
    async with receiver(b"HTTP/1.1 307 Go\r\nlocation: /else\r\ncontent-length: 0\r\n\r\n") as there:
        assert await outward.post(there.url, HEADERS, b"{}", 5.0) == OutwardAnswer(307)

    assert len(there.requests) == 1


async def test_retry_after_is_heard(outward: HttpOutward) -> None:
    """As it came."""
    async with receiver(b"HTTP/1.1 429 Slow\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n") as there:
        assert await outward.post(there.url, HEADERS, b"{}", 5.0) == OutwardAnswer(429, b"7")


async def test_a_long_answer_is_not_read(outward: HttpOutward) -> None:
    """Its status counts; the connection is closed."""
    long = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1000 * MOST_READ_BYTES) + 20 * MOST_READ_BYTES * b"x"
    async with receiver(long) as there:
        assert await outward.post(there.url, HEADERS, b"{}", 5.0) == OutwardAnswer(200)
        assert await outward.post(there.url, HEADERS, b"{}", 5.0) == OutwardAnswer(200)

    assert there.connections == 2


async def test_a_body_that_never_comes_changes_nothing(outward: HttpOutward) -> None:
    """The status was there."""
    async with receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\nab") as there:
        assert await outward.post(there.url, HEADERS, b"{}", 0.3) == OutwardAnswer(200)


@pytest.mark.parametrize("environment", ["HTTP_PROXY", "ALL_PROXY"])
async def test_no_proxy_of_the_environment_is_used(
    outward: HttpOutward, monkeypatch: pytest.MonkeyPatch, environment: str
) -> None:
    """It might answer in the endpoint's place."""
    monkeypatch.setenv(environment, "http://127.0.0.1:9")
    async with receiver(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as there:
        assert (await outward.post(there.url, HEADERS, b"{}", 5.0)).status == 200


async def test_silence_is_left_in_time(outward: HttpOutward) -> None:
    """And says how long it was."""
    async with receiver(None) as there:
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
            await outward.post(there.url, HEADERS, b"{}", 0.2)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/p4th", "http://no-such-host.invalid/p4th", "http://[::ffff/p4th"])
async def test_whoever_cannot_be_reached_is_said_without_the_path(outward: HttpOutward, url: str) -> None:
    """It may hold a secret."""
    with pytest.raises(Unreachable) as caught:
        await outward.post(url, HEADERS, b"{}", 5.0)

    assert str(caught.value)
    assert "p4th" not in str(caught.value)
