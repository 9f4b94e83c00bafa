"""Providers that say odd things for long, on each way between two languages: nothing is a defect, or costs in the square.

What is changed in a stream is drawn; what grows is a stream of one kind of piece, four times as long as another.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

import orjson
import pytest

from gateway.core.openai.sse import event_data, split_events
from gateway.core.openai.transcript import Transcript
from gateway.dialects.base import Reader, ServerFacts
from gateway.dialects.bedrock.answer import FrameReader
from gateway.dialects.memory import ThoughtMemory
from gateway.dialects.registry import pair_of
from tests.dialects.aws_frames import frame
from tests.dialects.ways import ASKED, CALLERS, LANGUAGES, MODELS, STREAMS

pytestmark = pytest.mark.soak

Json = dict[str, Any]
SPOKEN: Final = ("chat", "responses", "messages", "generate", "converse")
ISSUERS: Final = {"messages": "anthropic", "generate": "gemini", "converse": "bedrock"}
PAIRS: Final = [(asked, spoken) for asked in CALLERS for spoken in SPOKEN if asked != spoken]
DRAWS: Final = 1_000
SHORT: Final = 5_000
PIECE_BYTES: Final = 16_384
NOTHING: Final = object()
VALUES: Final[list[Any]] = [
    NOTHING, None, True, 0, -1, 7, 2**63, 2**64 - 1, 1e308, "", "x", "\0", " ", "{", "{}", [], [None], [[]], [{}], {}, {"a": 1},
    "error", "stop", "z" * 3000, orjson.loads(b'{"a":' * 200 + b"1" + b"}" * 200),
]  # fmt: skip


def read_event(spoken: str, raw: bytes) -> tuple[str, Any]:
    """An event's name, where it is a frame, and what it says."""
    if spoken == "converse":
        (one,) = FrameReader().feed(raw)
        return one.event or "", orjson.loads(one.payload)
    data = event_data(raw.replace(b"\r\n", b"\n"))
    return "", data.decode() if data == b"[DONE]" else orjson.loads(data)


def written(spoken: str, name: str, said: Any) -> bytes:
    if spoken == "converse":
        return frame(orjson.dumps(said), message_type="event", event_type=name)
    kind = said.get("type") if isinstance(said, dict) else None
    told = b"event: %b\n" % kind.encode() if isinstance(kind, str) and kind.isidentifier() else b""
    return told + b"data: %b\n\n" % (said.encode() if isinstance(said, str) else orjson.dumps(said))


def spoiled(value: Any, draw: Random) -> Any:
    """The value with something else in one place, at any depth."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.2:
        return draw.choice(VALUES)
    place = draw.choice(list(value) if isinstance(value, dict) else range(len(value)))
    new = spoiled(value[place], draw)
    if isinstance(value, dict):
        rest = {name: one for name, one in value.items() if name != place}
        return rest if new is NOTHING else rest | {place: new}
    return [*value[:place], *([] if new is NOTHING else [new]), *value[place + 1 :]]


def odd_stream(spoken: str, draw: Random) -> bytes:
    """A stream with some events changed, doubled, left out, or in another order."""
    events = [read_event(spoken, one) for one in STREAMS[spoken]]
    for _ in range(draw.randint(1, 3)):
        at, other = draw.randrange(len(events)), draw.randrange(len(events))
        match draw.randrange(6):
            case 0:
                events.insert(at, events[other])
            case 1 if len(events) > 1:
                del events[at]
            case 2:
                events[at], events[other] = events[other], events[at]
            case _:
                new = spoiled(events[at][1], draw)
                events[at] = events[at][0], {} if new is NOTHING else new
    return b"".join(written(spoken, *one) for one in events)


def reader_of(asked: str, spoken: str) -> Reader:
    pair, issuer = pair_of(asked, spoken), ISSUERS.get(spoken, "")
    own = ThoughtMemory(lambda: 0.0).of("t", None, issuer, keeps_all=True)
    facts = ServerFacts(model=MODELS.of(LANGUAGES[spoken].model), issuer=issuer, memory=own)
    body = {"model": "m", **ASKED[asked], "stream": True}
    return pair.reader(pair.translator.request(body, facts, 0.0, lambda: "abc"))


@pytest.mark.parametrize(("asked", "spoken"), PAIRS)
def test_no_stream_is_a_defect(asked: str, spoken: str) -> None:
    """Nothing follows an error or an end, and what leaves can be followed."""
    draw = Random(f"{asked} {spoken}")
    for _ in range(DRAWS):
        raw, one = odd_stream(spoken, draw), reader_of(asked, spoken)
        cut = draw.randrange(len(raw) + 1)
        made = one.feed(raw[:cut]) + one.feed(raw[cut:]) + one.close(is_clean=True)
        said = [event_data(event).strip() for event in split_events(made)]
        errors = [at for at, data in enumerate(said) if data.startswith((b'{"error":{', b'{"type":"error"'))]
        assert len(errors) <= 1, raw
        assert not errors or not any(said[errors[0] + 1 :]), raw
        assert said.count(b"[DONE]") <= 1, raw
        Transcript(CALLERS[asked].shape.stream).read(made)


def chat(**delta: Any) -> bytes:
    return written("chat", "", {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def call(index: int | None, arguments: str, **fields: Any) -> bytes:
    named = {"arguments": arguments} | ({"name": "f"} if "id" in fields else {})
    return chat(tool_calls=[({} if index is None else {"index": index}) | fields | {"function": named}])


def calls(count: int, arguments: str) -> list[bytes]:
    return [call(at, arguments, id=f"c{at}") for at in range(count)]


def block(kind: str, **fields: Any) -> bytes:
    return written("messages", "", {"type": f"content_block_{kind}", "index": 0, **fields})


def part(said: Json, **more: Any) -> bytes:
    return written("generate", "", {"candidates": [{"content": {"parts": [said]}, "index": 0, **more}]})


def grow(delta: Json) -> bytes:
    return written("converse", "contentBlockDelta", {"contentBlockIndex": 0, "delta": delta})


def detail(**fields: Any) -> bytes:
    return chat(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "word ", **fields}])


CITED: Final = {"type": "citations_delta", "citation": {"type": "web_search_result_location", "url": "u", "title": "t"}}
SUPPORT: Final = {"segment": {"startIndex": 0, "endIndex": SHORT}, "groundingChunkIndices": [0]}
PAGES: Final = [{"web": {"uri": "u"}}]
GROWING: Final[dict[tuple[str, str], Callable[[int], list[bytes]]]] = {
    ("chat", "words"): lambda count: [chat(content="word ")] * count,
    ("chat", "white space"): lambda count: [chat(content="\n")] * count,
    ("chat", "thoughts"): lambda count: [detail(signature="abcd", format="anthropic-claude-v1")] * count,
    ("chat", "refusals"): lambda count: [chat(refusal="word ")] * count,
    ("chat", "arguments"): lambda count: [call(0, "", id="a"), *[call(0, "}")] * count],
    ("chat", "two calls"): lambda count: calls(2, "") + [call(0, "}"), call(1, "}")] * (count // 2),
    ("chat", "calls"): lambda count: calls(count, "{}"),
    ("chat", "pieces of any call"): lambda count: calls(count, "{}") + [call(None, " ")] * count,
    ("messages", "citations"): lambda count: [
        *STREAMS["messages"][:1], block("start", content_block={"type": "text"}), *[block("delta", delta=CITED)] * count,
    ],
    ("messages", "blocks"): lambda count: [
        STREAMS["messages"][0], *[block("start", content_block={"type": "text", "text": "w"})] * count,
    ],
    ("generate", "words"): lambda count: [part({"text": "wörd "})] * count,
    ("generate", "signatures"): lambda count: [part({"text": "w", "thoughtSignature": "U0lH"})] * count,
    ("generate", "calls"): lambda count: [part({"functionCall": {"name": "f", "args": {}}})] * count,
    ("generate", "supports"): lambda count: [part({"text": "wörd "})] * count + [
        part({"text": "x"}, groundingMetadata={"groundingChunks": PAGES, "groundingSupports": [SUPPORT] * (count // 10)})
    ],
    ("converse", "words"): lambda count: [grow({"text": "word "})] * count,
    ("converse", "signatures"): lambda count: [grow({"reasoningContent": {"signature": "word"}})] * count,
}  # fmt: skip


def seconds_of(asked: str, spoken: str, events: list[bytes]) -> float:
    """The processor's time for a stream, the least of three."""
    raw, taken = b"".join(events), []
    for _ in range(3):
        one, since = reader_of(asked, spoken), time.process_time()
        for at in range(0, len(raw), PIECE_BYTES):
            one.feed(raw[at : at + PIECE_BYTES])
        one.close(is_clean=True)
        taken.append(time.process_time() - since)
    return min(taken)


@pytest.mark.parametrize(("spoken", "kind"), GROWING)
def test_four_times_the_stream_is_about_four_times_the_work(spoken: str, kind: str) -> None:
    for asked in CALLERS:
        if asked != spoken:
            short, long = (seconds_of(asked, spoken, GROWING[spoken, kind](SHORT * times)) for times in (1, 4))
            assert long < 9 * short + 0.1, asked
