"""What a session's transcriptions cost: another model makes them, at prices of its own."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection

from gateway.core.types import Usage, UsageParts
from gateway.products.realtime.rules import is_read, read_event
from tests.e2e.harness import KEYS
from tests.fixtures.sessions import StartRealtime
from tests.products.realtime.provider import provider
from tests.products.realtime.test_sessions import close_of, lines_of, session

TOKENS = {"type": "tokens", "total_tokens": 22, "input_tokens": 13, "output_tokens": 9}
TOLD = {**TOKENS, "input_token_details": {"text_tokens": 0, "audio_tokens": 13}}
MINUTE = {"type": "duration", "seconds": 60}
GA: dict[str, Any] = {"type": "realtime", "audio": {"input": {"transcription": {"model": "whisper-1"}}}}


def about(session: Any, kind: str = "session.updated") -> str:
    return orjson.dumps({"type": kind, "event_id": "e", "session": session}).decode()


def heard(usage: Any) -> str:
    event = {"type": "conversation.item.input_audio_transcription.completed", "event_id": "e", "item_id": "i"}
    return orjson.dumps({**event, "content_index": 0, "transcript": "hello", "usage": usage}).decode()


@pytest.mark.parametrize(
    ("told", "transcriber"),
    [
        (GA, "whisper-1"),
        ({"input_audio_transcription": {"model": "gpt-4o-transcribe"}}, "gpt-4o-transcribe"),
        ({"audio": {"input": {"transcription": None}}}, ""),
        ({"input_audio_transcription": {"model": 7}}, ""),
        (None, ""),
    ],
)
def test_a_session_names_who_transcribes(told: Any, transcriber: str) -> None:
    for kind in ("session.created", "session.updated", "transcription_session.updated"):
        event = read_event(about(told, kind).encode())
        assert is_read(about(told, kind).encode())
        assert event is not None
        assert event.transcriber == transcriber


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (TOLD, Usage(13, 9, parts=UsageParts(audio_input=13))),
        (TOKENS, Usage(13, 9, parts=UsageParts(audio_input=13))),
        (MINUTE, Usage(0, 0, parts=UsageParts(audio_s=60.0))),
        (None, None),
        ({"type": "duration"}, None),
    ],
)
def test_a_transcription_tells_what_it_has_used(told: Any, usage: Usage | None) -> None:
    event = read_event(heard(told).encode())

    assert is_read(heard(told).encode())
    assert event is not None
    assert (event.transcribed, event.usage, event.transcriber) == (usage, None, None)


@given(st.dictionaries(st.sampled_from(["usage", "session"]), st.none() | st.text() | st.lists(st.booleans())))
def test_nothing_that_is_told_breaks_it(told: dict[str, Any]) -> None:
    for kind in ("session.updated", "conversation.item.input_audio_transcription.completed"):
        assert read_event(orjson.dumps({"type": kind, **told})) is not None


def transcribing(*events: str) -> Any:
    async def script(socket: ServerConnection) -> None:
        async for _ in socket:
            for event in events:
                await socket.send(event)

    return script


LISTED = {"gpt-realtime": {"targets": ["p0/gpt-realtime-2"]}}


@pytest.mark.parametrize(
    ("events", "usd"),
    [
        ([about(GA), heard(MINUTE), heard(MINUTE)], 2 * 0.36 / 60),
        ([about({"input_audio_transcription": {"model": "gpt-4o-transcribe"}}), heard(TOLD)], (13 * 6 + 9 * 10) / 1e6),
        ([about({"input_audio_transcription": {"model": "unknown"}}), heard(TOLD)], None),
    ],
)
async def test_transcriptions_cost_what_their_model_does(
    start: StartRealtime, events: list[str], usd: float | None
) -> None:
    async with provider(transcribing(*events)) as upstream:
        gateway = await start(upstream.url, models=LISTED)
        async with session(gateway) as socket:
            await socket.send("{}")
            assert [await socket.recv() for _ in events] == events
        await upstream.closed.get()
        costs = gateway.gateway._telemetry.costs
        (line,) = await lines_of(gateway)

    assert line["cost_usd"] == (None if usd is None else pytest.approx(usd))
    if usd is not None:
        assert [row[0] for row in costs().values()] == [pytest.approx(usd)]


async def test_they_count_against_the_budget(start: StartRealtime) -> None:
    """A minute costs $0.006."""
    key = {**KEYS[0], "budget_usd_per_day": 0.01, "allow_overspend": True}
    async with provider(transcribing(about(GA), heard(MINUTE), heard(MINUTE))) as upstream:
        gateway = await start(upstream.url, models=LISTED, keys=[key])
        async with session(gateway) as socket:
            await socket.send("{}")
            told = [orjson.loads(await socket.recv()) for _ in range(4)]
            assert (told[-1]["type"], told[-1]["error"]["code"]) == ("error", "budget_exceeded")
            assert (await close_of(socket))[0] == 4008


async def test_a_price_of_the_target_s_own_is_not_theirs(start: StartRealtime) -> None:
    """It is that of the session's model."""
    async with provider(transcribing(about(GA), heard(TOLD))) as upstream:
        gateway = await start(upstream.url)
        async with session(gateway) as socket:
            await socket.send("{}")
            await socket.recv()
            await socket.recv()
        await upstream.closed.get()
        (line,) = await lines_of(gateway)

    assert line["cost_usd"] is None
