"""Usage that no call can have had is billed by an estimate, and marked, on every way that an answer may take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import orjson
import pytest

from gateway.core.openai.usage import ABSURD, LONGEST_ANSWER
from gateway.core.request_fields import peek
from gateway.core.retry import Attempt
from gateway.core.snapshot import Key
from tests.core.test_hedge import Track, turns
from tests.features.output.test_repaired_calls import BAD, GOOD, RULE, answer, bench_of
from tests.support.flow import CHAT, RESPONSES, Bench, Script, ScriptedUpstream, streamed, whole

TEXT = "FINE" * 9
BODY = b'{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 400)
TWICE = BODY.replace(b'"max_tokens":100', b'"max_tokens":100,"n":2')
READ = 107
"""The input as admission estimates it."""
SPENT_USD = READ * 2e-6 + 9 * 8e-6
ABSURD_COUNTS = [(2**31, 2**31), (2**31, 9), (READ, 16_000_000)]


def bench(*scripts: Script, **options: object) -> Bench:
    return Bench([ScriptedUpstream(*scripts)], **options)  # type: ignore[arg-type]  # fields by name


def events(used: tuple[int, int]) -> Script:
    told = {"choices": [], "usage": {"prompt_tokens": used[0], "completion_tokens": used[1]}}
    said = [{"choices": [{"index": 0, "delta": {"content": TEXT}, "finish_reason": "stop"}]}, told]
    return streamed(*(b"data: %b\n\n" % orjson.dumps(one) for one in said), b"data: [DONE]\n\n")


@pytest.mark.parametrize("used", ABSURD_COUNTS)
@pytest.mark.parametrize("make", [lambda used: whole(answer(TEXT, used=used)), events])
async def test_an_absurd_number_is_estimated_by_request_and_answer(
    make: Callable[[tuple[int, int]], Script], used: tuple[int, int]
) -> None:
    """2^31 tokens of each kind would be $21,475, and 16 million for `max_tokens: 100` $128."""
    stage = bench(make(used))

    await stage.serve(body=BODY, max_tokens=100, stream=make is events)

    usage = stage.account.usage
    assert usage is not None
    assert (usage.output, usage.estimated, usage.doubt) == (9, True, ABSURD)
    assert stage.account.cost_usd == pytest.approx(SPENT_USD)


@pytest.mark.parametrize(
    ("body", "output", "is_believed"),
    [
        (BODY, 100 + LONGEST_ANSWER, True),
        (BODY, 101 + LONGEST_ANSWER, False),
        (TWICE, 200 + 2 * LONGEST_ANSWER, True),
        (TWICE, 201 + 2 * LONGEST_ANSWER, False),
        (BODY.replace(b'"max_tokens":100,', b""), 1_000_000, True),
    ],
)
async def test_reasoning_may_exceed_the_bound_of_the_output(body: bytes, output: int, is_believed: bool) -> None:
    """Some providers do not count it against `max_tokens`; without a bound, the provider's word holds."""
    stage = bench(whole(answer(TEXT, used=(110, output))))

    await stage.serve(body=body, max_tokens=peek(CHAT, body, {}).max_tokens)

    usage = stage.account.usage
    assert usage is not None
    assert (usage.output == output, usage.doubt == "") == (is_believed, is_believed)


async def test_an_answer_that_breaks_its_schema_costs_no_more() -> None:
    """Nor does the next one, nor do both together in what is told of the call."""
    stage = bench_of(whole(answer(BAD, used=(2**31, 2**31))), whole(answer(GOOD, used=(100, 16_000_000))))

    await stage.serve(output=replace(RULE, retry=1), body=BODY, max_tokens=100)

    assert stage.account.retries_usd == pytest.approx(READ * 2e-6 + 5 * 8e-6)
    assert stage.account.estimated_retries_usd == stage.account.retries_usd
    assert stage.account.cost_usd == pytest.approx(100 * 2e-6 + 3 * 8e-6)
    assert stage.account.call.usage is not None
    assert stage.account.call.usage.output == 5 + 3


@pytest.mark.parametrize(
    ("told", "usd"),
    [
        (answer(TEXT, used=(2**31, 16_000_000)), SPENT_USD),
        (answer(TEXT, used=(110, 0)), 110 * 2e-6 + 9 * 8e-6),
        (answer(TEXT, used=(110, 12)), 110 * 2e-6 + 12 * 8e-6),
    ],
)
async def test_the_loser_of_a_hedge_costs_what_its_answer_tells(told: bytes, usd: float) -> None:
    """What it does not tell, or cannot have used, is estimated by its answer."""
    track = Track()
    serving = await track.begin(body=BODY, max_tokens=100)
    await track.late()
    for wire in track.wires:  # both answers come in one turn of the loop: one is not needed
        wire.answer(body=told)
    await turns()
    await serving

    loser: Attempt = next(one for one in track.ledger if one.error_class is not None)
    assert loser.cost_usd == pytest.approx(usd)
    assert loser.is_cost_reported == (told == answer(TEXT, used=(110, 12)))


async def test_a_response_in_the_background_stays_charged_with_what_was_reserved() -> None:
    """Until an answer tells what it can have used."""
    key = Key("team", "team", b"", budget_usd_per_day=1000.0)
    begun = b'{"id":"resp_1","object":"response","status":"queued","usage":null}'
    stage = bench(whole(begun), keys=[key])
    call = stage.call(
        endpoint=RESPONSES, path="/responses", key=key, body=b'{"model":"m","background":true}', max_tokens=100
    )
    await stage.pipeline.handle(call)
    spent = stage.admission.budgets._spent
    reserved_usd = spent("team")
    assert reserved_usd > 0

    for output, usd in ((2**31, reserved_usd), (16_000_000, reserved_usd), (50, 10 * 2e-6 + 50 * 8e-6)):
        shown = begun.replace(b"queued", b"completed").replace(
            b"null", b'{"input_tokens":10,"output_tokens":%d}' % output
        )
        stage.products.deferred.shown(replace(call, method="GET", path="/responses/resp_1"), shown)
        assert spent("team") == pytest.approx(usd)
