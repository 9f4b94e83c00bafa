"""What a provider reports before its stream is left or breaks off counts, whatever language its caller speaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.core.types import Usage, UsageParts
from tests.dialects.aws_frames import event as frame
from tests.dialects.ways import CALLERS, Ways, sse, stream_of
from tests.support.flow import Broken, read_all

TEXT = "word" * 100
"""A hundred tokens."""
MESSAGE: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x",
        "content": [], "usage": {"input_tokens": 10, "cache_read_input_tokens": 9000, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}}] * 20,
]  # fmt: skip


def generated(text: str, candidates: int, thoughts: int) -> dict[str, Any]:
    """An event of Gemini's with its running usage."""
    used = {"promptTokenCount": 40, "candidatesTokenCount": candidates, "thoughtsTokenCount": thoughts}
    content = {"role": "model", "parts": [{"text": text}]}
    return {
        "candidates": [{"content": content, "index": 0}],
        "usageMetadata": used | {"totalTokenCount": 40 + candidates + thoughts},
    }


async def ended(asked: str, spoken: str, chunks: list[Any], behind: int | None) -> Ways:
    """A call whose client leaves behind so many chunks; None: it reads on, and the provider breaks off."""
    ways = Ways([spoken], [stream_of(spoken, *chunks, Broken("reset"))])
    reply = await ways.pipeline.handle(ways.call(**ways.asking(asked)))
    assert reply.chunks is not None
    if behind is None:
        assert [chunk async for chunk in reply.chunks]
    else:
        for _ in range(behind):
            await anext(reply.chunks)
    await reply.close()
    return ways


@pytest.mark.parametrize("behind", [0, 2, None])
@pytest.mark.parametrize("asked", CALLERS)
async def test_the_input_that_a_message_began_with_counts(asked: str, behind: int | None) -> None:
    """Ten tokens, and 9,000 from the cache; the output is estimated by what came."""
    ways = await ended(asked, "messages", sse(*MESSAGE, named=True), behind)

    usage = ways.account.usage
    assert usage is not None
    assert (usage.input, usage.cached, usage.estimated) == (9010, 9000, True)
    assert usage.output == pytest.approx({0: 100, 2: 200, None: 2000}[behind], abs=101)


@pytest.mark.parametrize("asked", CALLERS)
async def test_what_comes_in_one_read_with_a_report_counts_beside_it(asked: str) -> None:
    """The beginning of a message tells of its input; the texts that came with it are output all the same."""
    events = sse(*MESSAGE, named=True)
    usage = (await ended(asked, "messages", [b"".join(events)], None)).account.usage

    assert usage is not None
    assert (usage.input, usage.cached, usage.estimated) == (9010, 9000, True)
    assert usage.output == pytest.approx(2000, abs=101)


@pytest.mark.parametrize("asked", CALLERS)
async def test_a_message_that_is_left_behind_its_last_report_costs_what_that_says(asked: str) -> None:
    """Though no event of the caller's comes of it."""
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 70}}
    ways = Ways(["messages"], [stream_of("messages", *sse(*MESSAGE, end, named=True), asyncio.Event())])
    reply = await ways.pipeline.handle(ways.call(**ways.asking(asked)))
    reading = asyncio.ensure_future(read_all(reply))
    for _ in range(200):
        await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait([reading])
    await reply.close()

    assert ways.account.usage == Usage(9010, 70, 9000)


@pytest.mark.parametrize("behind", [1, None])
@pytest.mark.parametrize("asked", CALLERS)
async def test_the_running_usage_of_the_last_event_counts(asked: str, behind: int | None) -> None:
    """Gemini tells with each event what it has used so far, thoughts included: that is no estimate."""
    events = [generated(TEXT, 1000, 500), generated(TEXT, 2000, 500)]
    ways = await ended(asked, "generate", sse(*events, end=b"\r\n\r\n"), behind)

    output = 1500 if behind else 2500
    assert ways.account.usage == Usage(40, output, parts=UsageParts(reasoning=500))


@pytest.mark.parametrize("asked", ["responses", "messages", "generate"])
async def test_the_running_usage_of_a_chat_counts(asked: str) -> None:
    """As xAI and vLLM tell it."""
    used = {"prompt_tokens": 40, "completion_tokens": 70}
    chunk = {"id": "c", "choices": [{"index": 0, "delta": {"content": TEXT}, "finish_reason": None}], "usage": used}

    ways = await ended(asked, "chat", sse(chunk), None)

    assert ways.account.usage == Usage(40, 70)


@pytest.mark.parametrize("asked", ["chat", "messages", "generate"])
async def test_the_usage_of_a_response_that_failed_counts(asked: str) -> None:
    """What was generated before it did is billed."""
    delta = {"type": "response.output_text.delta", "output_index": 0, "delta": "so"}
    response = {"id": "r", "status": "failed", "error": {"code": "server_error", "message": "m"}, "output": []}
    failed = {"type": "response.failed", "response": response | {"usage": {"input_tokens": 40, "output_tokens": 70}}}
    created = {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}

    ways = await ended(asked, "responses", sse(created, delta, failed, named=True), None)

    assert ways.account.outcome == "stream_error"
    assert ways.account.usage == Usage(40, 70)


@pytest.mark.parametrize("asked", CALLERS)
async def test_the_counts_of_an_answer_without_a_reason_count(asked: str) -> None:
    """Converse tells them last."""
    frames = [
        frame("messageStart", {"role": "assistant"}),
        frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "so"}}),
        frame("metadata", {"usage": {"inputTokens": 40, "outputTokens": 70, "totalTokens": 110}}),
    ]

    ways = await ended(asked, "converse", frames, None)

    assert ways.account.outcome == "stream_error"
    assert ways.account.usage == Usage(40, 70)
