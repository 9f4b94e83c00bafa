"""A batch of 50,000 lines and 200 MB, from its upload to its answers: what it takes of memory, and of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.bench.canned import Canned, stream_events
from tests.e2e.harness import connect, get, post
from tests.soak.conftest import Report
from tests.soak.support import rss_kib, serve

pytestmark = pytest.mark.soak

LINES = 50_000
LINE_BYTES = 4096
MOST_KIB = 96 * 1024
"""Above an idle gateway."""
STEP_S = 0.05
"""Of CPU time, as no single step of the loop may take more."""
PATIENCE_S = 900.0
TEXT = 'Summarise: "the words of a user", line by line.\n'


def lines() -> AsyncIterator[bytes]:
    """The input, a hundred lines at a time."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, LINES, 100):
            yield b"".join(line(number) for number in range(start, start + 100))
            await asyncio.sleep(0)

    return pieces()


def line(number: int) -> bytes:
    content = (TEXT * 100)[: LINE_BYTES - 600]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    text = orjson.dumps({"custom_id": f"line {number}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return text[:-1] + b" " * (LINE_BYTES - len(text) - 1) + b"}\n"


@asynccontextmanager
async def highest(pid: int) -> AsyncIterator[list[int]]:
    """The resident memory of a process and its peak, looked at as long as this lasts."""
    seen = [rss_kib(pid)]

    async def look() -> None:
        while True:
            seen.append(rss_kib(pid))
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    try:
        yield seen
    finally:
        looking.cancel()


async def upload(url: str) -> str:
    head = b'--X\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    head += b'--X\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
    length = len(head) + LINES * LINE_BYTES + len(b"\r\n--X--\r\n")
    async with connect(url) as peer:
        peer.send(post("/v1/files", b"", "content-type: multipart/form-data; boundary=X", length=length) + head)
        async for piece in lines():
            peer.send(piece)
            await peer.writer.drain()
        peer.send(b"\r\n--X--\r\n")
        answer = await peer.response()
    assert answer.status == 200, answer.raw
    found: str = orjson.loads(answer.body)["id"]
    return found


async def download(url: str, file_id: str) -> int:
    """How many lines there are, each with an answer."""
    count = 0
    async with connect(url) as peer:
        peer.send(get(f"/v1/files/{file_id}/content"))
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        while left:
            piece = await peer.reader.read(min(left, 262_144))
            assert piece
            left -= len(piece)
            count += piece.count(b'"status_code":200')
    return count


async def test_a_large_batch_takes_little(tmp_path: Path, report: Report) -> None:
    """Of memory at any time, and of the loop at a time."""
    config = tmp_path / "config.yaml"
    events, figures, marks = stream_events(), list[str](), dict[str, float]()
    shown: dict[str, Any] = {}
    async with await asyncio.get_running_loop().create_server(lambda: Canned(events), "127.0.0.1", 0) as provider:
        base_url = "http://{}:{}/v1".format(*provider.sockets[0].getsockname())
        settings = {
            "providers": {"main": {"dialect": "openai", "base_url": base_url, "api_key": "k"}},
            "models": {"m": {"targets": ["main/renamed"]}},
            "jobs": {"store": f"sqlite:///{tmp_path / 'jobs.db'}", "files": f"file://{tmp_path / 'files'}"},
        }
        config.write_text(yaml.safe_dump(settings))
        async with serve(config, "tests.soak.inside") as served, highest(served.pid) as seen:
            idle = seen[0]

            async def stage(name: str, began: float) -> None:
                longest = (await served.inside("turns"))["longest"]
                marks[name] = longest
                figures.append(
                    f"{name}: {time.monotonic() - began:.1f} s, + {(max(seen) - idle) / 1024:.0f} MiB, "
                    f"longest turn {longest * 1000:.0f} ms of CPU"
                )

            await served.inside("turns")
            began = time.monotonic()
            file_id = await upload(served.url)
            await stage("upload", began)
            began = time.monotonic()
            body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            async with connect(served.url) as peer:
                batch = orjson.loads((await peer.exchange(post("/v1/batches", body))).body)
            status = "validating"
            async with asyncio.timeout(PATIENCE_S):
                while status not in ("completed", "failed"):
                    await asyncio.sleep(0.2)
                    async with connect(served.url) as peer:
                        shown = orjson.loads((await peer.exchange(get(f"/v1/batches/{batch['id']}"))).body)
                    if shown["status"] != status:
                        await stage(status, began)
                        status, began = shown["status"], time.monotonic()
            assert status == "completed", shown
            began = time.monotonic()
            count = await download(served.url, shown["output_file_id"])
            await stage("download", began)
    report("\n".join(figures))

    assert shown["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
    assert count >= LINES - 1000  # a piece may cut the mark that is counted
    assert max(seen) - idle < MOST_KIB
    assert max(marks.values()) < STEP_S
