"""Callers that leave, on each way between two languages: the provider sees its connection close, whatever it was doing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from itertools import product
from typing import Any

from tests.dialects.ways import ASKED, CALLERS, FRAMED, FRAMES, LANGUAGES, SSE, STREAMS, WAYS
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import PATIENCE_S, PROVIDER_KEY, config_of, connect, post, until
from tests.support.raw_server import READ, RawServer, Script

BEGUN = 5
"""The events of each stream of which some are output."""
WHATS = {"thinks": (False, True), "answers": (False,), "streams": (True,)}
"""What a provider is at, and for calls of which kind: of a whole answer, or a stream."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n"


def config(urls: Mapping[str, str]) -> Mapping[str, Any]:
    """A model for each server: its name is what that does, and in which language."""
    made = config_of("http://127.0.0.1:9", models={})
    for name, url in urls.items():
        language = LANGUAGES[name.partition("-")[2]]
        speaks = {} if language.speaks is None else {"speaks": sorted(language.speaks)}
        place = {"region": "us-east-1"} if language.dialect == "bedrock" else {}
        place |= {"project": "p", "location": "global"} if language.dialect == "vertex" else {}
        made["providers"][name] = (
            {"dialect": language.dialect, "base_url": url, "api_key": PROVIDER_KEY} | speaks | place
        )
        made["models"][name] = {"targets": [f"{name}/{language.model}"]}
    return made


def asking(asked: str, model: str, *, stream: bool) -> bytes:
    """A call in this language."""
    if asked == "generate":
        verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return post(f"/v1beta/models/{model}:{verb}", ASKED[asked])
    return post(f"/v1{CALLERS[asked].path}", {"model": model, **ASKED[asked], "stream": stream})


def doing(what: str, spoken: str) -> Script:
    """What the provider does until it is left."""
    if what == "thinks":
        return [READ]
    if what == "answers":
        return [READ, HEAD % (b"application/json", b"content-length: 1000") + b'{"id":"x",']
    said = b"".join(STREAMS[spoken][:BEGUN])
    kind = FRAMES[1] if spoken in FRAMED else SSE[1]
    return [READ, HEAD % (kind, b"transfer-encoding: chunked") + b"%x\r\n%b\r\n" % (len(said), said)]


async def leave(url: str, server: RawServer, model: str, calls: list[tuple[str, bool]]) -> None:
    """Calls, one after the other, whose callers leave when the provider is at it; returns when that has seen them all go."""
    for asked, stream in calls:
        server.requests.clear()
        async with connect(url) as peer:
            peer.send(asking(asked, model, stream=stream))
            await until(lambda: bool(server.requests))
            if model.startswith("streams"):
                await peer.reader.readuntil(b"data:")
        await asyncio.wait_for(server.gone.acquire(), PATIENCE_S)


async def test_a_caller_that_leaves_ends_the_call_at_the_provider(start: StartGateway) -> None:
    """While that thinks, of an answer or a stream; in the middle of either."""
    calls: dict[str, list[tuple[str, bool]]] = {}
    for (asked, spoken), what in product(WAYS, WHATS):
        calls.setdefault(f"{what}-{spoken}", []).extend((asked, stream) for stream in WHATS[what])
    async with AsyncExitStack() as stack:
        servers = {name: await stack.enter_async_context(RawServer([doing(*name.split("-"))])) for name in calls}
        gateway = await start(lambda _: config({name: one.url for name, one in servers.items()}))
        await asyncio.gather(*(leave(gateway.url, servers[name], name, calls[name]) for name in calls))
        await gateway.idle()
        await gateway.stop()
    assert [one["outcome"] for one in gateway.records] == ["client_gone"] * sum(map(len, calls.values()))
