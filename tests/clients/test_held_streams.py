"""Official SDKs read streams that are held before their first event, and pinged in the middle, as what they are.

The gateway's comments while the provider thinks; the provider's own comment, or ping, amid the answer, which a caller of
another language gets as a comment; and the error of a stream that is held and then fails. docs/clients.md has the table.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE, CalledProcessError
from typing import Any, Final

import orjson
import pytest

from tests.clients.sdks import SDKS, Sdk
from tests.dialects.ways import STREAMS
from tests.e2e.conftest import StartGateway, pytest_asyncio_loop_factories, start
from tests.e2e.harness import config_of

__all__ = ["pytest_asyncio_loop_factories", "start"]

pytestmark = pytest.mark.soak

THINKS_S: Final = 0.5
"""The gateway says something every 100 ms meanwhile."""
PAUSE_S: Final = 0.05
RESPONSE: Final[dict[str, Any]] = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "in_progress", "output": [], "error": None,
    "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "incomplete_details": None, "instructions": None,
    "metadata": {}, "temperature": 1.0, "top_p": 1.0,
}  # fmt: skip
PART: Final = {"type": "output_text", "text": "so", "annotations": [], "logprobs": []}
SAID: Final = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [PART]}
PLACE: Final = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
USED: Final = {
    "input_tokens": 1, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1,
    "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 2,
}  # fmt: skip


def event(kind: str, number: int, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        kind.encode(),
        orjson.dumps({"type": kind, "sequence_number": number, **fields}),
    )


def piece(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: %b\n\n" % orjson.dumps({**head, "choices": [choice]})


ANSWERS: Final = {
    "chat": [
        piece(role="assistant", content=""),
        piece(content="s"),
        b": PROCESSING\n\n",
        piece(content="o"),
        piece("stop"),
        b"data: [DONE]\n\n",
    ],
    "responses": [
        event("response.created", 0, response=RESPONSE),
        event("response.output_item.added", 1, output_index=0, item={**SAID, "content": [], "status": "in_progress"}),
        event("response.content_part.added", 2, **PLACE, part={**PART, "text": ""}),
        event("response.output_text.delta", 3, **PLACE, delta="s", logprobs=[]),
        b": PROCESSING\n\n",
        event("response.output_text.delta", 4, **PLACE, delta="o", logprobs=[]),
        event("response.completed", 5, response={**RESPONSE, "status": "completed", "output": [SAID], "usage": USED}),
    ],
    "messages": [
        STREAMS["messages"][0],
        *(one.replace(b'"index":1', b'"index":0') for one in STREAMS["messages"][5:10]),
        STREAMS["messages"][14].replace(b"tool_use", b"end_turn"),
        STREAMS["messages"][15],
    ],
}
"""The streams of providers of three languages; each says `so`, with a sign of life between its two letters."""
TRUTH: Final = {"text": "so", "error": None}


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    """Thinks, then answers in the language that it is asked in; at `/broken` it ends in the middle of the head."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length: ")
            )
            await reader.readexactly(length)
            path = head.split(b" ", 2)[1].decode()
            await asyncio.sleep(THINKS_S)
            if "broken" not in path:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
                language = next(name for name in ("completions", "responses", "messages") if path.endswith(name))
                for part in ANSWERS[language.replace("completions", "chat")]:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(PAUSE_S)
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def config(url: str, folder: Path, kind: str) -> dict[str, Any]:
    """A gateway with one provider, which speaks a caller's own language, Anthropic's, or breaks off."""
    (folder / "queue.yaml").write_text("default: {keepalive_after: 100ms}\n")
    (folder / "retries.yaml").write_text("default: {attempts: 1}\n")
    speaks = {"own": ["chat", "responses", "messages"], "anthropic": None, "broken": ["chat", "responses", "messages"]}
    one: dict[str, Any] = {"dialect": "anthropic" if kind == "anthropic" else "openai", "api_key": "k"}
    one |= {"base_url": f"{url}/{kind}", **({"speaks": speaks[kind]} if speaks[kind] else {})}
    return config_of(url, providers={"main": one}, models={"*": {"targets": ["main"]}}, policies=str(folder))


async def told(sdk: Sdk, base_url: str, language: str) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(*sdk.command(base_url, language), stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(60):
        said, problem = await process.communicate()
    assert said, problem.decode(errors="replace")[-2000:]
    found: dict[str, Any] = json.loads(said)
    return found


@pytest.mark.parametrize("sdk", SDKS, ids=lambda sdk: sdk.name)
@pytest.mark.timeout(1800)
async def test_a_held_stream_is_read_by_the_official_sdks(start: StartGateway, sdk: Sdk, tmp_path: Path) -> None:
    """By three versions each; comments, pings and errors are none of the answer's text."""
    if shutil.which(sdk.needs) is None:
        pytest.skip(f"{sdk.needs} is not here")
    try:
        await asyncio.to_thread(sdk.install)
    except CalledProcessError as problem:
        pytest.fail(f"{sdk.name} could not be installed: {(problem.stderr or problem.stdout)[-2000:]!r}")
    seen: list[tuple[str, str, dict[str, Any]]] = []
    async with provider() as url:
        for kind in ("own", "anthropic", "broken"):
            folder = tmp_path / kind
            folder.mkdir()
            gateway = await start(lambda _emulator, kind=kind, folder=folder: config(url, folder, kind))
            languages: Sequence[str] = sdk.speaks
            seen += [(kind, language, await told(sdk, gateway.url, language)) for language in languages]
    for kind, language, found in seen:
        if kind == "broken":
            assert found["error"] is not None or language == "responses", (kind, language, found)
            assert "JSON" not in str(found["error"]), (kind, language, found)
        else:
            assert found == TRUTH, (kind, language)
