"""The service tier that an answer names is the one that is billed, wherever it stands and whatever was asked for."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.core.openai.usage import ABSURD, add_beside, find_requested_tier, find_usage
from gateway.core.types import Usage
from gateway.dialects.base import usage_of_answer
from gateway.products.batches.native.formats import read_answer
from tests.rows import rows
from tests.support.flow import CHAT, RATES, RESPONSES, Bench, Script, ScriptedUpstream, streamed, whole

RATES_BY_TIER = replace(RATES, by_tier={"flex": replace(RATES, input_usd=1e-6, output_usd=4e-6)})
ASKED = b'{"model":"m","messages":[],"service_tier":"flex"}'
USUAL_USD, FLEX_USD = 1000 * 2e-6 + 10 * 8e-6, 1000 * 1e-6 + 10 * 4e-6
CHAT_USAGE = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
RESPONSE_USAGE = {"input_tokens": 1000, "output_tokens": 10, "total_tokens": 1010}


def event(value: object) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(value)


def chat(tier: str | None, text: str = "FINE") -> Script:
    answer = {"id": "1", "choices": [{"message": {"content": text}}], "usage": CHAT_USAGE, "service_tier": tier}
    return whole(orjson.dumps(answer))


def chat_stream(tier: str | None) -> Script:
    head = {"id": "1", "object": "chat.completion.chunk", "service_tier": tier}
    return streamed(
        event({**head, "choices": [{"index": 0, "delta": {"content": "FINE"}}]}),
        event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        event({**head, "choices": [], "usage": CHAT_USAGE}),
        b"data: [DONE]\n\n",
    )


def response(tier: str | None) -> dict[str, object]:
    cheaper = {"service_tier": "flex"}
    said: dict[str, object] = {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output": [],
        "service_tier": tier,
    }
    return said | {"usage": RESPONSE_USAGE, "metadata": cheaper if tier != "flex" else {}}


def response_stream(tier: str | None) -> Script:
    begun = response("auto") | {"status": "in_progress", "usage": None}
    return streamed(
        event({"type": "response.created", "response": begun}),
        event({"type": "response.output_text.delta", "delta": "FINE"}),
        event({"type": "response.completed", "response": response(tier)}),
    )


async def cost_of(script: Script, **changes: object) -> float | None:
    bench = Bench([ScriptedUpstream(script)], rates=RATES_BY_TIER)
    await bench.serve(**changes)
    return bench.account.cost_usd


@pytest.mark.parametrize(
    ("tier", "usd"), [("flex", FLEX_USD), ("default", USUAL_USD), (None, USUAL_USD), ("odd", USUAL_USD)]
)
async def test_what_the_answer_names_is_billed(tier: str | None, usd: float) -> None:
    """Not what was asked for: a provider that has no room for it serves the call as usual."""
    assert await cost_of(chat(tier), body=ASKED) == pytest.approx(usd)
    assert await cost_of(chat_stream(tier), body=ASKED, stream=True) == pytest.approx(usd)
    answer = whole(orjson.dumps(response(tier)))
    assert await cost_of(answer, endpoint=RESPONSES, path="/responses") == pytest.approx(usd)
    assert await cost_of(response_stream(tier), endpoint=RESPONSES, path="/responses", stream=True) == pytest.approx(
        usd
    )


async def test_an_estimate_costs_what_the_tier_asked_for_does() -> None:
    """Of a stream that is left, and of an answer without usage."""
    text = event({"choices": [{"index": 0, "delta": {"content": "word" * 10}}]})
    untold = whole(orjson.dumps({"choices": [{"message": {"content": "word" * 10}, "finish_reason": "stop"}]}))
    bench = Bench([ScriptedUpstream(streamed(text, text), untold)], rates=RATES_BY_TIER)
    left = await bench.pipeline.handle(bench.call(stream=True, body=ASKED))
    assert left.chunks is not None
    await anext(left.chunks)
    await left.close()
    await bench.serve(body=ASKED)

    tokens = 3 * 1e-6 + 10 * 4e-6
    assert [account.cost_usd for account in bench.meter.accounts] == [pytest.approx(tokens)] * 2


async def test_a_tier_is_found_in_an_answer_that_is_not_parsed() -> None:
    """It is longer than what is parsed; what the caller wrote into it names no tier."""
    forged = '"service_tier":"priority"' + "x" * 3_000_000

    assert await cost_of(chat("flex", forged), endpoint=CHAT) == pytest.approx(FLEX_USD)


@rows(
    "tail, tier",
    [
        (b'{"usage":{"prompt_tokens":1},"service_tier":"flex"}', "flex"),
        (b'{"service_tier": "flex","usage":{"input_tokens":1},"metadata":{"service_tier":"priority"}}', "flex"),
        (b'{"choices":[{"text":"\\"service_tier\\":\\"flex\\""}],"usage":{"prompt_tokens":1}}', ""),
        (b'{"tools":[{"service_tier":{}}],"usage":{"prompt_tokens":1},"service_tier":null}', ""),
    ],
)
def test_a_tier_stands_in_no_text(tail: bytes, tier: str) -> None:
    usage = find_usage(tail)

    assert usage is not None
    assert usage.tier == tier


@rows(
    "word, tier",
    [("default", ""), ("on_demand", ""), ("ON_DEMAND_FLEX", "flex"), ("Priority", "priority"), (None, ""), (3, "")],
)
def test_the_usual_tier_is_none_wherever_its_word_stands(word: object, tier: str) -> None:
    """Whether the answer is converted, parsed or searched: Groq says `on_demand`."""
    answer = {"choices": [], "usage": {"prompt_tokens": 1000, "completion_tokens": 1}, "service_tier": word}
    converted, searched, parsed = usage_of_answer(answer), find_usage(orjson.dumps(answer)), Usage(1000, 1)
    add_beside(parsed, answer)

    assert converted is not None
    assert searched is not None
    assert (converted.tier, searched.tier, parsed.tier) == (tier, tier, tier)


SEARCHED = {"tool_usage": {"image_gen": {"input_tokens": 0}, "web_search": {"num_requests": 3}}}


def test_searches_that_no_call_can_have_made_cost_nothing() -> None:
    """And mark the usage, as other numbers do."""
    used = Usage(1, 1)
    add_beside(used, {"tool_usage": {"web_search": {"num_requests": 2**31}}})

    assert used == Usage(1, 1, estimated=True, doubt=ABSURD)


@pytest.mark.parametrize("padding", [0, 3_000_000])
@pytest.mark.parametrize("stream", [False, True])
async def test_searches_beside_the_usage_are_billed(stream: bool, padding: int) -> None:
    """OpenAI's Responses count them at the top of the response, whole and streamed, and in a line of a batch."""
    answer = {"output": [{"type": "message", "content": [{"text": "x" * padding}]}], **response("default"), **SEARCHED}
    script = (
        streamed(event({"type": "response.completed", "response": answer})) if stream else whole(orjson.dumps(answer))
    )
    stage = Bench([ScriptedUpstream(script)], rates=replace(RATES, search_usd=0.01))

    await stage.serve(endpoint=RESPONSES, path="/responses", stream=stream)

    assert stage.account.cost_usd == pytest.approx(USUAL_USD + 0.03)
    line = {"custom_id": "x1", "response": {"status_code": 200, "body": answer}}
    read = read_answer(orjson.dumps(line), "x")
    assert read is not None
    assert read.usage == stage.account.usage


@rows(
    "body, tier",
    [
        (b'{"model":"m","service_tier" : "priority"}', "priority"),
        (b'{"contents":[],"serviceTier":"PRIORITY"}', "priority"),
        (b'{"serviceTier":{"type":"priority"}}', "priority"),
        (b'{"messages":[],"speed":"fast"}', "fast"),
        (b'{"messages":[{"content":"\\"service_tier\\":\\"flex\\""}],"speed":1.5}', ""),
        (b'{"service_tier":null}', ""),
        (b"", ""),
    ],
)
def test_the_tier_that_a_request_asks_for_is_known_in_every_language(body: bytes, tier: str) -> None:
    """What is reserved may have to be more for it."""
    assert find_requested_tier(body) == tier
