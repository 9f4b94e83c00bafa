"""What a conversion costs: of an event, of a request, of a whole answer; what is lost in one, and a signature of AWS's.

Each is CPU time of one thread, the best of some rounds. Bars are for a quiet machine, and for an interpreter that was built to
be fast: elsewhere they are wider by what that takes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

import orjson
import pytest

from gateway import process
from gateway.credentials.aws import SigV4, hash_of
from gateway.credentials.fetch import AwsKeys
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint
from tests.soak.conftest import Report
from tests.soak.language_streams import STREAMS
from tests.soak.languages import MODELS, ROUNDS, TARGETS, TURNS, WORDS, Json, Way, conversation, cost_us, way

pytestmark = pytest.mark.soak

SLOWER = 1.0 if process.doubt() is None else 1.33
"""An interpreter without optimisations takes a third more."""
TEXT_US, DELTA_US, TWO_STEPS_US, CALL_US = 5.0, 8.0, 10.0, 30.0
"""The last one is for a call that comes whole, in one event, and goes out in several, over two conversions; it has no bar."""
REQUEST_US, US_PER_KB, DEARER = 300.0, 10.0, 2.5
"""Two conversions may cost so many times as much, and so may those of Gemini's callers, whose parts are looked at for names;
for Bedrock, a third more: the bar is that of Anthropic's."""
ANSWER_US, SIGNATURE_US = 25.0, 15.0
GAPS_US, MESSAGE_GAPS_US = 20.0, 0.6
"""Of a short conversation, and of each message more of a long one: each of them is looked at. Through two conversions they
are as dear as the first of the two."""
EVENTS = 1000
LARGE_BYTES, MOST_WAIT_S = 1_500_000, 0.1
ANSWERS: dict[str, Json] = {
    "messages": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",
        "stop_sequence": None, "content": [{"type": "text", "text": WORDS * 13}],
        "usage": {"input_tokens": 25, "output_tokens": 200},
    },
    "generate": {
        "candidates": [{"content": {"role": "model", "parts": [{"text": WORDS * 13}]}, "finishReason": "STOP"}],
        "usageMetadata": {"promptTokenCount": 25, "candidatesTokenCount": 200, "totalTokenCount": 225},
        "modelVersion": "gemini", "responseId": "abc",
    },
    "converse": {
        "output": {"message": {"role": "assistant", "content": [{"text": WORDS * 13}]}}, "stopReason": "end_turn",
        "usage": {"inputTokens": 25, "outputTokens": 200, "totalTokens": 225}, "metrics": {"latencyMs": 9},
    },
    "chat": {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_760_000_000, "model": "gpt-5.9",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": WORDS * 13}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 25, "completion_tokens": 200, "total_tokens": 225},
    },
}  # fmt: skip
"""Whole answers of 1 KB, by language."""
FROM_CHAT = [("chat", spoken) for spoken in ("messages", "generate", "converse")]
INTO_CHAT = [("messages", "chat"), ("generate", "chat")]
TWO_STEPS = [("messages", "generate"), ("messages", "converse"), ("generate", "messages")]


def event_us(asked: str, spoken: str, kind: str) -> float:
    """What the reader takes for an event, over what it would be to pass it on as it is: nothing."""
    one = way(asked, spoken)
    sent = one.converted(conversation(asked, 8, 2000, stream=True))
    start, delta = STREAMS[spoken][kind]
    best = float("inf")
    for _ in range(ROUNDS):
        reader = one.pair.reader(sent)
        for event in start:
            reader.feed(event)
        reader.feed(delta)
        feed = reader.feed
        started = time.thread_time_ns()
        for _ in range(EVENTS):
            feed(delta)
        best = min(best, (time.thread_time_ns() - started) / EVENTS / 1000)
    return best


@pytest.mark.parametrize(("asked", "spoken"), [*FROM_CHAT, *INTO_CHAT, *TWO_STEPS])
def test_an_event(asked: str, spoken: str, report: Report) -> None:
    """Of text, of a tool's arguments, of a thought."""
    found = {kind: event_us(asked, spoken, kind) for kind in STREAMS[spoken]}
    is_two = (asked, spoken) in TWO_STEPS
    bars = {"text": TEXT_US, "call": DELTA_US} if not is_two else {"text": TWO_STEPS_US, "call": CALL_US}
    report(f"an event {spoken} -> {asked}: " + ", ".join(f"{kind} {cost:.1f} us" for kind, cost in found.items()))
    for kind, cost in found.items():
        assert cost <= SLOWER * bars.get(kind, TWO_STEPS_US if is_two else DELTA_US), kind


@pytest.mark.parametrize(
    ("asked", "spoken"), [*FROM_CHAT, ("chat", "responses"), *INTO_CHAT, *TWO_STEPS, ("responses", "messages")]
)
def test_a_request_of_a_hundred_turns(asked: str, spoken: str, report: Report) -> None:
    """30 KB with 25 rounds of tools, from bytes to bytes; one of four and of sixteen times as much costs as many times more."""
    one = way(asked, spoken)
    costs = []
    for times in (1, 4, 16):
        given = orjson.dumps({**conversation(asked, TURNS * times, 30_000 * times), "model": one.model})
        costs.append((cost_us(_converting(one, given), 50 // times), len(given) / 1000))
    told = ", ".join(f"{kb:.0f} KB in {cost:.0f} us" for cost, kb in costs)
    report(f"a request {asked} -> {spoken}: {told} ({costs[-1][0] / costs[-1][1]:.1f} us/KB)")
    is_two = "chat" not in (asked, spoken)
    dearer = DEARER if is_two or asked == "generate" else 4 / 3 if spoken == "converse" else 1.0
    assert costs[0][0] <= SLOWER * REQUEST_US * dearer
    (first, kb), (last, more_kb) = costs[0], costs[-1]
    assert last / first <= 1.5 * more_kb / kb, "it is not linear"
    assert last / more_kb <= SLOWER * US_PER_KB * dearer


def _converting(one: Way, given: bytes) -> Callable[[], object]:
    return lambda: one.pair.request(given, one.facts, 1.7e9, lambda: "abc")


@pytest.mark.parametrize(("asked", "spoken"), [*FROM_CHAT, *INTO_CHAT])
def test_a_whole_answer_of_1_kb(asked: str, spoken: str, report: Report) -> None:
    """From bytes to bytes."""
    one = way(asked, spoken)
    sent = one.converted(conversation(asked, 8, 2000))
    body = orjson.dumps(ANSWERS[spoken])
    assert 950 <= len(body) <= 1350
    cost = cost_us(lambda: one.pair.answer(sent, body), 500)
    report(f"an answer {spoken} -> {asked}: {cost:.1f} us")
    assert cost <= SLOWER * ANSWER_US


@pytest.mark.parametrize(("asked", "spoken"), [*FROM_CHAT, ("chat", "responses"), *INTO_CHAT, *TWO_STEPS])
def test_what_is_lost(asked: str, spoken: str, report: Report) -> None:
    """As it is looked for before a call goes out."""
    dialect, model = TARGETS[spoken]
    find = gaps_by_endpoint(TargetLanguages(dialect, frozenset((spoken,)), dialect, MODELS.of), model)[asked]
    bodies = {turns: conversation(asked, turns, 300 * turns) for turns in (4, TURNS, 10 * TURNS)}
    costs = {turns: cost_us(partial(find, body), 4000 // turns) for turns, body in bodies.items()}
    each = (costs[10 * TURNS] - costs[TURNS]) / (9 * TURNS)
    told = ", ".join(f"{turns} turns {cost:.0f} us" for turns, cost in costs.items())
    report(f"what is lost {asked} -> {spoken}: {told} ({each:.2f} us a turn)")
    is_two = "chat" not in (asked, spoken)
    dearer = 5 if is_two or spoken == "converse" else 1.5 if asked == "generate" else 1
    assert costs[4] <= SLOWER * GAPS_US * dearer
    assert each <= SLOWER * MESSAGE_GAPS_US * (8 if is_two else 2 if asked == "generate" else 1)


def test_a_signature_of_awss(report: Report) -> None:
    """With a body of 2 KB, in the second of the one before and in the next one."""
    signer, keys = (
        SigV4("us-east-1", "bedrock"),
        AwsKeys("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "t" * 400),
    )
    said = ((b"content-type", b"application/json"), (b"host", b"bedrock-runtime.us-east-1.amazonaws.com"))
    target, body, now = b"/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse", b"x" * 2000, [1.7e9]

    def sign(step_s: float) -> object:
        now[0] += step_s
        return signer.headers(keys, "POST", target, said, hash_of(body), now[0])

    same, new = cost_us(lambda: sign(0.0), 2000), cost_us(lambda: sign(1.0), 2000)
    report(f"a signature: {same:.1f} us, the first of a second {new:.1f} us")
    assert max(same, new) <= SLOWER * SIGNATURE_US


async def test_a_large_request_does_not_keep_others_waiting(report: Report) -> None:
    """It is converted in a thread, whose turns are short."""
    one = way("chat", "messages")
    turns = 5000
    given = orjson.dumps({**conversation("chat", turns, LARGE_BYTES), "model": one.model})
    waits = [0.0]

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            waits.append(time.perf_counter() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.05)
    started = time.perf_counter()
    await asyncio.to_thread(_converting(one, given))
    took = time.perf_counter() - started
    watching.cancel()
    report(
        f"a request of {len(given) / 1e6:.1f} MB: {took * 1000:.0f} ms, others wait {max(waits) * 1000:.0f} ms at most"
    )
    assert max(waits) <= MOST_WAIT_S
