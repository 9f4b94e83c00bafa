"""A provider that dies in any way the emulator knows: another serves the call, or the client is told; never a hang.

Before the first byte the model's next target takes over and nothing of the first shows; after it an error event ends the
stream. A silent or fake end would be worse than either. Nothing stays behind and every call is settled once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
import pytest
import yaml

from gateway.core.openai import sse
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import parse_script_entry
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Response, Running, chat, connect, post
from tests.soak.support import Held, settled, until_only
from tests.sweeps import sampled

End = Literal["served_by_next", "told", "served"]
PATHS = ("/v1/chat/completions", "/v1/responses")
CLOCKS = {"first_byte": "100ms", "idle": "100ms"}

# How a streamed call ends, and how one that is not.
ENDS: dict[str, tuple[End, End]] = {
    "e500": ("served_by_next", "served_by_next"),
    "e529": ("served_by_next", "served_by_next"),
    "html502": ("served_by_next", "served_by_next"),
    "empty_200": ("served_by_next", "served_by_next"),
    "error_in_200": ("served_by_next", "served_by_next"),
    "silence": ("served_by_next", "served_by_next"),
    "slow_first_token": ("served_by_next", "served_by_next"),
    "reset": ("served_by_next", "served_by_next"),
    "reset;after_chunks=3": ("told", "served_by_next"),
    "cut;after_chunks=0": ("served_by_next", "served_by_next"),
    "cut": ("told", "served_by_next"),
    "stall;after_chunks=0": ("served_by_next", "served_by_next"),
    "stall": ("told", "served_by_next"),
    "in_band_error": ("served_by_next", "served_by_next"),
    "in_band_error;after_chunks=3": ("told", "served_by_next"),
    "truncated": ("told", "served_by_next"),
    "wrong_length": ("told", "served_by_next"),  # 16 bytes short
    "no_done": ("told", "served"),  # an answer in JSON has no such mark
    "malformed": ("told", "served_by_next"),
    "opening_error": ("served_by_next", "served_by_next"),
    "raw_error": ("told", "served_by_next"),
}
TIMEOUTS = {"silence", "slow_first_token", "stall;after_chunks=0", "stall"}
"""They cost time, and perhaps money: two tries, where other failures get three."""
CASES = [(fault, path, is_stream) for fault in ENDS for path in PATHS for is_stream in (True, False)]
RETRIED = [(fault, streamed == "served_by_next") for fault, (streamed, whole) in ENDS.items() if whole != "served"]


def end_of(fault: str, path: str, *, is_stream: bool) -> End:
    """How a call ends that meets this fault at its first target."""
    if fault == "wrong_length" and is_stream and path == PATHS[0]:
        return "served"  # all that chat loses is the end of [DONE]: the event that says why it finished has come
    return ENDS[fault][not is_stream]


@dataclass(frozen=True, slots=True)
class Pair:
    """A gateway with a model whose first target dies, and a second one beside it."""

    running: Running
    second: EmulatorServer
    before: Held

    def both_die(self, fault: str) -> None:
        """The next calls of either target end this way."""
        self.running.script(*[fault] * 4)
        self.second.emulator.faults.script("*", [parse_script_entry(fault)] * 4)

    async def ask(self, path: str, *, is_stream: bool) -> Response:
        """One call and its answer, which has to have an end."""
        body = {"model": "m", "input": "hello"} if path.endswith("responses") else chat("m")
        async with connect(self.running.url) as peer:
            return await peer.exchange(post(path, orjson.dumps(body | {"stream": is_stream})))


@pytest.fixture
async def pair(start: StartGateway, tmp_path: Path) -> AsyncIterator[Pair]:
    """Two providers, with clocks short enough to wait for."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "timeouts.yaml").write_text(yaml.safe_dump({"default": CLOCKS}))
    (tmp_path / "policies" / "retries.yaml").write_text(yaml.safe_dump({"default": {"backoff": {"base": "1ms"}}}))
    second = EmulatorServer()
    await second.start()

    def config(url: str) -> dict[str, Any]:
        urls = {"first": url, "second": second.base_url}
        return {
            "policies": str(tmp_path / "policies"),
            "providers": {name: {"dialect": "openai", "base_url": each, "api_key": "k"} for name, each in urls.items()},
            "models": {"m": {"targets": ["first/one", "second/two"], "choose": "in_order"}},
        }

    running = await start(config)
    yield Pair(running, second, Held.by(running))
    await running.stop()
    await second.stop()


def last_event(response: Response) -> bytes:
    """The event that a stream ended with."""
    return list(sse.split_events(response.body))[-1]


def is_whole(path: str, response: Response, *, is_stream: bool) -> bool:
    """Whether the answer ends as a finished one does."""
    if not is_stream:
        return isinstance(orjson.loads(response.body), dict)
    last = last_event(response)
    if any(sse.error_in(event) is not None for event in sse.split_events(response.body)):
        return False
    if path.endswith("responses"):
        return (sse.event_json(last) or {}).get("type") == "response.completed"
    return sse.event_data(last) == sse.DONE or b'"finish_reason":"stop"' in last


@pytest.mark.parametrize(
    ("fault", "path", "is_stream"),
    # What becomes of chats that meet them is the table of `test_faults`, one of whose rows ends as chats only do.
    sampled(CASES, lambda fault, path, is_stream: path == PATHS[1] or fault in ("wrong_length", "no_done")),
)
async def test_a_dying_provider_is_replaced_or_told(pair: Pair, fault: str, path: str, is_stream: bool) -> None:
    """Before its first byte the next target serves the call; afterwards an error event is the last thing of the stream."""
    end = end_of(fault, path, is_stream=is_stream)
    pair.running.script(fault)

    response = await pair.ask(path, is_stream=is_stream)

    assert response.status == 200, response.raw
    assert is_whole(path, response, is_stream=is_stream) == (end != "told"), response.raw
    target, other = ("second/two", b'"one"') if end == "served_by_next" else ("first/one", b'"two"')
    assert response.header("x-gateway-target") == target
    assert other not in response.body
    assert len((response.header("x-gateway-attempts") or "").split()) == (2 if end == "served_by_next" else 1)
    if end == "told":
        assert sse.error_in(last_event(response)) is not None, response.body[-500:]
        assert b"[DONE]" not in response.body
    await until_only(pair.before, pair.running)
    assert sum(settled(pair.running).values()) == 1
    assert ("ok" in settled(pair.running)) == (end != "told")


@pytest.mark.parametrize(("fault", "is_stream"), RETRIED)
async def test_when_all_providers_die_the_client_gets_an_error(pair: Pair, fault: str, is_stream: bool) -> None:
    """Neither a success nor a broken connection: an error in OpenAI's shape that names what was tried."""
    pair.both_die(fault)

    response = await pair.ask(PATHS[0], is_stream=is_stream)

    assert response.status >= 500, response.raw
    assert response.error["message"]
    assert response.header("x-should-retry") in ("true", "false")
    assert (response.header("x-should-retry") == "true") == (response.header("retry-after-ms") is not None)
    tried = [one.partition(":")[0] for one in (response.header("x-gateway-attempts") or "").split()]
    assert tried == ["first/one", "second/two", "first/one"][: 2 if fault in TIMEOUTS else 3]
    await until_only(pair.before, pair.running)
    assert sum(settled(pair.running).values()) == 1
    assert "ok" not in settled(pair.running)


@pytest.mark.parametrize("fault", ["wrong_length", "stall", "truncated", "cut"])
async def test_nothing_of_a_broken_answer_shows_in_the_next(pair: Pair, fault: str) -> None:
    """The connection a broken answer came on is not used again: the next call gets its own answer, whole."""
    pair.running.script(fault)
    await pair.ask(PATHS[0], is_stream=True)

    response = await pair.ask(PATHS[0], is_stream=False)

    assert response.status == 200
    assert orjson.loads(response.body)["object"] == "chat.completion"
    assert response.header("x-gateway-attempts") == "first/one:200"
