"""The app's side: what is retried, how often, and after which wait."""

from __future__ import annotations

import httpx
import openai
import pytest

from gateway.demo.clients import (
    AnswerBrokenError,
    Ask,
    CallFailedError,
    Client,
    Connect,
    Habits,
    plain_client,
    retry_wait_s,
    sdk_client,
)
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import parse_script_entry
from tests.rows import rows


@rows(
    ("status", "headers", "retries", "wait_s"),
    [
        (429, {"retry-after-ms": "250", "retry-after": "1"}, 0, 0.25),
        (429, {"retry-after": "1.5"}, 0, 1.5),
        (429, {"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 0, 40.0),
        (429, {"retry-after": "120"}, 0, 120.0),
        (429, {"retry-after": "121"}, 0, None),
        (429, {"retry-after": "121", "x-should-retry": "true"}, 0, None),
        (429, {"retry-after": "0"}, 0, 0.4375),
        (429, {"retry-after": "soon"}, 0, 0.4375),
        (429, {}, 1, 0.875),
        (500, {}, 9, 7.0),
        (408, {}, 0, 0.4375),
        (409, {}, 0, 0.4375),
        (529, {"x-should-retry": "false"}, 0, None),
        (400, {}, 0, None),
        (400, {"x-should-retry": "true"}, 0, 0.4375),
        (None, {}, 0, 0.4375),
    ],
)
def test_the_documented_rules_are_followed(
    status: int | None, headers: dict[str, str], retries: int, wait_s: float | None
) -> None:
    """With the draw in the middle, at 60 s past the epoch."""
    response = httpx.Response(status, headers=headers) if status else None

    assert retry_wait_s(response, retries, u=0.5, now_wall=60.0) == wait_s


@pytest.mark.parametrize("connect", [sdk_client, plain_client])
@pytest.mark.parametrize(
    ("script", "statuses", "is_answered"),
    [
        (["ok"], [200], True),
        (["rate_limit;seconds=0.001"] * 2, [429, 429, 200], True),
        (["rate_limit;seconds=0.001"] * 3, [429, 429, 429], False),
        (["rate_limit;seconds=500"], [429], False),
        (["context_length"], [400], False),
    ],
)
async def test_the_stand_in_does_what_the_sdk_does(
    connect: Connect, script: list[str], statuses: list[int], is_answered: bool
) -> None:
    """Both hear the same answers to the same script, and end the same way."""
    heard: list[int] = []
    server = EmulatorServer()
    await server.start()
    server.emulator.faults.script("*", [parse_script_entry(entry) for entry in script])
    try:
        async with connect(server.base_url, lambda status, _headers: heard.append(status)) as ask:
            if is_answered:
                assert await ask(7) > 0
            else:
                with pytest.raises(CallFailedError):
                    await ask(7)
    finally:
        await server.stop()

    assert heard == statuses


@pytest.mark.parametrize("connect", [sdk_client, plain_client])
@pytest.mark.parametrize(
    ("script", "statuses", "ending"),
    [
        (["ok"], [200], "answered"),
        (["rate_limit;seconds=0.001", "ok"], [429, 200], "answered"),
        (["reset;after_chunks=3"], [200], "broken"),
        (["cut;after_chunks=3"], [200], "broken"),
        (["no_done"], [200], "broken"),
        (["context_length"], [400], "failed"),
    ],
)
async def test_streams_are_tried_again_until_they_have_begun(
    connect: Client, script: list[str], statuses: list[int], ending: str
) -> None:
    """What breaks off is an error, even where it ends without one; every request that leaves is told."""
    heard: list[int] = []
    sent: list[int] = []
    habits = Habits(is_streamed=lambda _number: True, sent=lambda: sent.append(1))
    server = EmulatorServer()
    await server.start()
    server.emulator.faults.script("*", [parse_script_entry(entry) for entry in script])
    try:
        client = connect(server.base_url, lambda status, _headers: heard.append(status), habits=habits)
        async with client as ask:
            assert await ending_of(ask) == ending
    finally:
        await server.stop()

    assert heard == statuses
    assert len(sent) == len(statuses)


async def ending_of(ask: Ask) -> str:
    """How a call ends."""
    try:
        assert await ask(7) == 60
    except AnswerBrokenError:
        return "broken"
    except CallFailedError:
        return "failed"
    return "answered"


@pytest.mark.parametrize("connect", [sdk_client, plain_client])
@pytest.mark.parametrize(("habits", "told"), [(Habits(), 600.0), (Habits(timeout_s=7.0), 7.0)])
async def test_the_client_tells_its_timeout(connect: Client, habits: Habits, told: float) -> None:
    """As the SDK does of itself; the gateway takes it as the call's deadline."""
    server = EmulatorServer()
    await server.start()
    try:
        async with connect(server.base_url, lambda _status, _headers: None, habits=habits) as ask:
            await ask(7)
        headers = dict(server.emulator.recorder.last(1)[0]["headers"])
    finally:
        await server.stop()

    assert float(headers["x-stainless-read-timeout"]) == told


async def test_whatever_the_sdk_lets_through_is_a_failed_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that dies while it is being made raises what its HTTP library happens to stumble over."""

    async def stumble(*_: object, **__: object) -> None:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'")

    monkeypatch.setattr(openai.DefaultAsyncHttpxClient, "send", stumble)

    async with sdk_client("http://127.0.0.1:9/v1", lambda _status, _headers: None) as ask:
        with pytest.raises(CallFailedError, match="getpeername"):
            await ask(7)


async def test_the_stand_in_retries_what_never_arrived() -> None:
    """Three tries with growing waits, then the error."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    transport = httpx.MockTransport(refuse)
    client = plain_client(
        "http://x/v1", lambda _status, _headers: None, transport=transport, sleep=sleep, draw=lambda: 0.0
    )
    async with client as ask:
        with pytest.raises(CallFailedError):
            await ask(7)

    assert waits == [0.5, 1.0]
