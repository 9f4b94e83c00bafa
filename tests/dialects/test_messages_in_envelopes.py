"""Claude's own Messages at Bedrock and Vertex: the same body but for the envelope, the same events."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Any

import orjson
import pytest

from gateway.core.clock import SystemClock
from gateway.core.errors import InvalidRequest
from gateway.core.openai.sse import first_error
from gateway.core.retry import Attempt
from gateway.core.types import Clocks, How, Outgoing, UpstreamFailed
from gateway.dialects.anthropic.translators import MessagesAtBedrock, MessagesAtVertex
from gateway.dialects.base import ServerFacts
from gateway.dialects.config import read_models
from gateway.dialects.registry import pair_of
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, languages_of
from gateway.dialects.upstream import Converting
from tests.dialects.aws_frames import event, exception
from tests.dialects.cases import FOLDER, as_bytes, events_of, needs_cases
from tests.support.flow import JSON, Script, ScriptedUpstream
from tests.support.targets import target_named

PAIR = MessagesAtBedrock()
CLAUDE = "us.anthropic.claude-haiku-4-5-20251001-v1:0"
ASKED = {"model": "m", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "x"}], "odd": [1]}
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "msg_1"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "✓"}},
    {"type": "odd_event", "of": "tomorrow"},
    {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 1}},
]


def chunk(said: bytes) -> bytes:
    return event("chunk", {"bytes": b64encode(said).decode()})


def framed(events: list[dict[str, Any]]) -> bytes:
    return b"".join(chunk(orjson.dumps(one)) for one in events)


def through(raw: bytes, size: int) -> bytes:
    reader = PAIR.reader(PAIR.request(ASKED, ServerFacts(), 0.0, str))
    made = [reader.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
    return b"".join(made) + reader.close(is_clean=True)


def test_the_body_is_the_callers_but_for_the_envelope() -> None:
    said = {name: ASKED[name] for name in ("max_tokens", "messages", "odd")}
    made = PAIR.request(ASKED, ServerFacts(), 0.0, str).body
    assert made == {"anthropic_version": "bedrock-2023-05-31", **said}
    made = MessagesAtVertex().request(ASKED, ServerFacts(), 0.0, str).body
    assert made == {"anthropic_version": "vertex-2023-10-16", "stream": True, **said}
    assert PAIR.gaps(ASKED, ServerFacts()) == MessagesAtVertex().gaps(ASKED, ServerFacts()) == ()
    own = PAIR.request({**ASKED, "anthropic_version": "bedrock-2026-10-21"}, ServerFacts(), 0.0, str).body
    assert own["anthropic_version"] == "bedrock-2026-10-21"


def test_events_are_taken_out_of_their_frames_in_any_cut() -> None:
    raw, wanted = framed(EVENTS), as_bytes("messages", EVENTS)
    for size in (1, 7, 100, len(raw)):
        assert through(raw, size) == wanted
    spaced = orjson.dumps(EVENTS[1]).replace(b":", b": ", 1)
    assert through(chunk(spaced), 50) == b"event: content_block_delta\ndata: %b\n\n" % spaced


def test_vertex_streams_are_as_they_are() -> None:
    one = MessagesAtVertex()
    reader = one.reader(one.request(ASKED, ServerFacts(), 0.0, str))
    assert reader.feed(b"event: x") + reader.feed(b"\n\n") + reader.close(is_clean=True) == b"event: x\n\n"
    assert one.answer(one.request(ASKED, ServerFacts(), 0.0, str), ASKED) is ASKED


@pytest.mark.parametrize(
    ("raw", "kinds", "code"),
    [
        (exception("throttlingException", "slow"), ["ThrottlingException", "rate_limit_error"], None),
        (b"x" * 20, ["api_error"] * 2, "malformed_response"),
        (event("chunk", {"bytes": "%"}), ["api_error"] * 2, "malformed_response"),
        (chunk(b"[1]"), ["api_error"] * 2, "malformed_response"),
        (chunk(b'{"type":"a",\n"b":1}'), ["api_error"] * 2, "malformed_response"),
    ],
)
def test_an_error_ends_the_stream(raw: bytes, kinds: list[str], code: str | None) -> None:
    """Before any output as the tables of errors read it, behind it with a type of Anthropic's."""
    for place, kind in enumerate(kinds, 1):
        made = through(framed(EVENTS[:place]) + raw + framed(EVENTS[place:]), 64)
        first = as_bytes("messages", EVENTS[:place])
        assert made.startswith(first)
        error = first_error(made.removeprefix(first)) or {}
        assert (error["type"], error.get("code")) == (kind, code)


def test_an_error_behind_output_is_the_callers_to_read() -> None:
    """It has a type of Anthropic's; before any output whoever looks for another target reads what Bedrock said."""
    begun = framed(EVENTS[:2])
    made = through(begun + exception("throttlingException", "slow"), 64)
    assert (first_error(made.removeprefix(through(begun, 64))) or {})["type"] == "rate_limit_error"


def test_clouds_keep_no_state_of_conversations() -> None:
    """Anthropic's own threads; its SDKs send the conversation whole where they are told."""
    for one in (MessagesAtBedrock(), MessagesAtVertex()):
        assert one.gaps(ASKED, ServerFacts()) == ()
        (gap,) = one.gaps({**ASKED, "thread": {"type": "create"}}, ServerFacts())
        assert (gap.field, gap.how) == ("thread", How.REFUSED)


def test_clouds_fetch_no_pictures() -> None:
    """A target that can is next then; what is in the request is nobody's loss."""
    within = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    elsewhere = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    for block in (elsewhere, {"type": "tool_result", "tool_use_id": "a", "content": [within, elsewhere]}):
        body = {**ASKED, "messages": [{"role": "user", "content": [within, block]}]}
        for one in (MessagesAtBedrock(), MessagesAtVertex()):
            assert [(gap.field, gap.how) for gap in one.gaps(body, ServerFacts())] == [
                ("messages.image.url", How.REFUSED)
            ]
            assert one.gaps({**ASKED, "messages": [{"role": "user", "content": [within, within]}]}, ServerFacts()) == ()
    chat, part = pair_of("chat", "claude_at_vertex"), {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    shown = {"messages": [{"role": "user", "content": [part]}]}
    assert [gap.field for gap in chat.translator.gaps(shown, ServerFacts())] == ["messages.image_url"]
    with pytest.raises(InvalidRequest, match="image_url"):
        chat.request(orjson.dumps(shown), ServerFacts(), 0.0, lambda: "id")


CLOCKS = Clocks(1.0, 1.0, 1.0, 1.0, 1.0)
AT_VERTEX = "claude-haiku-4-5@20251001"
RAW = b"""{ "model" : "m", "max_tokens":5, "stream": %b, "number": 12345678901234567890123, "float": 1e2,
 "messages": [{"role": "user", "content": "\\u2713 \\/ \xc3\xa9"}], "mod\\u0065l": "m"}"""


def around(dialect: str, model: str, *scripts: Script) -> tuple[ScriptedUpstream, Converting]:
    spoken = TargetLanguages(dialect, languages_of(dialect, dialect, None), dialect, read_models(None).of)
    inner = ScriptedUpstream(*scripts)
    return inner, Converting(inner, spoken.at(model), SystemClock(), lambda: "abc", learned=None)


def outgoing(path: str, model: str, body: bytes, *headers: tuple[bytes, bytes]) -> Outgoing:
    return Outgoing(
        "POST", path, b"beta=true", model, list(headers), body, None, CLOCKS, 1.0, Attempt(target_named("t"), 0.0)
    )


async def read(answer: Any) -> bytes:
    return answer.whole if answer.whole is not None else b"".join([piece async for piece in answer.chunks])


BETAS = (b"anthropic-beta", b"a, b")
VERSION = (b"anthropic-version", b"2023-06-01")


@pytest.mark.parametrize("stream", [False, True])
async def test_claude_at_bedrock_is_asked_so(stream: bool) -> None:
    """By callers of Messages, and of no other model; betas go into the body; all else goes and comes byte for byte."""
    answer = framed(EVENTS) if stream else b'{ "type": "message" }'
    kind = (b"content-type", b"application/vnd.amazon.eventstream") if stream else JSON
    inner, upstream = around("bedrock", CLAUDE, Script(200, (kind,), [answer]))
    raw = RAW % (b"true" if stream else b"false")
    got = await upstream.send(outgoing("/messages", CLAUDE, raw, BETAS, VERSION, (b"x", b"y")))

    assert await read(got) == (as_bytes("messages", EVENTS) if stream else answer)
    (sent,) = inner.sent
    step = "us.anthropic.claude-haiku-4-5-20251001-v1%3A0"
    assert sent.path == f"/model/{step}/invoke{'-with-response-stream' if stream else ''}"
    assert (sent.query, sent.headers) == (b"", [(b"x", b"y")])
    kept = raw[raw.index(b'"max_tokens"') : raw.index(b'"stream"')] + raw[raw.index(b'"number"') : raw.rindex(b",")]
    wanted = b'{"anthropic_beta":["a","b"],"anthropic_version":"bedrock-2023-05-31", ' + kept + b"}"
    assert bytes(sent.body) == wanted
    spoken = TargetLanguages("bedrock", languages_of("bedrock", "bedrock", None), "bedrock", read_models(None).of)
    assert spoken.at("amazon.nova-lite-v1:0") == spoken.at(None) == spoken


@pytest.mark.parametrize("stream", [False, True])
async def test_claude_at_vertex_is_asked_so(stream: bool) -> None:
    """The model is in the path and nowhere else; betas stay a header, the version is the body's."""
    answer = as_bytes("messages", EVENTS) if stream else b'{ "type": "message" }'
    kind = (b"content-type", b"text/event-stream") if stream else JSON
    inner, upstream = around("vertex", AT_VERTEX, Script(200, (kind,), [answer]))
    raw = RAW % (b"true" if stream else b"false")
    got = await upstream.send(outgoing("/messages", AT_VERTEX, raw, BETAS, VERSION))

    assert await read(got) == answer
    (sent,) = inner.sent
    verb = "streamRawPredict" if stream else "rawPredict"
    assert sent.path == f"/publishers/anthropic/models/claude-haiku-4-5%4020251001:{verb}"
    assert (sent.query, sent.headers) == (b"", [BETAS])
    kept = raw[raw.index(b'"max_tokens"') : raw.rindex(b",")]
    assert bytes(sent.body) == b'{"anthropic_version":"vertex-2023-10-16", ' + kept + b"}"


@pytest.mark.parametrize("stream", [False, True])
async def test_callers_of_chat_reach_claude_at_vertex(stream: bool) -> None:
    """By Messages in the envelope, and back; the answer's words and counts are the caller's own language's."""
    start = {"type": "message_start", "message": {"id": "msg_1", "model": "c", "usage": {"input_tokens": 3}}}
    said: list[dict[str, Any]] = [
        start,
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]
    usage = {"input_tokens": 3, "output_tokens": 2}
    whole = {
        "id": "msg_1",
        "type": "message",
        "model": "c",
        "content": [{"type": "text", "text": "so"}],
        "usage": usage,
    }
    whole["stop_reason"] = "end_turn"
    answer = as_bytes("messages", said) if stream else orjson.dumps(whole)
    kind = (b"content-type", b"text/event-stream") if stream else JSON
    inner, upstream = around("vertex", AT_VERTEX, Script(200, (kind,), [answer]))
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "x"}]
    asked = {"model": "m", "stream": stream, "messages": messages, "stream_options": {"include_usage": True}}
    got = await read(await upstream.send(outgoing("/chat/completions", AT_VERTEX, orjson.dumps(asked))))

    (sent,) = inner.sent
    assert sent.path.endswith(":streamRawPredict" if stream else ":rawPredict")
    body = orjson.loads(bytes(sent.body))
    assert body.pop("max_tokens") > 1000
    turn = {"role": "user", "content": "x"}
    wanted = {"anthropic_version": "vertex-2023-10-16", "system": [{"type": "text", "text": "be"}], "messages": [turn]}
    assert body == wanted | ({"stream": True} if stream else {})
    if stream:
        events = events_of(got)
        assert "".join(one["choices"][0]["delta"].get("content", "") for one in events if one["choices"]) == "so"
        assert got.endswith(b"data: [DONE]\n\n")
        told = events[-1]["usage"]
    else:
        message = orjson.loads(got)
        assert message["choices"][0]["message"]["content"] == "so"
        told = message["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"]) == (3, 2)


async def test_thinking_of_another_models_does_not_reach_claude_at_a_cloud() -> None:
    """What was put into a history in its place is taken out on the way in."""
    marked = {"type": "thinking", "thinking": "hm", "signature": "gw1.x"}
    turn = {"role": "assistant", "content": [marked, {"type": "text", "text": "so"}]}
    body = orjson.dumps({"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}, turn]})
    for dialect, model in (("bedrock", CLAUDE), ("vertex", AT_VERTEX)):
        inner, upstream = around(dialect, model, Script(200, (JSON,), [b"{}"]))
        await read(await upstream.send(outgoing("/messages", model, body)))
        sent = orjson.loads(bytes(inner.sent[0].body))
        assert sent["messages"][1]["content"] == [{"type": "text", "text": "so"}]


SPOKEN_NOVA = TargetLanguages("bedrock", languages_of("bedrock", "bedrock", None), "bedrock", read_models(None).of)
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("dialect", "model", "path", "said", "wanted"),
    [
        ("bedrock", CLAUDE, "/model/anthropic.claude-haiku-4-5-20251001-v1%3A0/count-tokens", {"inputTokens": 7}, None),
        (
            "vertex",
            AT_VERTEX,
            "/publishers/anthropic/models/count-tokens:rawPredict",
            {"input_tokens": 7},
            {"anthropic_version": "vertex-2023-10-16", "messages": MESSAGES, "model": AT_VERTEX},
        ),
        (
            "gemini",
            "gemini-3-flash",
            "/models/gemini-3-flash:countTokens",
            {"totalTokens": 7},
            {
                "generateContentRequest": {
                    "model": "models/gemini-3-flash",
                    "contents": [{"role": "user", "parts": [{"text": "x"}]}],
                }
            },
        ),
        (
            "vertex",
            "gemini-3-flash",
            "/publishers/google/models/gemini-3-flash:countTokens",
            {"totalTokens": 7},
            {"contents": [{"role": "user", "parts": [{"text": "x"}]}]},
        ),
    ],
)
async def test_tokens_are_counted_there(dialect: str, model: str, path: str, said: Any, wanted: Any) -> None:
    inner, upstream = around(dialect, model, Script(200, (JSON,), [orjson.dumps(said)]), Script(403, (JSON,), [b"{}"]))
    asked = orjson.dumps({"model": model, "messages": MESSAGES})
    question = outgoing("/messages/count_tokens", model, asked)
    assert orjson.loads(await read(await upstream.send(question))) == {"input_tokens": 7}
    (sent,) = inner.sent
    body = orjson.loads(bytes(sent.body))
    if wanted is None:
        body = orjson.loads(b64decode(body["input"]["invokeModel"]["body"]))
        wanted = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 1, "messages": MESSAGES}
    assert (sent.path, body) == (path, wanted)
    with pytest.raises(UpstreamFailed, match="did not count"):  # and it is estimated
        await upstream.send(question)
    spoken = TargetLanguages(dialect, languages_of(dialect, dialect, None), dialect, read_models(None).of)
    assert not gaps_by_endpoint(spoken.at(model), model)["count_tokens"]({})
    assert gaps_by_endpoint(SPOKEN_NOVA, "amazon.nova-lite-v1:0")["count_tokens"]({})


def test_what_is_counted_at_bedrock_is_what_would_be_asked() -> None:
    """Betas are headers for the caller and part of the body there: a tool of one is unknown without it."""
    asked = orjson.dumps({"messages": MESSAGES, "anthropic_beta": ["b", "c"]})
    sent, _, _ = pair_of("count_tokens", "claude").request(asked, ServerFacts(), 0.0, lambda: "id", headers=[BETAS])
    counted = orjson.loads(b64decode(sent.body["input"]["invokeModel"]["body"]))
    assert (counted["anthropic_beta"], list(sent.body)) == (["b", "c", "a"], ["input"])


@needs_cases
def test_recorded_requests_are_in_the_same_envelope() -> None:
    """As Anthropic's SDK sends them to Bedrock, but for the model, which is in the path."""
    compared = 0
    for file in sorted(FOLDER.glob("*/bedrock-anthropic/request.json")):
        recorded = orjson.loads(file.read_bytes())
        made = PAIR.request(recorded, ServerFacts(), 0.0, str).body
        assert made == {"anthropic_version": "bedrock-2023-05-31"} | {
            name: value for name, value in recorded.items() if name not in ("model", "stream")
        }
        events = orjson.loads((file.parent / "response-streaming.json").read_bytes())
        assert through(framed(events), 61) == as_bytes("messages", events)
        compared += 1
    assert compared == 3
