"""What a call has used is the same whole, streamed and in a batch, told or estimated, in every caller's language."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.call import CallRecord
from gateway.core.ledger import usage_usd
from gateway.core.openai.transcript import usage_in
from gateway.core.openai.usage import read_usage
from gateway.core.snapshot import Rates
from gateway.core.types import Usage
from gateway.dialects.known import PricedModel
from gateway.products.batches.native.formats import read_answer, read_result
from gateway.products.batches.native.lines import batch_usd
from tests.dialects.aws_frames import event as frame
from tests.dialects.ways import CALLERS, Json, Ways, sse, stream_of
from tests.support.flow import JSON, Script

TEXT: Final = "FINE" * 9
_SHORT: Final = Rates(
    *(2.0, 8.0, 0.2, 2.5, 4.0, 30.0, 60.0, 3.0),
    image_output_usd=40.0,
    search_usd=0.5,
    audio_second_usd=0.125,
    request_usd=0.25,
)
_LONG: Final = replace(_SHORT, input_usd=4.0, output_usd=12.0, cached_input_usd=0.4)
_PRIORITY: Final = replace(_SHORT, output_usd=16.0, above=((200_000, replace(_LONG, output_usd=24.0)),))
RATES: Final = replace(_SHORT, above=((200_000, _LONG),), by_tier={"priority": _PRIORITY})
"""With prices for all that a usage may have: lengths, tiers, sound, pictures, searches, caches."""
SPOKEN: Final = ("chat", "responses", "messages", "generate", "converse")

# --- how each provider's language says it ---

_MESSAGE: Final = {"id": "msg_1", "type": "message", "role": "assistant", "model": "c", "stop_sequence": None}
_CHUNK: Final = {"id": "c", "model": "g", "object": "chat.completion.chunk", "created": 1}
_RESPONSE: Final = {"id": "resp_1", "object": "response", "model": "g", "created_at": 1}
_ITEM: Final = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": TEXT, "annotations": [], "logprobs": []}],
}  # fmt: skip
_OF_THE_END: Final = ("output_tokens", "output_tokens_details", "iterations", "server_tool_use")


def whole(spoken: str, told: Any) -> Json:
    """Return an answer with this usage."""
    if spoken == "chat":
        choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        return {"id": "c", "model": "g", "created": 1, "choices": [choice], "usage": told}
    if spoken == "responses":
        return {**_RESPONSE, "status": "completed", "output": [_ITEM], "usage": told}
    if spoken == "messages":
        return {**_MESSAGE, "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "usage": told}
    if spoken == "generate":
        parts = [{"text": TEXT}]
        ended = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        return {"candidates": [ended], "usageMetadata": told}
    message = {"role": "assistant", "content": [{"text": TEXT}]}
    return {"output": {"message": message}, "stopReason": "end_turn", "usage": told}


def streamed(spoken: str, told: Any) -> list[bytes]:
    """Return the events of the same answer."""
    if spoken == "chat":
        said = [({"role": "assistant", "content": ""}, None), ({"content": TEXT}, None), ({}, "stop")]
        chunks = [{**_CHUNK, "choices": [{"index": 0, "delta": one, "finish_reason": end}]} for one, end in said]
        return sse(*chunks, {**_CHUNK, "choices": [], "usage": told}, "[DONE]")
    if spoken == "responses":
        return sse(
            {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**_ITEM, "content": []}},
            {
                "type": "response.output_text.delta",
                "output_index": 0,
                "content_index": 0,
                "item_id": "m",
                "delta": TEXT,
            },
            {"type": "response.output_item.done", "output_index": 0, "item": _ITEM},
            {"type": "response.completed", "response": whole("responses", told)},
            named=True,
        )
    if spoken == "messages":
        begun, ended = told, told
        if (
            isinstance(told, dict) and type(told.get("input_tokens")) is int and told["input_tokens"] >= 0
        ):  # told at the start
            begun = {name: value for name, value in told.items() if name not in _OF_THE_END} | {"output_tokens": 1}
            ended = {name: value for name, value in told.items() if name in _OF_THE_END}
        return sse(
            {"type": "message_start", "message": {**_MESSAGE, "content": [], "stop_reason": None, "usage": begun}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": ended},
            {"type": "message_stop"},
            named=True,
        )
    if spoken == "generate":
        begun = {"candidates": [{"content": {"role": "model", "parts": [{"text": TEXT}]}, "index": 0}]}
        ended = {"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}
        return sse(begun, {"candidates": [ended], "usageMetadata": told}, end=b"\r\n\r\n")
    return [
        frame("messageStart", {"role": "assistant"}),
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": TEXT}}),
        frame("contentBlockStop", {"contentBlockIndex": 0}),
        frame("messageStop", {"stopReason": "end_turn"}),
        frame("metadata", {"usage": told}),
    ]


async def settled(asked: str, spoken: str, told: Any, *, stream: bool) -> tuple[CallRecord, bytes]:
    """Return the account of a call and what its caller got."""
    script = (
        stream_of(spoken, *streamed(spoken, told))
        if stream
        else Script(200, (JSON,), [orjson.dumps(whole(spoken, told))])
    )
    bench = Ways([spoken], [script], rates=RATES)
    asking = bench.asking(asked, stream=stream)
    _, body = await bench.serve(**asking, parsed=orjson.loads(asking["body"]))
    return bench.account, body


async def left(asked: str, spoken: str, told: Any) -> CallRecord:
    """Return the account of a stream whose client leaves behind the event that told the usage, before it has ended."""
    events = streamed(spoken, told)
    events = events[:-1] if spoken in ("chat", "messages") else events
    bench = Ways([spoken], [stream_of(spoken, *events, asyncio.Event())], rates=RATES)
    asking = bench.asking(asked)
    reply = await bench.pipeline.handle(bench.call(**asking, parsed=orjson.loads(asking["body"])))

    async def read() -> None:
        assert reply.chunks is not None
        async for _ in reply.chunks:
            pass

    reading = asyncio.create_task(read())
    for _ in range(40):  # by then it has all that comes
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    await reply.close()
    return bench.account


# --- random usage of each provider's shape ---

COUNT: Final = st.integers(0, 200_000)
FEW: Final = st.integers(0, 900)
SAID: Final = 20
"""The output is not less than the answer is estimated at: of a stream that is left, the larger one counts."""
NOT: Final = st.none()


@st.composite
def of_chat(draw: st.DrawFn) -> Json:
    """OpenAI's, xAI's, Moonshot's, DeepSeek's, Mistral's."""
    came, went = draw(COUNT) + 1, draw(COUNT) + SAID
    reasoning = draw(st.integers(0, went))
    told: Json = {"prompt_tokens": came, "completion_tokens": went, "total_tokens": came + went}
    if draw(st.booleans()):  # beside the completion
        told |= {"completion_tokens": went, "total_tokens": came + went + reasoning}
    cached = draw(st.integers(0, came))
    where = draw(st.sampled_from(["details", "cached_tokens", "prompt_cache_hit_tokens"]))
    details: Json = {
        "audio_tokens": draw(st.integers(0, came)),
        "image_tokens": draw(FEW),
        "cache_write_tokens": draw(FEW),
    }
    if where == "details":
        details["cached_tokens"] = cached
    else:
        told[where] = cached
    told["prompt_tokens_details"] = draw(st.one_of(NOT, st.just(details)))
    made = {"reasoning_tokens": reasoning, "audio_tokens": draw(st.integers(0, went))}
    told["completion_tokens_details"] = draw(st.one_of(NOT, st.just(made)))
    if draw(st.booleans()):  # Voxtral, which hears
        told["prompt_audio_seconds"] = draw(FEW)
    return told


@st.composite
def of_responses(draw: st.DrawFn) -> Json:
    came, went = draw(COUNT) + 1, draw(COUNT) + SAID
    return {
        "input_tokens": came,
        "input_tokens_details": {"cached_tokens": draw(st.integers(0, came)), "cache_write_tokens": draw(FEW)},
        "output_tokens": went,
        "output_tokens_details": {"reasoning_tokens": draw(st.integers(0, went))},
        "total_tokens": came + went,
    }


@st.composite
def of_messages(draw: st.DrawFn) -> Json:
    written, went = draw(COUNT), draw(COUNT) + SAID
    told: Json = {
        "input_tokens": draw(COUNT) + 1,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": draw(COUNT),
        "output_tokens": went,
        "service_tier": draw(st.sampled_from(["standard", "priority"])),
    }
    if draw(st.booleans()):
        hourly = draw(st.integers(0, written))
        told["cache_creation"] = {"ephemeral_5m_input_tokens": written - hourly, "ephemeral_1h_input_tokens": hourly}
    if draw(st.booleans()):
        told["output_tokens_details"] = {"thinking_tokens": draw(st.integers(0, went))}
    if draw(st.booleans()):
        told["server_tool_use"] = {"web_search_requests": draw(FEW), "web_fetch_requests": 0}
    if draw(st.booleans()):
        step = {"input_tokens": draw(COUNT), "output_tokens": draw(FEW), "cache_read_input_tokens": draw(FEW)}
        told["iterations"] = [
            {"type": "compaction", **step},
            {"type": "message", "input_tokens": 7, "output_tokens": 3},
        ]
    return told


@st.composite
def of_generate(draw: st.DrawFn) -> Json:
    seen, heard, rest, tools = draw(FEW), draw(FEW), draw(COUNT) + 1, draw(FEW)
    drawn, said, thought = draw(FEW), draw(COUNT) + SAID, draw(FEW)
    came, went = seen + heard + rest, drawn + said
    kept = {
        "TEXT": draw(st.integers(0, rest)),
        "IMAGE": draw(st.integers(0, seen)),
        "AUDIO": draw(st.integers(0, heard)),
    }
    return {
        "promptTokenCount": came,
        "toolUsePromptTokenCount": tools,
        "candidatesTokenCount": went,
        "thoughtsTokenCount": thought,
        "totalTokenCount": came + tools + went + thought,
        "cachedContentTokenCount": sum(kept.values()),
        "cacheTokensDetails": [{"modality": kind, "tokenCount": count} for kind, count in kept.items()],
        "promptTokensDetails": [
            {"modality": "TEXT", "tokenCount": rest},
            {"modality": "IMAGE", "tokenCount": seen},
            {"modality": "AUDIO", "tokenCount": heard},
        ],
        "candidatesTokensDetails": [
            {"modality": "IMAGE", "tokenCount": drawn},
            {"modality": "TEXT", "tokenCount": said},
        ],
    }


@st.composite
def of_converse(draw: st.DrawFn) -> Json:
    came, went, written = draw(COUNT) + 1, draw(COUNT) + SAID, draw(COUNT)
    return {
        "inputTokens": came,
        "outputTokens": went,
        "totalTokens": came + went,
        "cacheReadInputTokens": draw(COUNT),
        "cacheWriteInputTokens": written,
        "cacheDetails": [{"ttl": "1h", "inputTokens": draw(st.integers(0, written))}],
    }


TOLD: Final[Mapping[str, st.SearchStrategy[Json]]] = {
    "chat": of_chat(),
    "responses": of_responses(),
    "messages": of_messages(),
    "generate": of_generate(),
    "converse": of_converse(),
}


@settings(deadline=None, derandomize=True, max_examples=6)
@pytest.mark.parametrize("spoken", SPOKEN)
@given(data=st.data())
def test_a_usage_is_billed_alike_in_every_language_whole_streamed_and_left(spoken: str, data: st.DataObject) -> None:
    """To the cent, and as a caller of each language is told."""
    told = data.draw(TOLD[spoken])
    usage = read_usage(told)
    assert usage is not None
    usd = usage_usd(RATES, usage)

    async def story() -> None:
        for asked in CALLERS:
            first, body = await settled(asked, spoken, told, stream=False)
            second, _ = await settled(asked, spoken, told, stream=True)
            assert (first.usage, second.usage) == (usage, usage), (asked, told)
            third = await left(asked, spoken, told)
            assert third.usage == usage, (asked, told)
            assert first.cost_usd == second.cost_usd == third.cost_usd == usd
            shown = usage_in(orjson.loads(body))
            assert shown is not None
            assert read_usage(shown) == usage, asked

    asyncio.run(story())


def _line(body: Json) -> Usage | None:
    line = {"custom_id": "batch_req_x000001", "response": {"status_code": 200, "body": body}}
    answer = read_answer(orjson.dumps(line), "batch_req_x")
    assert answer is not None
    return answer.usage


def _result(body: Json) -> Usage | None:
    line = {"custom_id": "batch_req_x000001", "result": {"type": "succeeded", "message": body}}
    answer = read_result(orjson.dumps(line), "batch_req_x")
    assert answer is not None
    return answer.usage


BATCH_LINES: Final[Mapping[str, Callable[[Json], Usage | None]]] = {
    "chat": _line,
    "responses": _line,
    "messages": _result,
}


@settings(deadline=None, derandomize=True, max_examples=30)
@pytest.mark.parametrize("spoken", BATCH_LINES)
@given(data=st.data())
def test_a_usage_is_billed_alike_in_a_line_of_a_providers_batch(spoken: str, data: st.DataObject) -> None:
    """At half of the usual price, for which its lines are processed whatever tier they name."""
    told = data.draw(TOLD[spoken])
    usage, in_line = read_usage(told), BATCH_LINES[spoken](whole(spoken, told))

    assert usage is not None
    assert in_line == usage
    assert batch_usd(RATES, in_line, 0.5) == pytest.approx((usage_usd(RATES, replace(usage, tier="")) or 0.0) / 2)


# --- against the price list's own reading and calculation ---

NOW: Final = datetime(2026, 11, 29, 12, tzinfo=UTC)


def _beside(told: Json) -> Json:
    """As xAI counts: the list adds reasoning in any case."""
    details = told.get("completion_tokens_details") or {}
    told = {name: value for name, value in told.items() if name not in ("cached_tokens", "prompt_cache_hit_tokens")}
    total = told["prompt_tokens"] + told["completion_tokens"] + details.get("reasoning_tokens", 0)
    return told | {"total_tokens": total, "prompt_tokens_details": None}


def _openais(told: Json) -> Json:
    """As OpenAI counts, with parts that are parts."""
    told = {name: value for name, value in told.items() if name not in ("cached_tokens", "prompt_cache_hit_tokens")}
    details = told["prompt_tokens_details"]
    if details:  # what was cached is text, so the list and we agree on what is sound
        sound = min(details["audio_tokens"], told["prompt_tokens"])
        details = {
            "audio_tokens": sound,
            "cached_tokens": min(details.get("cached_tokens", 0), told["prompt_tokens"] - sound),
        }
    total = told["prompt_tokens"] + told["completion_tokens"]
    return told | {"total_tokens": total, "prompt_tokens_details": details}


def _once(told: Json) -> Json:
    """Of one step, at the usual tier: the list does not know of others."""
    return {name: value for name, value in told.items() if name not in ("iterations", "service_tier")}


LISTED: Final[Mapping[str, tuple[str, str, str, str, Callable[[Json], Json]]]] = {
    "OpenAI": ("chat", "openai", "chat", "gpt-5", _openais),
    "OpenAI, sound": ("chat", "openai", "chat", "gpt-4o-audio-preview", _openais),
    "OpenAI, responses": ("responses", "openai", "responses", "gpt-5", dict),
    "xAI": ("chat", "x-ai", "chat", "grok-3-mini", _beside),
    "Anthropic": ("messages", "anthropic", "default", "claude-sonnet-4-5", _once),
    "Gemini": ("generate", "google", "default", "gemini-2.5-flash", dict),
    "Gemini, pictures": ("generate", "google", "default", "gemini-3-pro-image-preview", dict),
    "Bedrock": ("converse", "aws", "default", "global.anthropic.claude-sonnet-4-5-20250929-v1:0", dict),
}
"""The provider's language and name in the list, its way to read usage there, a model, and the usages of which both know."""


@settings(deadline=None, derandomize=True, max_examples=20)
@pytest.mark.parametrize("name", LISTED)
@given(data=st.data())
def test_a_usage_costs_what_the_price_list_reads_and_calculates(name: str, data: st.DataObject) -> None:
    """By its own reading of the same answer, and its own price."""
    spoken, provider, flavor, model_id, known = LISTED[name]
    told = known(data.draw(TOLD[spoken]))
    usage = read_usage(told)
    seller = next(one for one in get_snapshot().providers if one.id == provider)
    model = next(one for one in seller.models if one.id == model_id)
    rates, _ = PricedModel(seller, model).at({}, NOW.timestamp())
    _, same = seller.extract_usage(
        whole(spoken, told) | {"model": model_id, "modelVersion": model_id}, api_flavor=flavor
    )

    listed = model.calc_price(same, seller, genai_request_timestamp=NOW, price_context={})

    assert usage is not None
    assert usage_usd(rates, usage) == pytest.approx(float(listed.total_price), rel=1e-9)


# --- usage that cannot be read ---

UNREADABLE: Final[Mapping[str, Any]] = {
    "empty": {},
    "null": None,
    "text": "5 tokens",
    "texts": {"prompt_tokens": "5", "input_tokens": "5", "promptTokenCount": "5", "inputTokens": "5"},
    "negative": {"prompt_tokens": -5, "completion_tokens": -7, "input_tokens": -5, "output_tokens": -7},
    "absurd": dict.fromkeys(
        (
            *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens"),
            *("promptTokenCount", "candidatesTokenCount", "inputTokens", "outputTokens"),
        ),
        1 << 31,
    ),
    "a total alone": {"total_tokens": 99, "totalTokenCount": 99, "totalTokens": 99},
}


@pytest.mark.parametrize("told", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("spoken", SPOKEN)
async def test_unreadable_usage_is_estimated_for_callers_of_every_language(spoken: str, told: Any) -> None:
    """By the words of the answer, and marked; a whole answer costs the same whoever has asked."""
    for asked in CALLERS:
        account, _ = await settled(asked, spoken, told, stream=False)
        assert account.usage is not None
        assert account.usage.estimated, asked
        assert account.usage.output == len(TEXT) // 4, asked
        assert account.usage.input > 10, asked
        assert account.cost_usd
        account, _ = await settled(asked, spoken, told, stream=True)
        assert account.usage is not None
        assert account.usage.estimated, asked
        assert account.usage.input > 10, asked
        assert account.usage.output, asked
