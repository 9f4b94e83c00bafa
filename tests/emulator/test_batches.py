"""The emulated Batch API where what it is given is wrong: a batch that fails and says why, as at a provider."""

from __future__ import annotations

import httpx
import orjson
import pytest

from gateway.emulator.app import create_app
from gateway.emulator.config import EmulatorConfig
from tests.emulator.conftest import chat_body, client_of

LINE = orjson.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": chat_body()})


async def begin(client: httpx.AsyncClient, data: bytes) -> str:
    """Uploads the file, and makes a batch of it; returns its id."""
    kept = await client.post("/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", data)})
    asked = {"input_file_id": kept.json()["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str((await client.post("/v1/batches", json=asked)).json()["id"])


@pytest.mark.parametrize("bad", [b"junk", b"", b"[1]", b"{}", b'{"custom_id": [1], "body": {}}', LINE[:-1]])
async def test_a_batch_of_what_is_no_line_fails(bad: bytes) -> None:
    """And is in no other's way: lists show it."""
    async with client_of(create_app(EmulatorConfig(batch_s=0.0))) as client:
        good, failing = await begin(client, LINE + b"\n"), await begin(client, LINE + b"\n" + bad + b"\n")
        listed = {one["id"]: one for one in (await client.get("/v1/batches")).json()["data"]}
        refused = await client.post(f"/v1/batches/{failing}/cancel")

    assert {id: one["status"] for id, one in listed.items()} == {good: "completed", failing: "failed"}
    (problem,) = listed[failing]["errors"]["data"]
    assert (problem["code"], problem["line"]) == ("invalid_json_line", 2)
    assert (listed[failing]["request_counts"]["total"], refused.status_code) == (0, 409)


@pytest.mark.parametrize("limit", ["0", "-1", "1e3", "9" * 5000])
async def test_an_odd_limit_is_none(limit: str) -> None:
    """The page is as long as usual."""
    async with client_of(create_app(EmulatorConfig())) as client:
        for _ in range(2):
            await begin(client, LINE + b"\n")
        page = await client.get("/v1/batches", params={"limit": limit})

    assert (page.status_code, len(page.json()["data"])) == (200, 2)
