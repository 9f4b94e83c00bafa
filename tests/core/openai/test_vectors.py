"""Embeddings in base64, where they were asked for and numbers came."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.openai.vectors import LARGE_BYTES, chunks_with_base64, with_base64
from gateway.dialects.endpoints import EMBEDDINGS
from tests.rows import rows
from tests.support.flow import JSON, Bench, ScriptedUpstream, whole

ASKS: Final = b'{"model":"m","input":["a","b"],"encoding_format":"base64"}'
VECTORS: Final = [[0.5, -1, 2e-3], [3, 4.25, 1e-9]]
NUMBERS: Final = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=5)


def numbers(packed: str) -> list[float]:
    """A vector as OpenAI's SDKs decode it."""
    raw = b64decode(packed, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


def answer(vectors: list[Any]) -> bytes:
    data = [{"object": "embedding", "index": at, "embedding": one} for at, one in enumerate(vectors)]
    return orjson.dumps(
        {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 2, "total_tokens": 2}}
    )


def vectors_of(body: bytes) -> list[list[float]]:
    return [numbers(one["embedding"]) for one in orjson.loads(body)["data"]]


async def pieces(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


@given(st.lists(NUMBERS, min_size=1, max_size=4), st.integers(1, 300))
async def test_numbers_are_packed_wherever_the_answer_is_cut(given_vectors: list[list[float]], size: int) -> None:
    """Each number comes out of the SDK as it went in, all else stays, and pieces make no difference."""
    body = answer(given_vectors)

    made = with_base64(body)

    assert vectors_of(made) == given_vectors
    assert b"".join([piece async for piece in chunks_with_base64(pieces(body, size))]) == made
    assert with_base64(made) == made
    whole_answer, changed = orjson.loads(body), orjson.loads(made)
    for one in (*whole_answer["data"], *changed["data"]):
        del one["embedding"]
    assert changed == whole_answer


async def test_vectors_in_base64_are_not_held() -> None:
    """They have no end of a list behind them, for which all of a long answer was held."""
    body = answer(["A" * 4000] * 50)

    lengths = [len(piece) async for piece in chunks_with_base64(pieces(body, 1000))]

    assert sum(lengths) == len(body)
    assert max(lengths) <= 1000 + len(b'"embedding"')


async def test_numbers_without_an_end_are_not_held() -> None:
    """Whatever a server sends as a vector, memory is bounded."""
    body = b'{"embedding":[' + b"1," * LARGE_BYTES

    lengths = [len(piece) async for piece in chunks_with_base64(pieces(body, 65_536))]

    assert sum(lengths) == len(body)
    assert max(lengths) <= LARGE_BYTES + 65_536


@rows("vector", [[None, 1.0], [[1.0], [2.0]], {"1": 2.0}, ["a"], "AACAPw=="])
def test_what_is_no_list_of_numbers_stays(vector: Any) -> None:
    """Nobody knows how to pack it."""
    assert with_base64(answer([vector])) == answer([vector])


@pytest.mark.parametrize("asks", [ASKS, ASKS.replace(b":", b" : ")])
async def test_base64_comes_where_it_was_asked_for(asks: bytes) -> None:
    """As the SDK for Node asks by default; what it decoded was garbage."""
    bench = Bench([ScriptedUpstream(whole(answer(VECTORS)))])

    _, body = await bench.serve(endpoint=EMBEDDINGS, path="/embeddings", body=asks)

    assert vectors_of(body) == [pytest.approx(one) for one in VECTORS]


async def test_numbers_stay_where_nobody_asks_for_base64() -> None:
    """Byte for byte."""
    bench = Bench([ScriptedUpstream(whole(answer(VECTORS)))])

    _, body = await bench.serve(endpoint=EMBEDDINGS, path="/embeddings", body=b'{"model":"m","input":"base64"}')

    assert body == answer(VECTORS)


@rows("limit", [100, 1_000_000])
async def test_a_long_answer_is_packed_too(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read whole, or as it passes: its length is then another."""
    monkeypatch.setattr("gateway.core.answers.WHOLE_LIMIT", limit)
    monkeypatch.setattr("gateway.core.answers.THREAD_BYTES", 200)
    long = answer([VECTORS[0]] * 20)
    script = whole(long, 200, (b"content-length", b"%d" % len(long)))
    script.chunks = [long[:500], long[500:]]

    reply, body = await Bench([ScriptedUpstream(script)]).serve(endpoint=EMBEDDINGS, path="/embeddings", body=ASKS)

    assert vectors_of(body) == [pytest.approx(VECTORS[0])] * 20
    assert b"content-length" not in dict(reply.headers)
    assert JSON in reply.headers


def test_what_is_packed_is_what_a_struct_says() -> None:
    """32 bits, the lowest byte first."""
    packed = orjson.loads(with_base64(answer([[1.0, 2.0]])))["data"][0]["embedding"]
    assert packed == b64encode(struct.pack("<2f", 1, 2)).decode()


@rows("said", [b'{"data":[]}', b'{"data":[],"usage":null}', b'{"usage":{},"data":[{"embedding":[1.0]}]}'])
async def test_a_usage_that_is_not_told_is_estimated_and_marked(said: bytes) -> None:
    """Clients read it without a look whether it is there."""
    bench = Bench([ScriptedUpstream(whole(said))])

    _, body = await bench.serve(endpoint=EMBEDDINGS, path="/embeddings", body=ASKS)

    usage = orjson.loads(body)["usage"]
    assert usage["estimated"] is True
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0
    assert bench.account.usage is not None
    assert (bench.account.usage.input, bench.account.usage.estimated) == (usage["prompt_tokens"], True)
