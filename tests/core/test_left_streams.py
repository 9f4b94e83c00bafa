"""Streams that end before their usage: left by their clients, broken off by the provider, or complete without one."""

from __future__ import annotations

import orjson
import pytest

from gateway.core.call import Call
from gateway.core.errors import BudgetExceeded
from gateway.core.snapshot import Key, Rates
from gateway.core.types import Endpoint, Usage
from gateway.dialects.endpoints import GENERATE, MESSAGES
from tests.support.flow import CHAT, RESPONSES, Bench, Broken, ScriptedUpstream, streamed

TEXT = "word" * 100
"""A hundred tokens."""
MESSAGE_START = (
    b'event: message_start\ndata: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":10,'
    b'"cache_read_input_tokens":9000,"output_tokens":1}}}\n\n'
)
DOLLAR = Rates(input_usd=0.0, output_usd=1.0, cached_input_usd=0.0)
"""A token of output costs a dollar."""


def chat_event(text: str) -> bytes:
    """An event of a chat with this text."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    return b"data: " + orjson.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [choice]}) + b"\n\n"


async def leave(stage: Bench, behind: int, **changes: object) -> Call:
    """Reads so many chunks of a call's stream, and leaves."""
    call = stage.call(stream=True, **changes)
    reply = await stage.pipeline.handle(call)
    assert reply.chunks is not None
    for _ in range(behind):
        await anext(reply.chunks)
    await reply.close()
    return call


@pytest.mark.parametrize("allows_overspend", [False, True])
async def test_streams_that_are_left_spend_a_budget_as_whole_ones_do(allows_overspend: bool) -> None:
    """Forty streams are left behind their 20th event, each with 2,000 tokens by then: the budget refuses the sixth."""
    key = Key("team", "team", b"", budget_usd_per_day=10_000.0, allow_overspend=allows_overspend)
    events = [chat_event("word" * 100)] * 30
    stage = Bench([ScriptedUpstream(*[streamed(*events) for _ in range(40)])], keys=[key], rates=DOLLAR)

    refused = 0
    for _ in range(40):
        try:
            await leave(stage, 20, key=key)
        except BudgetExceeded:
            refused += 1

    spent = sum(account.cost_usd or 0.0 for account in stage.meter.accounts)
    assert spent == pytest.approx(10_000.0, rel=0.05)
    assert refused == 35
    assert all(account.usage.estimated for account in stage.meter.accounts if account.usage is not None)


def named(kind: str, **fields: object) -> bytes:
    """An event with a name, which its type repeats."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


def generated(text: str) -> bytes:
    """An event of Gemini's, without usage."""
    return b"data: " + orjson.dumps({"candidates": [{"content": {"parts": [{"text": text}]}}]}) + b"\n\n"


DELTAS = [
    pytest.param(CHAT, chat_event(TEXT), id="chat"),
    pytest.param(RESPONSES, named("response.output_text.delta", delta=TEXT), id="responses"),
    pytest.param(
        MESSAGES, named("content_block_delta", delta={"type": "thinking_delta", "thinking": TEXT}), id="messages"
    ),
    pytest.param(GENERATE, generated(TEXT), id="generate"),
]


@pytest.mark.parametrize(("endpoint", "event"), DELTAS)
async def test_what_was_relayed_is_estimated_however_the_stream_ends(endpoint: Endpoint, event: bytes) -> None:
    """Its client leaves, or the provider breaks it off; estimated by what is in it, and marked."""
    left, broken = (Bench([ScriptedUpstream(streamed(*[event] * 10, Broken("reset")))]) for _ in range(2))

    await leave(left, 5, endpoint=endpoint)
    await broken.serve(stream=True, endpoint=endpoint)

    assert left.account.usage == Usage(3, 500, estimated=True)
    assert broken.account.usage == Usage(3, 1000, estimated=True)


async def test_a_whole_stream_without_usage_is_estimated_by_what_is_in_it() -> None:
    """As a whole answer without usage is."""
    finish = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    stage = Bench([ScriptedUpstream(streamed(*[chat_event(TEXT)] * 10, finish + b"data: [DONE]\n\n"))])

    await stage.serve(stream=True)

    assert stage.account.outcome == "ok"
    assert stage.account.usage == Usage(3, 1000, estimated=True)


async def test_a_report_of_the_beginning_is_the_input_and_what_came_since_the_output() -> None:
    """Also where the client leaves before it has asked for anything."""
    event = named("content_block_delta", delta={"type": "text_delta", "text": TEXT})
    for behind, output in ((0, 100), (3, 300)):
        stage = Bench([ScriptedUpstream(streamed(MESSAGE_START, *[event] * 9))])

        await leave(stage, behind, endpoint=MESSAGES)

        assert stage.account.usage == Usage(9010, output, 9000, estimated=True), behind


async def test_a_stream_that_is_left_behind_its_last_report_costs_what_that_says() -> None:
    """However much it would be estimated at."""
    event = named("content_block_delta", delta={"type": "text_delta", "text": TEXT})
    end = named("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 70})
    stage = Bench([ScriptedUpstream(streamed(MESSAGE_START, event, end, event))])

    await leave(stage, 2, endpoint=MESSAGES)

    assert stage.account.usage == Usage(9010, 70, 9000)
