"""Heads of answers that are unusual, and nothing that a client may trip over."""

from __future__ import annotations

from typing import Final

import orjson
import pytest

from tests.dialects.ways import CALLERS, STREAMS, WAYS, Ways, stream_of
from tests.rows import rows
from tests.support.flow import ANSWER, JSON, SSE, Bench, Script, ScriptedUpstream, whole

TEXT: Final = (b"content-type", b"text/plain")


@rows("status", [201, 202, 206, 299])
async def test_a_good_answer_is_a_200(status: int) -> None:
    """Whatever 2xx a server or proxy says of a whole JSON, or of a stream."""
    stream = Script(status, (SSE,), STREAMS["chat"])
    bench = Bench([ScriptedUpstream(whole(ANSWER, status), stream)])

    reply, body = await bench.serve()
    assert (reply.status, body) == (200, ANSWER)
    reply, body = await bench.serve(stream=True, stream_options={"include_usage": True})
    assert (reply.status, body) == (200, b"".join(STREAMS["chat"]))


@pytest.mark.parametrize(("asked", "spoken"), [way for way in WAYS if way[0] != way[1]])
async def test_a_good_answer_is_converted(asked: str, spoken: str) -> None:
    """A 201 came through in the provider's language."""
    scripts = [stream_of(spoken, *STREAMS[spoken]) for _ in range(2)]
    scripts[1].status = 201
    bench = Ways([spoken], scripts)

    usual, odd = [await bench.serve(**bench.asking(asked)) for _ in range(2)]

    assert (odd[0].status, odd[1]) == (200, usual[1])


@rows(
    ("connection", "kept"),
    [
        ([b"keep-alive"], {b"openai-version", b"x-ratelimit-limit-requests"}),
        ([b"close, OpenAI-Version"], {b"x-ratelimit-limit-requests"}),
        ([b"x-ratelimit-limit-requests", b"openai-version"], set()),
        ([b"content-type"], {b"openai-version", b"x-ratelimit-limit-requests"}),
    ],
)
async def test_headers_of_the_providers_connection_end_here(connection: list[bytes], kept: set[bytes]) -> None:
    """`Connection` names what is meant for the next hop alone (RFC 9110, 7.6.1); how the body is read is meant for all."""
    more = [(b"openai-version", b"1"), (b"x-ratelimit-limit-requests", b"9")]
    bench = Bench([ScriptedUpstream(whole(ANSWER, 200, *more, *((b"connection", one) for one in connection)))])

    reply, _ = await bench.serve()

    assert {name for name, _ in more} & dict(reply.headers).keys() == kept
    assert JSON in reply.headers


@pytest.mark.parametrize("asked", CALLERS)
@rows("status", [400, 407, 421])
async def test_an_error_without_a_body_is_put_into_words(status: int, asked: str) -> None:
    """In the caller's language; an empty one tells an SDK nothing."""
    bench = Ways(["chat"], [Script(status, (TEXT,), [])])

    reply, body = await bench.serve(**bench.asking(asked, stream=False))

    assert (reply.status, dict(reply.headers)[b"content-type"]) == (status, b"application/json")
    assert f"status {status}" in orjson.loads(body)["error"]["message"]


async def test_a_callers_own_401_without_a_body_is_put_into_words() -> None:
    """It stays a 401."""
    bench = Bench([ScriptedUpstream(Script(401, (TEXT,), []))], accounts=[""])

    reply, body = await bench.serve(credential=b"Bearer sk-theirs")

    assert (reply.status, orjson.loads(body)["error"]["type"]) == (401, "authentication_error")


@rows(("given", "shown"), [(b"req_\x85\x9b1", b"req_1"), (b"\x85", None), (b"req_1", b"req_1")])
async def test_a_request_id_is_ascii(given: bytes, shown: bytes | None) -> None:
    """C1 ends lines in logs and terminals: it reaches neither the log nor the client."""
    bench = Bench([ScriptedUpstream(whole(ANSWER, 200, (b"request-id", given)))])

    reply, _ = await bench.serve()

    headers = dict(reply.headers)
    assert headers[b"x-request-id"] == shown or (shown is None and headers[b"x-request-id"] == b"req_1")
    assert all(value.isascii() for _, value in reply.headers)
    assert bench.account.call.attempts[-1].upstream_request_id == shown
