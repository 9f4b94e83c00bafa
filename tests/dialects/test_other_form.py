"""An answer in the other form than the one that was asked for: a stream for a whole answer, and a whole one for a stream."""

from __future__ import annotations

from typing import Any, Final

import orjson
import pytest

from gateway.core.edge import events_of
from gateway.dialects.endpoints import COMPLETIONS, ENDPOINTS
from gateway.features.reuse.rules import Caching
from tests.dialects.ways import CALLERS, STREAMS, WAYS, Json, Ways, heard, sse, stream_of
from tests.support.flow import ANSWER, JSON, Bench, Script, ScriptedUpstream, whole
from tests.support.flow import streamed as stream

NOT_HEARD: Final = (
    ("responses", "responses"),
    ("chat", "responses"),
    ("messages", "responses"),
    ("generate", "responses"),
)
"""The ways on which the conversation has no thought."""


def said(asked: str, answer: Json) -> str:
    """Thoughts, words and arguments of a whole answer."""
    if asked == "chat":
        message = answer["choices"][0]["message"]
        calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
        return "".join([message.get("reasoning_content") or "", message["content"] or "", *calls])
    if asked == "messages":
        blocks = answer["content"]
        return "".join(map(_text_of, blocks))
    if asked == "generate":
        parts = answer["candidates"][0]["content"]["parts"]
        calls = [orjson.dumps(one["functionCall"]["args"]).decode() if "functionCall" in one else "" for one in parts]
        return "".join(part.get("text", "") + call for part, call in zip(parts, calls, strict=True))
    items = answer["output"]
    texts = ["".join(part["text"] for part in one.get("content") or ()) + one.get("arguments", "") for one in items]
    return "".join(texts)


def _text_of(block: Json) -> str:
    called = orjson.dumps(block["input"]).decode() if "input" in block else ""
    return "".join([block.get("thinking", ""), block.get("text", ""), called])


@pytest.mark.parametrize(("asked", "spoken"), WAYS)
async def test_a_stream_that_nobody_asked_for_becomes_a_whole_answer(asked: str, spoken: str) -> None:
    """With all that it says, and its usage; a repeated key gets the same."""
    bench = Ways([spoken], [stream_of(spoken, *STREAMS[spoken])], caching=Caching())
    call: dict[str, Any] = bench.asking(asked, stream=False, idempotency_key=b"k")
    call["parsed"] = orjson.loads(call["body"])

    reply, body = await bench.serve(**call)
    again, repeated = await bench.serve(**call)

    assert dict(reply.headers)[b"content-type"] == dict(again.headers)[b"content-type"] == b"application/json"
    assert repeated == body
    thought = "" if (asked, spoken) in NOT_HEARD else "hm"
    assert said(asked, orjson.loads(body)) == thought + 'so{"x":1}'
    usage = bench.meter.accounts[0].usage
    assert usage is not None
    assert (usage.input, usage.output, usage.estimated) == (31, 7, False)


async def test_a_text_completion_is_gathered() -> None:
    """The oldest endpoint, too."""
    chunks = sse(
        {"id": "c", "choices": [{"index": 0, "text": "a", "finish_reason": None}]},
        {"id": "c", "choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]},
        "[DONE]",
    )
    bench = Bench([ScriptedUpstream(stream(*chunks))])

    _, body = await bench.serve(endpoint=COMPLETIONS, path="/completions")

    assert orjson.loads(body)["choices"][0]["text"] == "ab"


async def test_a_byte_order_mark_before_an_unwanted_stream_is_no_part_of_it() -> None:
    """It was a 502 after several tries that were paid for."""
    bench = Ways(["chat"], [stream(b"\xef\xbb\xbf", *STREAMS["chat"])])

    _, body = await bench.serve(**bench.asking("chat", stream=False))

    assert said("chat", orjson.loads(body)).endswith('so{"x":1}')


@pytest.mark.parametrize("name", ["embeddings", "moderations", "images"])
async def test_a_stream_of_what_has_no_stream_is_no_answer(name: str) -> None:
    """Clients of these endpoints read one object: the next target serves the call."""
    endpoint = next(one for one in ENDPOINTS if one.name == name)
    data = b'{"object":"list","data":[{"embedding":[1]}],"usage":{"prompt_tokens":1,"total_tokens":1}}'
    bench = Bench([ScriptedUpstream(stream(*STREAMS["chat"])), ScriptedUpstream(whole(data))])

    reply, body = await bench.serve(endpoint=endpoint, path=endpoint.path)

    assert (reply.status, body) == (200, data)


@pytest.mark.parametrize("asked", CALLERS)
async def test_half_a_stream_is_no_answer(asked: str) -> None:
    """Nothing has reached the client: the next target serves it."""
    bench = Ways([asked, asked], [stream_of(asked, *STREAMS[asked][:3])], [stream_of(asked, *STREAMS[asked])])

    _, body = await bench.serve(**bench.asking(asked, stream=False))

    assert len(bench.upstreams[1].sent) == 1
    assert said(asked, orjson.loads(body)).endswith('so{"x":1}')


async def test_an_error_in_an_unwanted_stream_is_an_error() -> None:
    """With its own class and status, wherever in the stream it stands."""
    error = {"error": {"message": "Overloaded", "type": "overloaded_error", "code": None}}
    bench = Bench([ScriptedUpstream(stream(STREAMS["chat"][2], *sse(error)))])

    reply, body = await bench.serve()

    assert reply.status >= 500
    assert orjson.loads(body) == error


async def test_an_unwanted_stream_without_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too long to be gathered is a failure, and not read to its end."""
    monkeypatch.setattr("gateway.core.answers.WHOLE_LIMIT", 100)
    endless = stream(*STREAMS["chat"])
    bench = Bench([ScriptedUpstream(endless), ScriptedUpstream(whole(ANSWER))])

    _, body = await bench.serve()

    assert (body, endless.closed) == (ANSWER, 1)


GENERATED: Final[list[Json]] = [
    {"candidates": [{"index": 1, "content": {"role": "model", "parts": [{"text": "x"}]}}], "responseId": "r"},
    {"candidates": [{"content": {"role": "model", "parts": [{"text": "a", "thought": True}]}}]},
    {"candidates": [{"content": {"parts": [{"text": "b"}, {"text": "", "thoughtSignature": "S"}]}}]},
    {"candidates": [{"content": {"parts": [{"text": "c"}]}, "finishReason": "STOP"}]},
    {"candidates": [{"index": 1, "finishReason": "MAX_TOKENS"}], "usageMetadata": {"promptTokenCount": 3}},
]


async def test_candidates_and_signed_parts_of_gemini_stay_apart() -> None:
    """A signature belongs to its own part, a thought is no text."""
    bench = Bench([ScriptedUpstream(stream(*sse(*GENERATED)))])

    _, body = await bench.serve(endpoint=CALLERS["generate"], path="/generate")

    first, second = orjson.loads(body)["candidates"]
    assert first["content"]["parts"] == [
        {"text": "a", "thought": True},
        {"text": "b"},
        {"text": "", "thoughtSignature": "S"},
        {"text": "c"},
    ]
    assert (second["content"]["parts"], second["finishReason"]) == ([{"text": "x"}], "MAX_TOKENS")
    assert orjson.loads(body)["responseId"] == "r"


@pytest.mark.parametrize(("asked", "spoken"), [way for way in WAYS if way[1] in CALLERS])
async def test_a_whole_answer_in_place_of_a_stream_becomes_events(asked: str, spoken: str) -> None:
    """In the caller's language, as the edge writes them."""
    first = Ways([spoken], [stream_of(spoken, *STREAMS[spoken])])
    _, answer = await first.serve(**first.asking(spoken, stream=False))
    bench = Ways([spoken], [Script(200, (JSON,), [answer])])

    reply, _ = await bench.serve(**bench.asking(asked))

    got = heard(asked, events_of(bench.call(**bench.asking(asked)), reply))
    assert got.is_ended
    assert got.text == ("" if spoken == "responses" else "hm") + 'so{"x":1}'
