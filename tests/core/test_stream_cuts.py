"""A stream cut at every byte: whoever reads it sees all of it or an error, never less, never anything twice.

The recordings are read as the openai SDK reads them, with its own decoder. Relays are driven without an event loop, and for
most cuts from a few events before it on, with what the stream had said by then: so a hundred thousand cuts take seconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Coroutine
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from openai._streaming import SSEDecoder

from gateway.core.call import Call
from gateway.core.openai.sse import split_events
from gateway.core.openai.transcript import Transcript
from gateway.core.relay import SseRelay
from gateway.core.types import Answer, Endpoint, ErrorClass, Upstream, UpstreamFailed, Usage
from tests.support.flow import CHAT, CLOCKS, RESPONSES, Bench, Broken, ScriptedUpstream

STREAMS = Path(__file__).parents[1] / "support" / "streams"
RECORDED = {
    "chat": (CHAT, STREAMS / "chat.sse"),
    "tools": (CHAT, STREAMS / "tools.sse"),
    "responses": (RESPONSES, STREAMS / "responses.sse"),
}
ODD_SIZES = (1, 2, 3, 5, 7, 11, 64, 333, 1000)


def at_once(stream: bytes) -> list[bytes]:
    """In one chunk."""
    return [stream] if stream else []


def by_event(stream: bytes) -> list[bytes]:
    """Each event as it comes, the unfinished one by itself."""
    return list(split_events(stream))


def oddly(stream: bytes) -> list[bytes]:
    """In chunks whose borders know nothing of events."""
    chunks, at, turn = [], 0, 0
    while at < len(stream):
        size = ODD_SIZES[turn % len(ODD_SIZES)]
        chunks.append(stream[at : at + size])
        at, turn = at + size, turn + 1
    return chunks


Feed = Callable[[bytes], list[bytes]]
FEEDS = (at_once, by_event, oddly)
HELD = (ErrorClass.STREAM_INTERRUPTED, ErrorClass.CONNECTION)
"""What an attempt fails with that was cut before its first output: retriable, both."""


class Cut:
    """An answer that ends, or breaks, behind these chunks."""

    status = 200
    headers = ()
    whole = None

    def __init__(self, chunks: list[bytes], *, is_clean: bool) -> None:
        self.chunks = self._play(chunks, is_clean)

    async def _play(self, chunks: list[bytes], is_clean: bool) -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk
        if not is_clean:
            raise Broken("reset by peer")

    async def aclose(self) -> None:
        """There is no connection."""


def run(task: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        task.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


class Reader:
    """What an application has of a stream, told by the SDK's own decoder."""

    def __init__(self, body: bytes) -> None:
        self.text = ""
        self.is_complete = False
        self.error: str | None = None
        self.read(body)

    def read(self, body: bytes) -> Reader:
        """More of the stream, from where an event begins."""
        for event in SSEDecoder().iter_bytes(iter([body])):
            is_failed = self.error is not None and event.event == "response.failed"
            assert self.error is None or is_failed, "something follows the error"
            if event.data and not event.data.startswith("[DONE]"):
                self._hear(orjson.loads(event.data))
        return self

    def _hear(self, data: dict[str, Any]) -> None:
        if data.get("error"):
            self.error = data["error"]["code"]
        elif data.get("type") == "error":
            self.error = data["code"]
        elif data.get("type") == "response.failed":
            assert data["response"]["error"]["code"] == self.error
        elif data.get("type") == "response.output_text.delta":
            self.text += data["delta"]
        elif data.get("type") == "response.completed":
            self.is_complete = True
        for choice in data.get("choices", ()):
            delta = choice["delta"]
            self.text += delta.get("content") or ""
            for call in delta.get("tool_calls", ()):
                self.text += call["function"].get("name", "") + call["function"]["arguments"]
            self.is_complete = self.is_complete or choice["finish_reason"] is not None


class Recording:
    """A stream, and what a reader has of it behind each of its events: nobody has to read the same beginning twice."""

    def __init__(self, endpoint: Endpoint, stream: bytes) -> None:
        self.endpoint = endpoint
        self.stream = stream
        self.borders = [0]
        self.readers = [Reader(b"")]
        self.said = [Transcript(endpoint.shape.stream)]
        self._seen: dict[tuple[int, bytes], Reader] = {}
        for event in split_events(stream):
            self.borders.append(self.borders[-1] + len(event))
            self.readers.append(copy(self.readers[-1]).read(event))
            self.said.append(deepcopy(self.said[-1]))
            self.said[-1].read(event)
        self.begins_at = next(border for border, reader in zip(self.borders, self.readers, strict=True) if reader.text)

    def reader_of(self, body: bytes, start: int) -> Reader:
        """What an application has that got the stream up to an event, then these bytes: more of its events, then the rest."""
        at = 0
        while start + 1 < len(self.borders) and body.startswith(event := self.event(start), at):
            at, start = at + len(event), start + 1
        place = (start, body[at:])
        if place not in self._seen:
            self._seen[place] = copy(self.readers[start]).read(body[at:])
        return self._seen[place]

    def event(self, number: int) -> bytes:
        """One of its events."""
        return self.stream[self.borders[number] : self.borders[number + 1]]


Outcome = tuple[bytes, str, Usage | None]


async def relayed(
    call: Call, chunks: list[bytes], *, is_clean: bool, strips_usage: bool = False, said: Transcript | None = None
) -> Outcome:
    """The bytes that the client gets, and how the relay said that it ended. Raises UpstreamFailed before the first.

    `said`: what the stream has said already; then it has been opened.
    """
    answer = cast("Answer", Cut(chunks, is_clean=is_clean))
    relay = SseRelay(call, cast("Upstream", ScriptedUpstream()), answer, strip_usage=strips_usage)
    if said is None:
        assert await relay.open() is None
    else:
        relay._transcript = copy(said)
        relay._transcript.finished = set(said.finished)
    ends: list[tuple[str, Usage | None]] = []
    body = [
        chunk
        async for chunk in relay.chunks(lambda outcome, usage, _: ends.append((outcome, usage)), CLOCKS, lambda: 0.0)
    ]
    (end,) = ends
    return b"".join(body), *end


def check_cut(
    recording: Recording, call: Call, at: int, feed: Feed, *, is_clean: bool, back: int | None = None
) -> None:
    """Cut the stream at this byte: before its first output the attempt fails, behind it the client has all or an error.

    `back`: relay it from so many events before the one that is cut; None: from its start.
    """
    cut = bisect_right(recording.borders, at) - 1
    start = 0 if back is None else max(0, cut - back)
    begun = recording.borders[start] >= recording.begins_at
    start = start if begun else 0
    begins = recording.borders[start]
    said = recording.said[start] if begun else None
    try:
        body, outcome, usage = run(relayed(call, feed(recording.stream[begins:at]), is_clean=is_clean, said=said))
    except UpstreamFailed as failure:
        if at < recording.begins_at and failure.error_class in HELD:
            return
        raise
    reader, whole = recording.reader_of(body, start), recording.readers[-1]

    assert at >= recording.begins_at - 2  # with nothing but its blank line missing, an event is whole
    assert whole.text.startswith(reader.text)
    assert reader.text.startswith(recording.readers[cut].text), "what has arrived is shown"
    if outcome == "ok":
        assert reader.text == whole.text
        assert (reader.is_complete, reader.error) == (True, None)
    else:
        assert (outcome, reader.error) == ("stream_interrupted", "stream_interrupted")
        assert not body.endswith(b"[DONE]\n\n")
    assert usage is None or usage.input == 31


def load(name: str, most_events: int | None = None) -> tuple[Recording, Call]:
    """A recording, and a call for it; of a longer one its first and last events, as if the middle had not been said."""
    endpoint, file = RECORDED[name]
    call = Bench([ScriptedUpstream()]).call(stream=True, endpoint=endpoint)
    events = list(split_events(file.read_bytes()))
    if most_events is not None and len(events) > most_events:
        events = events[: most_events // 2] + events[-(most_events // 2) :]
    return Recording(endpoint, b"".join(events)), call


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("is_clean", [True, False], ids=["end", "break"])
def test_a_stream_cut_at_any_byte_is_complete_or_an_error(name: str, is_clean: bool) -> None:
    """Whether it ends or breaks there, and in whatever chunks it comes: these change from byte to byte."""
    recording, call = load(name, most_events=30)  # a chat of 200 events has 170 more deltas like these

    for at in range(len(recording.stream) + 1):
        check_cut(recording, call, at, FEEDS[at % 3], is_clean=is_clean, back=at % 2)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("feed", FEEDS)
def test_a_cut_is_seen_however_much_came_before_it(name: str, feed: Feed) -> None:
    """From the start of the stream on: all over it, around its borders, and at each of its last bytes."""
    recording, call = load(name)
    length = len(recording.stream)
    cuts = {*range(0, length, 509), *range(recording.borders[2]), *range(length - 40, length + 1)}
    cuts |= {border + more for border in recording.borders[:-1:40] for more in range(-3, 8)}

    for at in sorted(cut for cut in cuts if cut >= 0):
        for is_clean in (True, False):
            check_cut(recording, call, at, feed, is_clean=is_clean)


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("feed", FEEDS)
def test_a_whole_stream_passes_byte_for_byte(name: str, feed: Feed) -> None:
    """Its usage is read, and it is a success also where the connection breaks behind it."""
    recording, call = load(name)

    for is_clean in (True, False):
        body, outcome, usage = run(relayed(call, feed(recording.stream), is_clean=is_clean))

        assert (body, outcome) == (recording.stream, "ok")
        assert usage is not None
        assert (usage.input, usage.estimated) == (31, False)


@pytest.mark.parametrize("is_clean", [True, False], ids=["end", "break"])
def test_a_cut_is_seen_also_where_usage_is_stripped(is_clean: bool) -> None:
    """What the gateway asked for is taken out of a broken stream too."""
    recording, call = load("tools")

    for at in range(recording.begins_at, len(recording.stream) + 1, 5):
        chunks = by_event(recording.stream[:at])
        body, outcome, _ = run(relayed(call, chunks, is_clean=is_clean, strips_usage=True))
        reader = Reader(body)

        assert b"prompt_tokens" not in body
        assert (reader.error is None) == (outcome == "ok") == (reader.is_complete and reader.error is None)
        assert recording.readers[-1].text.startswith(reader.text)
