"""Responses in the background in real time: clients that are cut off and come back elsewhere, workers that are killed.

CUTS, KILLS and SEED scale it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest
import yaml

from gateway.core.openai.sse import event_json, split_events
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.durable import WEB
from tests.e2e.harness import KEYS, WEB_KEY, config_of
from tests.e2e.lives import life
from tests.soak.conftest import Report
from tests.support.redis_servers import redis_server

pytestmark = pytest.mark.soak

CUTS, KILLS = int(os.environ.get("CUTS", "1000")), int(os.environ.get("KILLS", "100"))
SEED = int(os.environ.get("SEED", "1"))
AT_ONCE, CUTS_EACH = 10, 10
ACROSS_S = 0.15
ENDS = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
Event = dict[str, Any]


@asynccontextmanager
async def replicas(folder: Path, number: int, kind: str, **said: Any) -> AsyncIterator[list[Path]]:
    """The configs of so many gateways before one provider, in a Redis or in a file."""
    async with AsyncExitStack() as stack:
        provider = EmulatorServer(EmulatorConfig(**said))
        await provider.start()
        stack.push_async_callback(provider.stop)
        sections: dict[str, Any] = {"jobs": {"store": f"sqlite:///{folder}/jobs.db", "files": f"{folder}/blobs"}}
        if kind == "redis":
            server = stack.enter_context(redis_server("--appendonly", "yes"))
            sections = {"jobs": {}, "state": {"redis": server.url, "timeout": "1s"}}
        configs = []
        for name in "ab"[:number]:
            place = folder / name
            place.mkdir()
            config = config_of(provider.base_url, keys=KEYS, **sections)
            (place / "config.yaml").write_text(yaml.safe_dump(dict(config)))
            configs.append(place / "config.yaml")
        yield configs


async def read(url: str, path: str, body: Event | None, most: int) -> list[tuple[float, Event]]:
    """The next events, at most so many, each with when it came; then the connection is cut."""
    found: list[tuple[float, Event]] = []
    name, value = WEB.split(": ")
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET" if body is None else "POST", url + path, json=body, headers={name: value}) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        pending = b""
        async for chunk in answer.aiter_bytes():
            pending += chunk
            cut = pending.rfind(b"\n\n") + 2
            for frame in split_events(pending[:cut]):
                if (event := event_json(frame)) is not None:
                    found.append((time.monotonic(), event))
                    if len(found) == most:
                        return found
            pending = pending[cut:]
    return found


async def wandering(urls: list[str], draw: random.Random) -> int:
    """One response, read in pieces at either gateway: what was read is the log; returns how often it was cut."""
    asked = {"model": "gpt-4o", "input": f"report {draw.random()}", "background": True, "stream": True}
    events = [event for _, event in await read(urls[0], "/v1/responses", asked, draw.randint(1, 10))]
    id, cuts = events[0]["response"]["id"], 1
    while events[-1]["type"] not in ENDS:
        path = f"/v1/responses/{id}?stream=true&starting_after={events[-1]['sequence_number']}"
        most = draw.randint(1, 12) if cuts < CUTS_EACH else 10_000
        events += [event for _, event in await read(urls[cuts % len(urls)], path, None, most)]
        cuts += 1
    for url in urls:
        assert [event for _, event in await read(url, f"/v1/responses/{id}?stream=true", None, 10_000)] == events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return cuts


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_cut_at_any_event_and_resumed(tmp_path: Path, report: Report, kind: str) -> None:
    """On another replica where there is one: the union of the pieces is the log."""
    draw, number = random.Random(SEED), 2 if kind == "redis" else 1
    async with (
        replicas(tmp_path, number, kind, tokens_per_second=100.0, output_tokens=60) as configs,
        AsyncExitStack() as stack,
    ):
        urls = [(await stack.enter_async_context(life(config))).url for config in configs]
        cuts = 0
        while cuts < CUTS:
            cuts += sum(await asyncio.gather(*(wandering(urls, draw) for _ in range(AT_ONCE))))
        asked = {"model": "gpt-4o", "input": "late?", "background": True, "stream": True}
        here = asyncio.create_task(read(urls[0], "/v1/responses", asked, 10_000))
        await asyncio.sleep(0.2)
        listed = await read(urls[0], "/v1/responses", {**asked, "input": "which?"}, 1)
        path = f"/v1/responses/{listed[0][1]['response']['id']}?stream=true"
        near, far = await asyncio.gather(read(urls[0], path, None, 10_000), read(urls[-1], path, None, 10_000))
        await here
    late = sorted(abs(there - at) for (at, _), (there, _) in zip(near[3:], far[3:], strict=True))
    report(
        f"J16 {kind}: {cuts} cuts, all unions equal to the log; p99 between readers {late[len(late) * 99 // 100] * 1000:.0f} ms"
    )
    assert late[len(late) * 99 // 100] <= ACROSS_S


async def ended(url: str, id: str) -> Event:
    """The response at its end, polled."""
    async with asyncio.timeout(60), openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=WEB_KEY, max_retries=20) as sdk:
        while (found := await sdk.responses.retrieve(id)).status in ("queued", "in_progress"):  # noqa: ASYNC110 - a poll
            await asyncio.sleep(0.05)
    kept: Event = orjson.loads(found.to_json())
    return kept


async def attached(url: str, path: str) -> list[Event]:
    """What a reader gets until the gateway, or the response, comes to its end."""
    found: list[Event] = []
    name, value = WEB.split(": ")
    try:
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("GET", url + path, headers={name: value}) as answer,
        ):
            pending = b""
            async for chunk in answer.aiter_bytes():
                pending += chunk
                cut = pending.rfind(b"\n\n") + 2
                found += [event for frame in split_events(pending[:cut]) if (event := event_json(frame)) is not None]
                pending = pending[cut:]
    except httpx.HTTPError:
        pass
    return found


@pytest.mark.parametrize("kind", ["redis", "sqlite"])
async def test_workers_killed_while_they_run(tmp_path: Path, report: Report, kind: str) -> None:
    """Every response comes to a complete end; whoever reads it has one run of the model, or is told."""
    draw, number = random.Random(SEED), 2 if kind == "redis" else 1
    restarted = 0
    async with (
        replicas(tmp_path, number, kind, tokens_per_second=100.0, output_tokens=60) as configs,
        AsyncExitStack() as stack,
    ):
        stays = (await stack.enter_async_context(life(configs[-1]))).url if number == 2 else ""
        for _ in range(KILLS):
            async with life(configs[0]) as mortal:
                asked = {"model": "gpt-4o", "input": f"report {draw.random()}", "background": True, "stream": True}
                first = [event for _, event in await read(mortal.url, "/v1/responses", asked, draw.randint(1, 30))]
                id = first[0]["response"]["id"]
                following = asyncio.create_task(attached(stays or mortal.url, f"/v1/responses/{id}?stream=true"))
                await asyncio.sleep(draw.random() * 0.3)
                mortal.kill()
                if not stays:
                    await following
            async with AsyncExitStack() as again:
                url = stays or (await again.enter_async_context(life(configs[0]))).url
                whole = await ended(url, id)
                seen = [
                    *first,
                    *await attached(
                        url, f"/v1/responses/{id}?stream=true&starting_after={first[-1]['sequence_number']}"
                    ),
                ]
                log = await attached(url, f"/v1/responses/{id}?stream=true")
            for events in (seen, await following if stays else seen):
                generations = {
                    event["sequence_number"] // 1_000_000
                    for event in events
                    if event["sequence_number"] % 1_000_000 > 1 and event["type"] != "error"
                }
                assert len(generations) <= 1, events
                restarted += events[-1]["type"] == "error"
            said = "".join(event["delta"] for event in log if event["type"] == "response.output_text.delta")
            assert whole["status"] == "completed"
            assert said == "".join(part["text"] for item in whole["output"] for part in item.get("content") or ())
    report(f"J17 {kind}: {KILLS} kills, every response complete, no reader with two runs; {restarted} were told")
