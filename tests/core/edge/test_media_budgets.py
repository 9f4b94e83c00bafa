"""Keys with budgets and endpoints whose unit is not the token: speech, transcriptions, pictures."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import KEYS, WEB_KEY, Running, config_of, connect, post
from tests.support.raw_server import CLOSE, READ, RawServer

SECRET = f"authorization: Bearer {WEB_KEY}"
BUDGET_USD = 5.0
A_DOLLAR = {"input_usd_per_million": 1e6, "output_usd_per_million": 1e6}
"""Of a token."""
CALLS = 8
SPEECH, TRANSCRIPTIONS, IMAGES = "/v1/audio/speech", "/v1/audio/transcriptions", "/v1/images/generations"


def wav(seconds: int, bytes_per_s: int = 100) -> bytes:
    """A sound file whose head tells how long it is."""
    head = struct.pack(
        "<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, bytes_per_s, bytes_per_s, 1, 8, b"data", seconds * bytes_per_s
    )
    return (
        b"RIFF"
        + struct.pack("<I", 4 + len(head) + seconds * bytes_per_s)
        + b"WAVE"
        + head
        + bytes(seconds * bytes_per_s)
    )


def form(sound: bytes, **fields: str) -> tuple[bytes, str]:
    parts = [
        b'--bb\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (k.encode(), v.encode())
        for k, v in fields.items()
    ]
    file = b'--bb\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\n%b\r\n--bb--\r\n' % sound
    return b"".join(parts) + file, "content-type: multipart/form-data; boundary=bb"


def json(**fields: Any) -> tuple[bytes, str]:
    return orjson.dumps(fields), "content-type: application/json"


def event(value: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (value["type"].encode(), orjson.dumps(value))


TOKENS = {"type": "tokens", "input_tokens": 14, "output_tokens": 45, "total_tokens": 59}
TOLD = {**TOKENS, "input_token_details": {"text_tokens": 0, "audio_tokens": 14}}
SPOKEN = {"input_tokens": 14, "output_tokens": 101, "total_tokens": 115}
DRAWN = {
    "input_tokens": 8,
    "input_tokens_details": {"text_tokens": 8, "image_tokens": 0},
    "output_tokens": 272,
    "total_tokens": 280,
}
DONE = event({"type": "transcript.text.done", "text": "hello", "usage": TOLD})
MP3, TEXT, EVENTS, OBJECT = b"audio/mpeg", b"text/plain", b"text/event-stream", b"application/json"
Kind = tuple[str, tuple[bytes, str], bytes, bytes]
"""Path, request, and what the provider answers: its type and its body."""
KINDS: dict[str, Kind] = {
    "gpt-4o-transcribe": (
        TRANSCRIPTIONS,
        form(wav(2), model="m"),
        OBJECT,
        orjson.dumps({"text": "hello", "usage": TOLD}),
    ),
    "gpt-4o-transcribe as text": (TRANSCRIPTIONS, form(wav(2), model="m", response_format="text"), TEXT, b"hello\n"),
    "gpt-4o-transcribe as stream": (
        TRANSCRIPTIONS,
        form(wav(2), model="m", stream="true"),
        EVENTS,
        event({"type": "transcript.text.delta", "delta": "hello"}) + DONE,
    ),
    "whisper-1 of an hour": (
        TRANSCRIPTIONS,
        form(wav(3600), model="m"),
        OBJECT,
        orjson.dumps({"text": "hello", "usage": {"type": "duration", "seconds": 3600}}),
    ),
    "tts-1": (SPEECH, json(model="m", input="x" * 3000, voice="alloy"), MP3, b"\xff\xfb" * 3000),
    "gpt-4o-mini-tts": (
        SPEECH,
        json(model="m", input="x" * 70, voice="alloy", stream_format="sse"),
        EVENTS,
        event({"type": "speech.audio.delta", "audio": "AAAA"}) + event({"type": "speech.audio.done", "usage": SPOKEN}),
    ),
    "dall-e-3": (
        IMAGES,
        json(model="m", prompt="a cat", size="1024x1024"),
        OBJECT,
        orjson.dumps({"created": 1, "data": [{"url": "https://x/1.png"}]}),
    ),
    "gpt-image-1 as stream": (
        IMAGES,
        json(model="m", prompt="a cat", size="1024x1024", quality="low", stream=True, partial_images=1),
        EVENTS,
        event({"type": "image_generation.partial_image", "partial_image_index": 0, "b64_json": "A" * 200_000})
        + event({"type": "image_generation.completed", "b64_json": "A" * 2_000_000, "usage": DRAWN}),
    ),
    "gpt-image-1": (
        IMAGES,
        json(model="m", prompt="a cat", size="1024x1024", quality="low"),
        OBJECT,
        orjson.dumps({
            "created": 1,
            "data": [{"b64_json": "AAAA"}],
            "usage": DRAWN,
        }),
    ),
}  # fmt: skip


@asynccontextmanager
async def serving(
    start: StartGateway, kind: Kind, price: Any, *, model: str = "odd", body: Any = None, **key: Any
) -> AsyncIterator[Running]:
    """A gateway whose only model is at a provider that answers like this; its key has a budget. `price` None: by the list.

    `body` is what the target changes in requests.
    """
    _, _, content_type, answer = kind
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (content_type, len(answer))
    async with RawServer([[READ, head + answer] * CALLS]) as provider:
        web = {**KEYS[0], "budget_usd_per_day": BUDGET_USD, **key}
        target = {"provider": "main", "model": model, **({} if price is None else {"price": price})}
        target |= {} if body is None else {"body": body}
        models = {"m": {"targets": [target]}}
        yield await start(lambda _: config_of(provider.url, keys=[web], models=models))


async def trial(running: Running, kind: Kind, calls: int = CALLS) -> tuple[list[str], list[dict[str, Any]]]:
    """So many calls, one behind the other: what became of each, and the lines of the log."""
    ends = []
    path, (body, content_type), *_ = kind
    for _ in range(calls):
        async with connect(running.url) as peer:
            response = await peer.exchange(post(path, body, SECRET, content_type))
        ends.append("served" if response.status == 200 else response.error["code"])
    await running.idle()
    await running.stop()
    return ends, [record for record in running.records if record["event"] == "call"]


@pytest.mark.parametrize("name", KINDS)
async def test_a_key_spends_its_budget_at_most(start: StartGateway, name: str) -> None:
    async with serving(start, KINDS[name], A_DOLLAR) as running:
        ends, records = await trial(running, KINDS[name])

    assert ends[-1] == "budget_exceeded", ends
    assert sum(record["cost_usd"] or 0.0 for record in records) <= 1.05 * BUDGET_USD


CENTS = {"input_usd_per_million": 10_000.0, "output_usd_per_million": 10_000.0}
"""One for each token."""


@pytest.mark.parametrize(
    ("name", "tokens", "served"),
    [
        ("gpt-4o-transcribe", 59, 8),
        ("gpt-4o-transcribe as stream", 59, 8),
        ("gpt-4o-mini-tts", 115, 4),
        ("gpt-image-1", 280, 1),
    ],
)
async def test_a_call_costs_what_its_provider_reports(start: StartGateway, name: str, tokens: int, served: int) -> None:
    """Until what is left may be too little for one more."""
    async with serving(start, KINDS[name], CENTS) as running:
        ends, records = await trial(running, KINDS[name])

    assert ends == ["served"] * served + ["budget_exceeded"] * (CALLS - served)
    told = [(record["cost_usd"], record["usage_estimated"]) for record in records[:served]]
    assert told == [(pytest.approx(tokens * 0.01), False)] * served


@pytest.mark.parametrize("name", ["whisper-1 of an hour", "tts-1", "dall-e-3", "gpt-4o-mini-tts"])
async def test_without_a_price_a_budget_cannot_hold(start: StartGateway, name: str) -> None:
    """So such calls are refused, unless the key may have them."""
    for may, end in ((False, "unpriced_endpoint"), (True, "served")):
        async with serving(start, KINDS[name], None, allow_unpriced=may) as running:
            ends, records = await trial(running, KINDS[name], 1)
        assert ends == [end]
        assert [record["cost_usd"] for record in records] == [None]


@pytest.mark.parametrize(
    ("name", "model", "price", "usd"),
    [
        ("whisper-1 of an hour", "whisper-1", None, 0.36),
        ("whisper-1 of an hour", "odd", {"audio_usd_per_hour": 0.5}, 0.5),
        ("tts-1", "tts-1", None, 0.045),
        ("tts-1", "odd", {"character_usd_per_million": 100.0}, 0.3),
        ("gpt-4o-transcribe", "gpt-4o-transcribe", None, (14 * 6 + 45 * 10) / 1e6),
        ("gpt-4o-transcribe as stream", "gpt-4o-transcribe", None, (14 * 6 + 45 * 10) / 1e6),
        ("gpt-4o-transcribe as text", "whisper-1", None, 2 * 0.36 / 3600),
        ("gpt-4o-mini-tts", "gpt-4o-mini-tts", None, (14 * 0.6 + 101 * 12) / 1e6),
        ("gpt-image-1", "gpt-image-1.5", None, (8 * 5 + 272 * 32) / 1e6),
        ("gpt-image-1 as stream", "gpt-image-1.5", None, (8 * 5 + 272 * 32) / 1e6),
        ("dall-e-3", "odd", {"image_usd": 0.04}, 0.04),
    ],
)
async def test_each_unit_has_its_price(
    start: StartGateway, name: str, model: str, price: dict[str, float] | None, usd: float
) -> None:
    """Of the price list or of the target; nothing of that is an estimate."""
    async with serving(start, KINDS[name], price, model=model) as running:
        ends, (record,) = await trial(running, KINDS[name], 1)

    assert ends == ["served"]
    assert (record["cost_usd"], record["usage_estimated"]) == (pytest.approx(usd), False)
    quantities = [record.get(name) for name in ("characters", "audio_s", "images")]
    assert quantities == {SPEECH: [len_of(name), None, None], IMAGES: [None, None, 1]}.get(
        KINDS[name][0], [None, 3600.0 if "hour" in name else 2.0, None]
    )


def len_of(name: str) -> int:
    """Characters that a request for speech has spoken."""
    body, _ = KINDS[name][1]
    return len(orjson.loads(body)["input"]) if KINDS[name][0] == SPEECH else 0


async def test_what_the_target_asks_for_is_what_counts(start: StartGateway) -> None:
    """Its config changes the request."""
    kind = KINDS["dall-e-3"]
    async with serving(start, kind, {"image_usd": 0.04}, body={"set": {"n": 3}}) as running:
        _, (record,) = await trial(running, kind, 1)

    assert record["cost_usd"] == pytest.approx(0.12)


async def test_a_text_too_large_to_be_read_again_counts_by_its_bytes(start: StartGateway) -> None:
    path, _, content_type, answer = KINDS["tts-1"]
    kind = path, json(model="m", input="x" * 300_000, voice="alloy"), content_type, answer
    async with serving(start, kind, {"character_usd_per_million": 1.0}) as running:
        _, (record,) = await trial(running, kind, 1)

    assert record["cost_usd"] == pytest.approx(0.3, rel=0.001)


async def test_a_transcription_that_breaks_off_is_reckoned_with_as_a_whole(start: StartGateway) -> None:
    """The provider has heard all of it, whoever leaves: two seconds are 20 tokens of sound, and 7 of text."""
    path, request, content_type, _ = KINDS["gpt-4o-transcribe as text"]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: 999\r\n\r\n" % content_type
    async with RawServer([[READ, head + b"hel", CLOSE]]) as provider:
        target = {"provider": "main", "model": "odd", "price": CENTS}
        running = await start(lambda _: config_of(provider.url, keys=KEYS, models={"m": {"targets": [target]}}))
        async with connect(running.url) as peer:
            peer.send(post(path, request[0], SECRET, request[1]))
            await peer.reader.read()
        await running.idle()
        await running.stop()

    (record,) = (record for record in running.records if record["event"] == "call")
    assert (record["input_tokens"], record["output_tokens"], record["usage_estimated"]) == (20, 7, True)
    assert record["cost_usd"] == pytest.approx(0.27)


async def test_calls_at_once_spend_the_budget_at_most(start: StartGateway) -> None:
    """Each costs $0.3, which is known before it is sent."""
    path, (body, content_type), *_ = kind = KINDS["tts-1"]
    async with serving(start, kind, {"character_usd_per_million": 100.0}) as running:

        async def ask() -> str:
            async with connect(running.url) as peer:
                response = await peer.exchange(post(path, body, SECRET, content_type))
            return "served" if response.status == 200 else str(response.error["code"])

        ends = Counter(await asyncio.gather(*(ask() for _ in range(20))))

    assert ends["served"] == 16
    assert set(ends) <= {"served", "budget_reserved", "budget_exceeded"}
