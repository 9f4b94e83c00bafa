"""The pipeline: plan in order, one ledger, one account."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.core.errors import DeadlineExceeded, InternalError, NoTargetAvailable, TargetsTimedOut
from gateway.core.limits.limit_table import Limits
from gateway.core.render import OPENAI
from gateway.core.snapshot import Counting
from gateway.core.types import Endpoint, ErrorClass
from tests.rows import rows
from tests.support.flow import (
    ANSWER,
    RESPONSES,
    SPEECH,
    Bench,
    Broken,
    FakeClock,
    Script,
    ScriptedUpstream,
    failed,
    read_all,
    streamed,
    whole,
)

ERROR = b'{"error": {"message": "no", "type": "x", "param": null, "code": "y"}}'


def one(*scripts: Script) -> Bench:
    """A bench with a target for each script."""
    return Bench([ScriptedUpstream(script) for script in scripts])


async def test_an_answer_passes_with_its_exact_bytes() -> None:
    """What the provider sent is what the client gets, spaces and all."""
    bench = one(whole(ANSWER, 200, (b"x-ratelimit-limit-requests", b"60"), (b"set-cookie", b"a=b")))

    reply, body = await bench.serve()

    assert (reply.status, body) == (200, ANSWER)
    assert (b"x-ratelimit-limit-requests", b"60") in reply.headers
    assert b"set-cookie" not in dict(reply.headers)


LIMITS = (
    (b"x-ratelimit-limit-requests", b"60"),
    (b"x-ratelimit-limit-tokens", b"1000"),
    (b"x-ratelimit-remaining-requests", b"59"),
    (b"x-ratelimit-reset-requests", b"1s"),
    (b"anthropic-ratelimit-requests-limit", b"60"),
    (b"ratelimit", b"limit=60, remaining=59, reset=1"),
    (b"retry-after", b"3"),
)


def limits_in(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers about limits."""
    return {name: value for name, value in headers if b"ratelimit" in name or name == b"retry-after"}


@rows(
    ("others", "told"),
    [
        ([Limits(240, 9000)], {b"x-ratelimit-limit-requests": b"300", b"x-ratelimit-limit-tokens": b"10000"}),
        ([Limits(240)], {b"x-ratelimit-limit-requests": b"300"}),
        ([Limits(240, 9000), Limits(tokens_per_min=90_000)], {b"x-ratelimit-limit-tokens": b"100000"}),
        ([Limits()], {}),
    ],
)
@rows("is_fallback", [False, True])
async def test_limits_of_one_target_are_not_told_as_those_of_all(
    is_fallback: bool, others: list[Limits], told: dict[bytes, bytes]
) -> None:
    """Who paces calls by them would use one target alone: limits are told together, where all are known."""
    bench = Bench(
        [ScriptedUpstream(whole(ANSWER, 200, *LIMITS)), *[ScriptedUpstream(whole()) for _ in others]],
        limits=[Limits(), *others],
        counting=Counting(kind="openai"),
        fallbacks=len(others) * is_fallback,
    )

    reply, _ = await bench.serve()

    assert limits_in(reply.headers) == {**told, b"retry-after": b"3"}


async def test_a_model_with_one_target_tells_its_limits_as_they_came() -> None:
    """All of them."""
    reply, _ = await one(whole(ANSWER, 200, *LIMITS)).serve()

    assert limits_in(reply.headers) == dict(LIMITS)


@rows(("told", "passed"), [(b"7", b"7"), (b"Fri, 20 Nov 2026 12:00:30 GMT",) * 2, (b"30s", None)])
async def test_clients_get_no_time_that_they_cannot_read(told: bytes, passed: bytes | None) -> None:
    """But the gateway's own instead."""
    bench = one(failed(), whole(ERROR, 503, (b"retry-after", told)))

    reply, _ = await bench.serve()

    found = dict(reply.headers)[b"retry-after"]
    assert found == passed if passed is not None else found.isdigit()


async def test_the_body_goes_upstream_as_it_came() -> None:
    """Nothing is re-encoded on the way."""
    bench = one(whole())
    body = b'{ "model" : "m" , "messages":[] , "x":1.10 }'

    await bench.serve(body=body)

    assert bench.upstreams[0].sent[0].body == body


async def test_another_model_name_is_the_only_change() -> None:
    """The client's name for the model becomes the target's, every other byte stays."""
    bench = one(whole())

    await bench.serve(model_name="alias", body=b'{ "model" : "alias" , "messages":[] }')

    assert bench.upstreams[0].sent[0].body == b'{ "model" : "m" , "messages":[] }'


async def test_usage_and_cost_are_settled_once() -> None:
    """1000 tokens at $2 and 10 at $8 per million, one account."""
    bench = one(whole())

    await bench.serve()

    assert bench.account.outcome == "ok"
    assert bench.account.cost_usd == pytest.approx(1000 * 2e-6 + 10 * 8e-6)
    assert bench.account.usage is not None
    assert not bench.account.usage.estimated


UNREADABLE = {
    "empty": b"{}",
    "null": b"null",
    "text": b'"5 tokens"',
    "texts": b'{"prompt_tokens":"5","completion_tokens":"7"}',
    "negative": b'{"prompt_tokens":-5,"completion_tokens":-7}',
    "a total alone": b'{"total_tokens":99}',
    "zeros": b'{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}',
}


@pytest.mark.parametrize("usage", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_unreadable_usage_is_estimated_by_the_words_of_the_answer(usage: bytes) -> None:
    """Never billed as nothing, nor by the bytes of the JSON."""
    padding = b"y" * 50_000
    bench = one(
        whole(b'{"choices":[{"message":{"content":"%b"}}],"usage":%b,"x":"%b"}' % (b"FINE" * 9, usage, padding))
    )

    await bench.serve(body=b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * 400))

    assert bench.account.usage is not None
    assert (bench.account.usage.input, bench.account.usage.output, bench.account.usage.estimated) == (107, 9, True)
    assert bench.account.cost_usd == pytest.approx(107 * 2e-6 + 9 * 8e-6)


@rows(
    ("usage", "counts"),
    [
        (b'{"prompt_tokens":50,"completion_tokens":null}', (50, 9)),
        (b'{"prompt_tokens":-50,"completion_tokens":70}', (7, 70)),
    ],
)
async def test_the_number_that_is_not_told_is_estimated_alone(usage: bytes, counts: tuple[int, int]) -> None:
    """The other one stands."""
    bench = one(whole(b'{"choices":[{"message":{"content":"%b"}}],"usage":%b}' % (b"FINE" * 9, usage)))

    await bench.serve(body=b'{"model":"m","messages":[{"role":"user","content":""}]}')

    assert bench.account.usage is not None
    assert (bench.account.usage.input, bench.account.usage.output) == counts
    assert bench.account.usage.estimated


async def test_missing_usage_is_estimated_and_marked() -> None:
    """A provider that does not count leaves us with an estimate that says so."""
    bench = one(whole(b'{"choices": [{}]}'))

    await bench.serve()

    assert bench.account.usage is not None
    assert bench.account.usage.estimated


@pytest.mark.parametrize(
    "first",
    [
        failed(),
        failed(ErrorClass.TIMEOUT),
        whole(ERROR, 500),
        whole(ERROR, 503),
        whole(ERROR, 429),
        whole(ERROR, 529),
        whole(b"<html>bad gateway</html>", 502),
        whole(b"<html>fine?</html>", 200),
        whole(b"", 200),
        whole(ERROR, 777),
        Script(307, ((b"location", b"http://elsewhere/"),)),
        Script(chunks=[b'{"half": ', Broken("gone")]),
        streamed(b'data: {"error": {"message": "x", "code": "server_is_overloaded"}}\n\n'),
        streamed(),
        streamed(b": hello\n\n", Broken("gone")),
    ],
)
async def test_a_failure_before_the_first_byte_moves_on(first: Script) -> None:
    """Nothing has reached the client, so the next target may serve; the ledger tells both."""
    bench = one(first, whole())

    reply, body = await bench.serve()

    assert (reply.status, body) == (200, ANSWER)
    assert dict(reply.headers)[b"x-gateway-target"] == b"p1/m"
    assert dict(reply.headers)[b"x-gateway-attempts"].startswith(b"p0/m:")
    assert bench.account.outcome == "ok"


@pytest.mark.parametrize("status", [400, 403, 404, 413, 422])
async def test_a_fault_of_the_request_is_final(status: int) -> None:
    """What is wrong with the request is wrong everywhere: status and body pass, the next target is not asked."""
    bench = one(whole(ERROR, status), whole())

    reply, body = await bench.serve()

    assert (reply.status, body) == (status, ERROR)
    assert not bench.upstreams[1].sent


async def test_the_last_error_passes_when_every_target_failed() -> None:
    """An error that an OpenAI client can read is better than one of ours."""
    bench = one(failed(), whole(ERROR, 503, (b"retry-after", b"7")))

    reply, body = await bench.serve()

    assert (reply.status, body) == (503, ERROR)
    assert dict(reply.headers)[b"retry-after"] == b"7"
    assert bench.account.outcome == "overloaded"


async def test_no_readable_error_becomes_a_502_that_names_the_attempts() -> None:
    """A CDN's HTML page is not shown to a client that expects JSON."""
    bench = one(failed(), whole(b"<html>", 502))

    with pytest.raises(NoTargetAvailable, match=r"p0/m:connection.*p1/m:502") as caught:
        await bench.serve()

    assert caught.value.status == 502
    assert bench.account.outcome == "no_target_available"


async def test_a_last_timeout_becomes_a_504() -> None:
    """The client learns that it was time that ran out."""
    bench = one(failed(ErrorClass.TIMEOUT))

    with pytest.raises(TargetsTimedOut):
        await bench.serve()

    assert bench.account.status == 504


async def test_no_attempt_starts_after_the_deadline() -> None:
    """A call whose time is up costs no upstream call."""
    bench = one(whole())

    with pytest.raises(DeadlineExceeded):
        await bench.serve(deadline=bench.clock.now)

    assert not bench.upstreams[0].sent
    assert bench.account.outcome == "deadline_exceeded"


async def test_the_callers_deadline_bounds_the_first_byte() -> None:
    """With 2 s left, no provider is given 600 s to begin."""
    bench = one(whole())

    await bench.serve(deadline=bench.clock.now + 2, deadline_is_callers=True)

    assert bench.upstreams[0].sent[0].first_byte_s == pytest.approx(2)


async def test_a_lanes_deadline_does_not_bound_the_first_byte() -> None:
    """It is about starting; a reasoning model may then think for minutes."""
    bench = one(whole())

    await bench.serve(deadline=bench.clock.now + 2)

    assert bench.upstreams[0].sent[0].first_byte_s == 600


async def test_a_defect_is_a_500_with_an_account() -> None:
    """Even our own mistakes are answered in shape and settled."""
    bench = one(Script(chunks=[ZeroDivisionError()]))

    with pytest.raises(InternalError):
        await bench.serve()

    assert bench.account.outcome == "internal_error"


async def test_overhead_leaves_out_the_providers_time() -> None:
    """A provider's three seconds are not ours."""
    clock = FakeClock()
    script = Script(chunks=[lambda: clock.__setattr__("now", 1003.0), ANSWER])
    bench = Bench([ScriptedUpstream(script)], clock=clock)

    reply, _ = await bench.serve()

    assert float(dict(reply.headers)[b"x-gateway-overhead-ms"]) == 0
    assert bench.account.duration_s == pytest.approx(3)


async def test_the_request_id_is_the_clients_own_or_the_providers() -> None:
    """Who sent an id gets it back; who did not gets the provider's, for its support."""
    provider = (b"x-request-id", b"req_provider")

    own, _ = await one(whole(ANSWER, 200, provider)).serve(echo_request_id=True)
    other, _ = await one(whole(ANSWER, 200, provider)).serve()

    assert dict(own.headers)[b"x-request-id"] == b"req_1"
    assert dict(own.headers)[b"x-gateway-upstream-request-id"] == b"req_provider"
    assert dict(other.headers)[b"x-request-id"] == b"req_provider"


async def test_binary_answers_keep_their_length_and_bytes() -> None:
    """Audio is relayed as it comes; its length lets the client tell a short one."""
    audio = [b"\x00\x01" * 1000, b"\xff" * 500]
    script = Script(200, ((b"content-type", b"audio/wav"), (b"content-length", b"2500")), audio)

    reply, body = await one(script).serve(endpoint=SPEECH)

    assert body == b"".join(audio)
    assert dict(reply.headers)[b"content-length"] == b"2500"


async def test_an_oversized_json_answer_is_relayed() -> None:
    """Beyond the limit an answer is not held in memory, and still arrives whole with its usage."""
    parts = [b'{"data": "' + b"x" * 9_000_000, b"x" * 9_000_000, b'", "usage": {"prompt_tokens": 5}}']
    bench = one(Script(chunks=parts))

    reply, body = await bench.serve()

    assert reply.chunks is not None
    assert body == b"".join(parts)
    assert bench.account.usage is not None
    assert bench.account.usage.input == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling_anywhere_settles_once_and_closes_the_answer(stream: bool) -> None:
    """A client that leaves, at whichever await, costs one account and no open connection."""
    events = (
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b'data: {"choices":[{"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    )
    for turns in range(12):
        script = streamed(*events) if stream else whole()
        bench = one(failed(), script)
        task = asyncio.ensure_future(bench.serve(stream=stream))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task])

        if turns == 0:
            continue  # cancelled before it began: there is no call yet
        assert len(bench.meter.accounts) == 1
        assert bench.account.outcome == ("client_gone" if done.pop().cancelled() else "ok")
        assert script.closed or len(bench.upstreams[1].sent) == 0 or bench.account.call.attempts[-1].status is None


async def test_a_reply_closed_unread_is_settled_and_closed() -> None:
    """A client that leaves between the head and the first chunk leaks nothing."""
    script = streamed(b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n')
    bench = one(script)

    reply = await bench.pipeline.handle(bench.call(stream=True))
    await reply.close()

    assert script.closed
    assert bench.account.outcome == "client_gone"


async def test_nothing_is_read_ahead_of_the_client() -> None:
    """The next chunk is asked for when the last one has been taken: a slow reader slows its provider, nobody else."""
    reached: list[str] = []
    script = streamed(
        b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        b"data: {}\n\n",
        lambda: reached.append("third"),
        b"data: [DONE]\n\n",
    )
    bench = one(script)

    reply = await bench.pipeline.handle(bench.call(stream=True))
    assert reply.chunks is not None
    await anext(reply.chunks)
    await anext(reply.chunks)

    assert not reached
    assert (await read_all(reply)).endswith(b"data: [DONE]\n\n")
    await reply.close()


async def test_an_in_band_error_becomes_a_real_status_when_nobody_else_serves() -> None:
    """An error as the first event of a 200 is not a stream: SDKs get the status it should have had."""
    error = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}

    reply, body = await one(streamed(b"data: " + orjson.dumps({"error": error}) + b"\n\n")).serve(stream=True)

    assert reply.status == 400
    assert dict(reply.headers)[b"content-type"] == b"application/json"
    assert orjson.loads(body) == {"error": error}


async def test_an_error_object_in_a_200_is_no_success() -> None:
    """The next target is asked; with none left, the client gets the error with the status it should have had."""
    error = orjson.dumps({"error": {"message": "busy", "type": "overloaded_error", "code": None}})
    stage = Bench([ScriptedUpstream(whole(error)), ScriptedUpstream(whole())])

    reply, body = await stage.serve()
    alone, last = await one(whole(error)).serve()

    assert (reply.status, body) == (200, ANSWER)
    assert (alone.status, last) == (503, error)


async def test_a_response_that_tells_of_its_own_failure_is_an_answer() -> None:
    """The Responses API reports a failed run in a good answer; it passes as it came, unless another attempt may do better."""
    refused = orjson.dumps({"object": "response", "status": "failed", "error": {"code": "invalid_prompt"}})
    broken = orjson.dumps({"object": "response", "status": "failed", "error": {"code": "server_error"}})

    reply, body = await one(whole(refused)).serve(endpoint=RESPONSES)
    assert (reply.status, body) == (200, refused)

    _, body = await one(whole(broken), whole()).serve(endpoint=RESPONSES)
    assert body == ANSWER


async def test_pass_through_keeps_redirects_and_range_headers() -> None:
    """File content may be a redirect; it is the client's to follow."""
    files = Endpoint("passthrough", "", OPENAI, answer="binary", request="any")
    moved = Script(302, ((b"location", b"https://files.test/x"), (b"set-cookie", b"a=b"), (b"etag", b'"1"')))

    reply, _ = await one(moved).serve(endpoint=files, method="GET", path="/files/x/content", body=b"")

    assert reply.status == 302
    assert dict(reply.headers)[b"location"] == b"https://files.test/x"
    assert b"set-cookie" not in dict(reply.headers)


async def test_pictures_do_not_count_by_their_bytes() -> None:
    """A megabyte of base64 is no quarter of a million tokens."""
    bench = one(whole(b'{"choices": [{}]}'))
    url = b"data:image/png;base64," + b"A" * 1_000_000
    image = b'{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"%b"}}]}]}' % url

    await bench.serve(body=image)

    assert bench.account.usage is not None
    assert bench.account.usage.input < 1_000
