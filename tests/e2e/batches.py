"""Batches through the official SDK: their input, their end, and what has to be true of both, by the provider's ledger too.

Each line's prompt is its custom_id, so that the provider's record of requests tells how often a line was paid for.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from openai import AsyncOpenAI
from openai.types import Batch

from gateway.emulator.call import Recorder
from tests.e2e.harness import PATIENCE_S

CHAT: Any = "/v1/chat/completions"
BATCH_ENDS = {"completed", "failed", "cancelled", "expired"}


def line(custom_id: str, model: str = "gpt-4o", **body: Any) -> dict[str, Any]:
    """One line of input."""
    asked = {"model": model, "messages": [{"role": "user", "content": custom_id}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": asked}


def input_of(lines: Iterable[dict[str, Any]]) -> bytes:
    """The input file."""
    return b"".join(orjson.dumps(one) + b"\n" for one in lines)


def names(count: int) -> list[str]:
    """As many custom_ids, none of which sorts as it counts."""
    return [f"line-{number}" for number in range(count)]


async def begin(sdk: AsyncOpenAI, lines: Iterable[dict[str, Any]], **options: Any) -> Batch:
    """Upload the lines and make a batch of them."""
    file = await sdk.files.create(file=("input.jsonl", input_of(lines)), purpose="batch")
    asked = {"endpoint": CHAT, "completion_window": "24h", **options}
    return await sdk.batches.create(input_file_id=file.id, **asked)


async def becomes(
    sdk: AsyncOpenAI, batch_id: str, fact: Callable[[Batch], bool], patience_s: float = PATIENCE_S
) -> Batch:
    """Poll until the batch is so."""
    async with asyncio.timeout(patience_s):
        while not fact(batch := await sdk.batches.retrieve(batch_id)):  # noqa: ASYNC110 - a poll over the wire
            await asyncio.sleep(0.05)
    return batch


async def end_of(sdk: AsyncOpenAI, batch_id: str) -> Batch:
    """Poll until the batch has ended."""
    return await becomes(sdk, batch_id, lambda batch: batch.status in BATCH_ENDS)


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """What is in the files of an ended batch, line by line."""

    output: Sequence[dict[str, Any]]
    errors: Sequence[dict[str, Any]]

    def codes(self) -> Counter[str]:
        """The codes of lines that have no answer."""
        return Counter(one["error"]["code"] for one in self.errors if one["error"] is not None)


async def files_of(sdk: AsyncOpenAI, batch: Batch) -> BatchFiles:
    """Fetch both files of a batch."""
    return BatchFiles(await _lines_of(sdk, batch.output_file_id), await _lines_of(sdk, batch.error_file_id))


async def check_end(sdk: AsyncOpenAI, batch: Batch, custom_ids: Sequence[str]) -> BatchFiles:
    """Fetch both files; each line of the input is in one of them, once, in order, and the counts are theirs."""
    files = await files_of(sdk, batch)
    place = {name: number for number, name in enumerate(custom_ids)}
    for part in (files.output, files.errors):
        places = [place[one["custom_id"]] for one in part]
        assert places == sorted(places)
        assert len({one["id"] for one in part}) == len(part)
    found = Counter(one["custom_id"] for one in (*files.output, *files.errors))
    assert found == Counter(custom_ids), sorted((found - Counter(custom_ids)).items())[:5]
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (len(custom_ids), len(files.output), len(files.errors))
    for one in files.output:
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        assert one["custom_id"] in one["response"]["body"]["choices"][0]["message"]["content"], one
    return files


def calls_in(recorder: Recorder) -> list[str]:
    """The lines that a provider was asked for, in the order of the calls."""
    return [orjson.loads(one.body)["messages"][0]["content"] for one in recorder._kept]


def asked_of(*recorders: Recorder) -> Counter[str]:
    """How often providers were asked for each line."""
    return Counter(name for recorder in recorders for name in calls_in(recorder))


async def _lines_of(sdk: AsyncOpenAI, file_id: str | None) -> list[dict[str, Any]]:
    if file_id is None:
        return []
    content = (await sdk.files.content(file_id)).content
    assert content.endswith(b"\n")
    return [orjson.loads(one) for one in content.splitlines()]
