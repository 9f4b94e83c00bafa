"""The app's side: what is retried, how often, and after which wait."""

from __future__ import annotations

import httpx
import pytest

from gateway.demo.clients import CallFailedError, Connect, plain_client, retry_wait_s, sdk_client
from gateway.emulator import EmulatorServer
from gateway.emulator.faults import parse_script_entry


@pytest.mark.parametrize(
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
