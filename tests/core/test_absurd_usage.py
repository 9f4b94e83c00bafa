"""Usage that no call can have had is billed by an estimate, and marked, on every way that an answer may take."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from gateway.core.openai.usage import ABSURD, LONGEST_ANSWER
from gateway.core.request_fields import peek
from gateway.core.retry import Attempt
from tests.core.test_hedge import Track, turns
from tests.support.flow import CHAT, Bench, Script, ScriptedUpstream, streamed, whole

TEXT = "FINE" * 9
BODY = b'{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"%b"}]}' % (b"x" * 400)
TWICE = BODY.replace(b'"max_tokens":100', b'"max_tokens":100,"n":2')
READ = 107
"""The input as admission estimates it."""
SPENT_USD = READ * 2e-6 + 9 * 8e-6
ABSURD_COUNTS = [(2**31, 2**31), (2**31, 9), (READ, 16_000_000)]


def bench(*scripts: Script, **options: object) -> Bench:
    return Bench([ScriptedUpstream(*scripts)], **options)  # type: ignore[arg-type]  # fields by name


def answer(text: str, used: tuple[int, int]) -> bytes:
    """A chat completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": used[0], "completion_tokens": used[1], "total_tokens": sum(used)}
    return orjson.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage})


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
