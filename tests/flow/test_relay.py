"""Streams: whole events, exact bytes, an honest end."""

from __future__ import annotations

import orjson
import pytest

from gateway.call import Endpoint
from gateway.policy.sse import PENDING_LIMIT
from tests.flow.support import (
    CHAT,
    RESPONSES,
    SPEECH,
    Bench,
    Broken,
    FakeClock,
    Script,
    ScriptedUpstream,
    read_all,
    streamed,
)

DELTA = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
DONE = b"data: [DONE]\n\n"
CHAT_STREAM = DELTA + DELTA + FINISH + USAGE + DONE
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{}}\n\n'
TEXT = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","response":{"usage":'
    b'{"input_tokens":7,"output_tokens":2}}}\n\n'
)


def bench(*chunks: bytes | Exception, include_usage: bool = True) -> Bench:
    """One target that streams these chunks."""
    return Bench([ScriptedUpstream(streamed(*chunks))], include_usage=include_usage)


async def test_a_stream_whose_usage_was_asked_for_passes_byte_for_byte() -> None:
    """The caller asked for usage itself: nothing is injected, nothing is stripped."""
    stage = bench(CHAT_STREAM)

    _, body = await stage.serve(stream=True, stream_options={"include_usage": True})

    assert body == CHAT_STREAM
    assert stage.upstreams[0].sent[0].body == stage.call().body


async def test_injected_usage_is_counted_and_not_shown() -> None:
    """The gateway asks for usage on its own account; the caller does not see the extra event."""
    nulled = DELTA.replace(b"]}\n", b'],"usage":null}\n')
    stage = bench(nulled + DELTA + FINISH + USAGE + DONE)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + DELTA + FINISH + DONE
    assert orjson.loads(stage.upstreams[0].sent[0].body)["stream_options"] == {"include_usage": True}
    assert stage.account.usage is not None
    assert (stage.account.usage.input, stage.account.usage.output, stage.account.usage.estimated) == (7, 2, False)


@pytest.mark.parametrize("options", [None, {"include_usage": False}])
async def test_usage_is_not_asked_for_against_the_callers_or_the_policys_will(options: object) -> None:
    """`include_usage: false`, by the caller or by the policy, leaves the body alone; tokens are estimated."""
    stage = bench(DELTA, FINISH, DONE, include_usage=options is not None)

    _, body = await stage.serve(stream=True, stream_options=options)

    assert stage.upstreams[0].sent[0].body == stage.call().body
    assert body == DELTA + FINISH + DONE
    assert stage.account.usage is not None
    assert stage.account.usage.estimated


@pytest.mark.parametrize(
    ("endpoint", "stream", "shown"),
    [
        (CHAT, CHAT_STREAM, DELTA + DELTA + FINISH + DONE),
        (RESPONSES, CREATED + TEXT + COMPLETED, CREATED + TEXT + COMPLETED),
    ],
)
async def test_a_split_at_any_byte_changes_nothing(endpoint: Endpoint, stream: bytes, shown: bytes) -> None:
    """Chunk borders are the network's business: output, outcome and usage are the same wherever they fall."""
    for cut in range(1, len(stream)):
        stage = bench(stream[:cut], stream[cut:])

        _, body = await stage.serve(stream=True, endpoint=endpoint)

        assert body == shown, cut
        assert stage.account.outcome == "ok"
        assert stage.account.usage is not None
        assert stage.account.usage.input == 7


async def test_byte_by_byte_arrival_changes_nothing() -> None:
    """The slowest of networks."""
    stage = bench(*(bytes([byte]) for byte in CHAT_STREAM))

    _, body = await stage.serve(stream=True)

    assert body == DELTA + DELTA + FINISH + DONE


@pytest.mark.parametrize("last", [Broken("reset by peer"), b""])
@pytest.mark.parametrize("partial", [b"", b'data: {"id":"c","cho'])
async def test_a_stream_that_breaks_ends_with_an_error_event(last: Exception | bytes, partial: bytes) -> None:
    """A reset or a bare end after output is never a silent or a fake end; the torn event is not passed on."""
    stage = bench(DELTA, partial, last)

    _, body = await stage.serve(stream=True)

    assert body.startswith(DELTA + b"data: ")
    error = orjson.loads(body[len(DELTA) + 6 :])["error"]
    assert error["code"] == "stream_interrupted"
    assert set(error) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in body
    assert stage.account.outcome == "stream_interrupted"


async def test_a_responses_stream_that_breaks_ends_with_its_own_kind_of_error() -> None:
    """`event: error` with a flat object, as the Responses API has it."""
    stage = bench(CREATED + TEXT, Broken("reset"))

    _, body = await stage.serve(stream=True, endpoint=RESPONSES)

    last = body[len(CREATED + TEXT) :]
    assert last.startswith(b"event: error\ndata: ")
    assert orjson.loads(last.splitlines()[1][6:])["type"] == "error"


async def test_a_finish_reason_without_done_is_an_end() -> None:
    """Some providers leave out [DONE]; the answer is complete, and nothing is invented."""
    stage = bench(DELTA, FINISH)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH
    assert stage.account.outcome == "ok"


async def test_a_break_behind_the_last_event_is_no_harm() -> None:
    """The answer was complete before the connection went."""
    stage = bench(DELTA, FINISH, DONE, Broken("reset"))

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH + DONE
    assert stage.account.outcome == "ok"


async def test_a_last_event_without_its_blank_line_is_forwarded() -> None:
    """`data: [DONE]` and a bare end of stream."""
    stage = bench(DELTA, FINISH, b"data: [DONE]\n")

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH + b"data: [DONE]\n"


@pytest.mark.parametrize(
    ("endpoint", "torn"),
    [
        (CHAT, FINISH[:-18]),
        (CHAT, FINISH.replace(b'"c"', b'"%b"' % (b"x" * PENDING_LIMIT))[:-18]),
        (RESPONSES, COMPLETED[:-16]),
        (RESPONSES, COMPLETED.replace(b'"usage"', b'"x":"%b","usage"' % (b"x" * PENDING_LIMIT))[:-16]),
        (RESPONSES, b"event: response.completed\n"),
    ],
    ids=["chat", "long chat", "responses", "long responses", "name only"],
)
@pytest.mark.parametrize("last", [Broken("reset"), b""])
async def test_a_torn_last_event_ends_nothing(endpoint: Endpoint, torn: bytes, last: Exception | bytes) -> None:
    """No reader can see the end in it, so the client is told that the stream broke."""
    first = TEXT if endpoint is RESPONSES else DELTA
    stage = bench(first, torn, last)

    _, body = await stage.serve(stream=True, endpoint=endpoint)

    assert b"stream_interrupted" in body
    assert stage.account.outcome == "stream_interrupted"


@pytest.mark.parametrize(
    ("endpoint", "event"), [(CHAT, FINISH), (CHAT, DONE), (RESPONSES, COMPLETED)], ids=["finish", "done", "responses"]
)
async def test_a_stream_of_nothing_but_its_last_event_is_whole_unless_torn(endpoint: Endpoint, event: bytes) -> None:
    """Without its blank line it passes as it came; torn, the stream never began and the next target is asked."""
    whole, torn = event[:-2], event[:-5]
    alone = bench(whole)
    stage = Bench([ScriptedUpstream(streamed(torn)), ScriptedUpstream(streamed(event))])

    _, body = await alone.serve(stream=True, endpoint=endpoint)
    _, second = await stage.serve(stream=True, endpoint=endpoint)

    assert (body, alone.account.outcome) == (whole, "ok")
    assert (second, stage.account.outcome) == (event, "ok")
    assert len(stage.upstreams[1].sent) == 1


async def test_injected_usage_is_not_shown_without_its_blank_line_either() -> None:
    """The stream ends right behind it."""
    stage = bench(DELTA, FINISH, USAGE[:-2])

    _, body = await stage.serve(stream=True)

    assert body == DELTA + FINISH
    assert stage.account.outcome == "ok"


async def test_the_providers_own_error_event_is_not_doubled() -> None:
    """It is forwarded as it came, and nothing is added."""
    error = b'data: {"error":{"message":"overloaded","type":"server_error","code":null}}\n\n'
    stage = bench(DELTA, error)

    _, body = await stage.serve(stream=True)

    assert body == DELTA + error
    assert stage.account.outcome == "stream_error"


async def test_text_that_looks_like_an_end_is_not_one() -> None:
    """A model may write about SSE; inside a JSON string that ends nothing."""
    text = {"choices": [{"delta": {"content": '\ndata: [DONE]\n\n"finish_reason":"stop" event: response.completed\n'}}]}
    stage = bench(b"data: " + orjson.dumps(text) + b"\n\n")

    await stage.serve(stream=True)

    assert stage.account.outcome == "stream_interrupted"


async def test_a_bare_json_error_at_the_end_is_told() -> None:
    """Some append raw JSON to a broken stream: its message reaches the client in an error event."""
    stage = bench(DELTA, b'{\n  "error": {"code": 503, "message": "model unavailable"}\n}\n')

    _, body = await stage.serve(stream=True)

    assert b"model unavailable" in body[len(DELTA) :]
    assert body[len(DELTA) :].startswith(b"data: ")


async def test_announcements_are_held_back_until_the_first_real_event() -> None:
    """`response.created` says nothing yet: a failure behind it still moves on to the next target."""
    stage = Bench(
        [ScriptedUpstream(streamed(CREATED, Broken("gone"))), ScriptedUpstream(streamed(CREATED, TEXT, COMPLETED))]
    )

    _, body = await stage.serve(stream=True, endpoint=RESPONSES)

    assert body == CREATED + TEXT + COMPLETED
    assert stage.account.outcome == "ok"


async def test_comments_before_the_first_event_are_kept() -> None:
    """`: OPENROUTER PROCESSING` and its like are forwarded in their place."""
    stage = bench(b": PROCESSING\n\n", b": PROCESSING\n\n", DELTA, FINISH, DONE)

    _, body = await stage.serve(stream=True)

    assert body == b": PROCESSING\n\n" * 2 + DELTA + FINISH + DONE


async def test_an_event_of_any_size_passes_in_bounded_memory() -> None:
    """A 1 MB event is passed on in parts as it comes, exactly."""
    big = b'data: {"choices":[{"delta":{"content":"' + b"x" * 1_000_000 + b'"}}]}\n\n'
    pieces = [big[at : at + 10_000] for at in range(0, len(big), 10_000)]
    stage = bench(*pieces, FINISH, DONE)

    reply = await stage.pipeline.handle(stage.call(stream=True))
    assert reply.chunks is not None
    chunks = [chunk async for chunk in reply.chunks]
    await reply.close()

    assert b"".join(chunks) == big + FINISH + DONE
    assert max(map(len, chunks)) < 2 * PENDING_LIMIT


async def test_a_break_inside_a_passed_on_event_closes_it_first() -> None:
    """The error event starts on a line of its own, whatever is left half-said before it."""
    stage = bench(DELTA, b'data: {"x":"' + b"x" * (PENDING_LIMIT + 10), Broken("reset"))

    _, body = await stage.serve(stream=True)

    assert b'\n\ndata: {"error":' in body


async def test_the_total_clock_ends_a_stream_that_never_does() -> None:
    """An hour is enough for any answer; the client is told."""
    clock = FakeClock()
    script = streamed(DELTA, lambda: clock.__setattr__("now", clock.now + 4000), DELTA, DELTA)
    stage = Bench([ScriptedUpstream(script)], clock=clock)

    _, body = await stage.serve(stream=True)

    assert body.startswith(DELTA + DELTA + b'data: {"error":')
    assert stage.account.outcome == "timeout"


async def test_tokens_of_an_unfinished_stream_are_estimated_from_its_events() -> None:
    """A client that leaves half-way has used about as many tokens as it has seen events."""
    stage = bench(*[DELTA] * 30)

    reply = await stage.pipeline.handle(stage.call(stream=True))
    assert reply.chunks is not None
    for _ in range(20):
        await anext(reply.chunks)
    await reply.close()

    assert stage.account.outcome == "client_gone"
    assert stage.account.usage is not None
    assert stage.account.usage.output == 20


async def test_a_raw_body_that_breaks_off_breaks_the_clients_connection() -> None:
    """There is no error event in audio: the break itself has to be seen."""
    script = Script(200, ((b"content-type", b"audio/wav"),), [b"abc", Broken("reset")])
    stage = Bench([ScriptedUpstream(script)])

    reply = await stage.pipeline.handle(stage.call(endpoint=SPEECH))
    with pytest.raises(Exception, match="reset"):
        await read_all(reply)
    await reply.close()

    assert script.closed
    assert stage.account.outcome == "stream_interrupted"


async def test_half_of_the_choices_is_not_an_answer() -> None:
    """With `n: 2`, one finish reason and a break or an end is a cut stream."""
    body = b'{"model":"m","messages":[],"n":2}'
    for last in (b"", Broken("reset")):
        stage = bench(DELTA, FINISH, last)

        _, shown = await stage.serve(stream=True, body=body, stream_options={"include_usage": True})

        assert b"stream_interrupted" in shown
        assert stage.account.outcome == "stream_interrupted"


async def test_a_break_behind_a_finish_reason_is_a_break() -> None:
    """Without [DONE] only a clean end proves that nothing else was coming."""
    stage = bench(DELTA, FINISH, Broken("reset"))

    _, shown = await stage.serve(stream=True)

    assert b"stream_interrupted" in shown


async def test_streams_of_unknown_kind_end_when_they_end() -> None:
    """Images stream their own events, without [DONE]: a clean end is good, a break is not."""
    images = Endpoint("images", "/images/generations", sse="other")
    event = b'event: image_generation.completed\ndata: {"type":"image_generation.completed"}\n\n'

    good, broken = bench(event), bench(event, Broken("reset"))

    assert (await good.serve(stream=True, endpoint=images))[1] == event
    assert b"stream_interrupted" in (await broken.serve(stream=True, endpoint=images))[1]


async def test_usage_is_found_however_much_follows_it() -> None:
    """`response.completed` carries the whole response: metadata and tools may stand behind its usage."""
    response = {
        "usage": {"input_tokens": 1000, "output_tokens": 500},
        "metadata": {str(n): "x" * 500 for n in range(60)},
    }
    completed = b"event: response.completed\ndata: " + orjson.dumps(
        {"type": "response.completed", "response": response}
    )
    stage = bench(CREATED + TEXT, completed + b"\n\n")

    await stage.serve(stream=True, endpoint=RESPONSES)

    assert stage.account.usage is not None
    assert (stage.account.usage.input, stage.account.usage.output) == (1000, 500)
