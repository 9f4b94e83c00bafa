"""A batch from its upload to its answers, through a real gateway, on the files that it keeps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from tests.e2e.harness import KEYS, PATIENCE_S, config_of, start_gateway
from tests.policy.test_batch_lines import jsonl, line


def config(folder: Path) -> Any:
    """Jobs in a file, blobs in a folder."""
    jobs = {"store": f"sqlite:///{folder / 'jobs.db'}", "files": f"file://{folder / 'files'}", "min_free": "1MiB"}
    return lambda base_url: config_of(base_url, jobs=jobs, keys=KEYS)


async def test_a_batch_is_answered_line_by_line(tmp_path: Path) -> None:
    """Every line once, the failed ones in their own file, and a gateway that starts anew still has them."""
    running = await start_gateway(tmp_path, config(tmp_path))
    try:
        sdk = running.sdk()
        bad = line("bad", body={"model": "gpt-4o", "messages": "no list"})
        data = jsonl(*(line(f"line {number}") for number in range(60)), bad)
        file = await sdk.files.create(file=("in.jsonl", data), purpose="batch")
        made = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
        async with asyncio.timeout(PATIENCE_S):
            while (batch := await sdk.batches.retrieve(made.id)).status != "completed":
                assert batch.status in ("validating", "in_progress", "finalizing"), batch
                await asyncio.sleep(0.05)
        assert batch.request_counts is not None
        counts = batch.request_counts
        assert batch.output_file_id is not None
        output = (await sdk.files.content(batch.output_file_id)).content
        await sdk.close()
    finally:
        await running.stop()

    again = await start_gateway(tmp_path, config(tmp_path))
    try:
        sdk = again.sdk()
        assert (await sdk.batches.retrieve(made.id)).status == "completed"
        assert (await sdk.files.content(batch.output_file_id)).content == output
        await sdk.close()
    finally:
        await again.stop()

    answers = [orjson.loads(text) for text in output.splitlines()]
    assert [one["custom_id"] for one in answers] == [f"line {number}" for number in range(60)]
    assert {one["response"]["status_code"] for one in answers} == {200}
    assert (counts.total, counts.completed, counts.failed) == (61, 60, 1)
    assert batch.usage is not None
    assert batch.usage.total_tokens > 0
