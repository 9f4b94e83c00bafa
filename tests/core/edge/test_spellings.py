"""A hot endpoint by every spelling of its URL: served in the same way, and in the order in which requests came."""

from __future__ import annotations

import orjson
import pytest

from tests.e2e.harness import Running, chat, connect, post

PLAIN = "/v1/chat/completions"
SPELLINGS = (PLAIN, "/chat/completions", f"{PLAIN}?api-version=1", "/v1/chat/%63ompletions")


@pytest.mark.parametrize("second", SPELLINGS[1:])
async def test_requests_of_both_kinds_are_answered_in_their_order(gateway: Running, second: str) -> None:
    """Pipelined: a cycle of ours before one of uvicorn's, and the other way round."""
    ids = ("one", "two", "three")
    async with connect(gateway.url) as peer:
        for path, name in zip((PLAIN, second, PLAIN), ids, strict=True):
            peer.send(post(path, None, f"x-request-id: {name}"))
        answers = [await peer.response() for _ in ids]

    assert [answer.status for answer in answers] == [200, 200, 200]
    assert [dict(answer.headers)["x-request-id"] for answer in answers] == list(ids)


@pytest.mark.parametrize("path", SPELLINGS)
async def test_a_body_in_pieces_is_one_body(gateway: Running, path: str) -> None:
    """However its pieces fall, the provider gets it as it was sent."""
    body = orjson.dumps(chat(user="x" * 200_000))
    request = post(path, body)
    async with connect(gateway.url) as peer:
        for start in range(0, len(request), 30_011):
            peer.send(request[start : start + 30_011])
            await peer.writer.drain()
        answer = await peer.response()

    assert answer.status == 200
    assert gateway.received()[-1]["body"].encode() == body
