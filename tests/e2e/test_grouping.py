"""Embeddings that go together, over the wire: by the official SDK, and as lines of a batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson

from gateway.emulator.config import EmulatorConfig
from tests.e2e.batches import becomes, files_of, input_of, names
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import policies, with_jobs
from tests.e2e.harness import config_of

RECORDED = EmulatorConfig(recorded_requests=10_000)
MODEL = "text-embedding-3-small"


async def test_what_the_sdk_gets_is_what_it_would_have_got_alone(start: StartGateway) -> None:
    """The same vectors in either encoding, by fewer requests."""
    group = {"targets": [f"main/{MODEL}"], "group_embeddings": {"window": "50ms", "most": 16}}
    gateway = await start(lambda url: config_of(url, models={MODEL: group}), emulator=RECORDED)
    texts = [f"sentence number {number}" for number in range(40)]
    async with gateway.direct() as direct, gateway.sdk() as sdk:
        for encoding in ("float", "base64"):
            options: Any = {"model": MODEL, "encoding_format": encoding, "dimensions": 8}
            alone = [await direct.embeddings.create(input=text, **options) for text in texts]
            before = gateway.upstream_calls()
            together = await asyncio.gather(*(sdk.embeddings.create(input=text, **options) for text in texts))
            requests = gateway.upstream_calls() - before

            assert [one.data for one in together] == [one.data for one in alone]
            assert 3 <= requests < 12
            assert all(one.usage.prompt_tokens == one.usage.total_tokens > 0 for one in together)


async def test_lines_of_a_batch_are_few_requests(start: StartGateway, tmp_path: Path) -> None:
    """Where the provider refuses one its lines go alone; each line has its own answer, and the batch's usage is their sum."""
    folder = policies(tmp_path, jobs={"batches": {"group_embeddings": 32}})
    models = {"*": {"targets": ["main"]}}
    gateway = await start(with_jobs(tmp_path, policies=folder, models=models), emulator=RECORDED)
    custom_ids = names(320)
    lines = [
        {
            "custom_id": name,
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": MODEL, "input": name, "dimensions": 8},
        }
        for name in custom_ids
    ]
    gateway.script("context_length")
    async with gateway.sdk() as sdk, gateway.direct() as direct:
        file = await sdk.files.create(file=("input.jsonl", input_of(lines)), purpose="batch")
        batch = await sdk.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
        batch = await becomes(sdk, batch.id, lambda one: one.status in ("completed", "failed"))
        requests = gateway.upstream_calls()
        files = await files_of(sdk, batch)
        alone = await direct.embeddings.create(model=MODEL, input="line-300", dimensions=8, encoding_format="float")

    assert batch.status == "completed"
    assert files.errors == []
    assert [one["custom_id"] for one in files.output] == custom_ids
    assert 10 + 1 <= requests <= 90, requests
    line = next(one for one in files.output if one["custom_id"] == "line-300")
    assert line["response"]["body"]["data"] == orjson.loads(alone.model_dump_json())["data"]
    assert batch.usage is not None
    assert batch.usage.input_tokens == sum(one["response"]["body"]["usage"]["prompt_tokens"] for one in files.output)
