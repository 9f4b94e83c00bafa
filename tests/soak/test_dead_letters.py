"""Dead letters by the hundred thousand, a replay whose gateway is killed, and a line that kills its gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from gateway.products.jobs.calls import CallServer, StoredRequest, TryResult
from gateway.products.jobs.dead_letters.rules import LetterPage
from gateway.products.jobs.model import ClaimRequest, JobEnd, JobError, JobState
from gateway.products.jobs.sqlite_store import SqliteJobStore
from gateway.products.jobs.transitions import OpenBounds
from tests.e2e.batch_kills import sdk_of
from tests.e2e.batches import BATCH_ENDS, BatchFiles, becomes, begin, calls_in, check_end, line, names
from tests.e2e.durable import ask, with_jobs
from tests.e2e.harness import ADMIN_KEY, get, post
from tests.e2e.lives import life
from tests.soak.conftest import Report
from tests.support.job_stores import Jobs

pytestmark = pytest.mark.soak

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
LETTERS, PAGE_S = 100_000, 0.010
REPLAYED, RATE, OFF = 10_000, 50.0, 0.02
KILLS = 5
LINES, MOST_CRASHES = 10_000, 5
BODY = b'{"model":"gpt-4o","messages":[{"role":"user","content":"%d"}]}'


async def fill(path: Path, letters: int) -> None:
    """Writes so many dead letters into a jobs file."""
    store = SqliteJobStore(str(path), time.time, OpenBounds(10**6, 10**6))
    jobs = Jobs(store, time.time)  # type: ignore[arg-type]  # its clock
    for first in range(0, letters, 1000):
        new = [
            jobs.new(id=f"old-{first + one}", payload=BODY % (first + one), tenant="web", key="web", model="gpt-4o",
                     about={"endpoint": "/v1/chat/completions", "headers": [["content-type", "application/json"]]})
            for one in range(min(1000, letters - first))
        ]  # fmt: skip
        await store.accept(new)
        works = await store.claim([ClaimRequest("fast", 1000)])
        error = JobError("server_error", f"the answer was 500: request {first} failed", time.time(), "main/gpt-4o")
        end = JobEnd(JobState.FAILED, error, is_attempt=True, is_dead=True)
        await asyncio.gather(*(store.finish(work, end) for work in works))
    await store.aclose()


async def test_a_page_of_a_hundred_thousand_takes_ten_milliseconds(tmp_path: Path, report: Report) -> None:
    """The first, one in the middle, and the groups with their samples."""
    await fill(tmp_path / "jobs.db", LETTERS)
    store = SqliteJobStore(str(tmp_path / "jobs.db"), time.time)
    (group,) = await store.dead.groups(5)
    assert group.number == LETTERS
    took: dict[str, float] = {}
    after = (-1.0, "")
    for name in ("first", "second"):
        began = time.perf_counter()
        page = await store.dead.page(LetterPage(group.id, after, 100))
        took[name], after = time.perf_counter() - began, (page[-1].at, page[-1].id)
    middle = (group.oldest_at + (group.newest_at - group.oldest_at) / 2, "")
    for name, ask_it in (
        ("middle", store.dead.page(LetterPage(group.id, middle, 100))),
        ("groups", store.dead.groups(5)),
    ):
        began = time.perf_counter()
        assert await ask_it
        took[name] = time.perf_counter() - began
    await store.aclose()

    report(f"{LETTERS} letters, 100 a page: " + ", ".join(f"{name} {1000 * s:.1f} ms" for name, s in took.items()))
    assert max(took.values()) <= PAGE_S


async def test_a_replay_at_a_rate_survives_kills(tmp_path: Path, report: Report) -> None:
    """Each letter is sent once, but what was in flight at a kill; so many a second between the kills."""
    number = int(os.environ.get("REPLAYED", REPLAYED))
    await fill(tmp_path / "jobs.db", number)
    provider = EmulatorServer(
        EmulatorConfig(ttft_s=0.01, output_tokens=4, recorded_requests=10**6, recorded_bytes=2**28)
    )
    await provider.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(dict(with_jobs(tmp_path, admin={"key": ADMIN_KEY})(provider.base_url))))
    replay, rates = "", list[float]()
    for turn in range(KILLS + 1):
        async with life(config) as served:
            if not replay:
                asked = post("/admin/dlq/replay", {"rate": RATE}, ADMIN)
                replay = orjson.loads((await ask(served.url, asked)).body)["id"]
            if turn < KILLS:
                rates.append(await rate_of(served.url, replay, number / RATE / (KILLS + 1)))
                served.kill()
            else:
                await until_none_is_left(served.url)
    asked_of = calls_in(provider.emulator.recorder)
    await provider.stop()

    report(
        f"{number} letters at {RATE:g}/s with {KILLS} kills: {len(set(asked_of))} sent, {len(asked_of) - number} calls more; "
        f"rates between the kills {', '.join(f'{rate:.2f}' for rate in rates)}"
    )
    assert set(asked_of) == {str(one) for one in range(number)}
    assert len(asked_of) - number <= KILLS * 10
    assert all(abs(rate - RATE) <= OFF * RATE for rate in rates)


async def test_a_line_that_kills_its_gateway_is_found(tmp_path: Path, report: Report) -> None:
    """After at most five crashes; all others are answered."""
    custom_ids = names(int(os.environ.get("LINES", LINES)))
    deadly = custom_ids[len(custom_ids) // 3]
    provider = EmulatorServer(EmulatorConfig(ttft_s=0.02, output_tokens=4))
    await provider.start()
    try:
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(dict(with_jobs(tmp_path, admin={"key": ADMIN_KEY})(provider.base_url))))
        batch_id, crashes, files = "", 0, BatchFiles((), ())
        told: dict[str, Any] = {}
        while not told:
            async with life(config, before=partial(die_of, deadly)) as served, sdk_of(served) as sdk:
                try:
                    batch_id = batch_id or (await begin(sdk, map(line, custom_ids))).id
                    batch = await becomes(sdk, batch_id, lambda batch: batch.status in BATCH_ENDS, 600)
                    files = await check_end(sdk, batch, custom_ids)
                    told = orjson.loads((await ask(served.url, get("/admin/dlq", ADMIN))).body)
                except openai.APIConnectionError:
                    crashes += 1
                    assert crashes <= MOST_CRASHES
    finally:
        await provider.stop()

    report(f"{len(custom_ids)} lines, one of which kills its gateway: {crashes} crashes, {len(files.output)} answered")
    assert [one["custom_id"] for one in files.errors] == [deadly]
    assert files.codes() == {"worker_crashed": 1}
    assert [group["class"] for group in told["groups"]] == ["worker_crashed"]


def die_of(name: str) -> None:
    """Have the process die of a line with this name in its request."""
    serve = CallServer.serve

    async def served(server: CallServer, request: StoredRequest, *rest: Any) -> TryResult:
        if orjson.loads(request.body)["messages"][0]["content"] == name:
            os.kill(os.getpid(), signal.SIGKILL)
        return await serve(server, request, *rest)

    setattr(CallServer, "serve", served)  # noqa: B010 - it is no attribute for anybody else to set


async def rate_of(url: str, replay: str, seconds: float) -> float:
    """How many letters a second are replayed, over so long."""
    while not await replayed(url, replay):  # noqa: ASYNC110 - in another process
        await asyncio.sleep(0.1)
    first = await replayed(url, replay)
    while (before := await replayed(url, replay)) == first:
        pass
    began = time.monotonic()
    await asyncio.sleep(seconds)
    while (seen := await replayed(url, replay)) == (last := await replayed(url, replay)):
        pass
    assert seen <= last
    return (last - before) / (time.monotonic() - began)


async def until_none_is_left(url: str) -> None:
    """All have been replayed with success."""
    while orjson.loads((await ask(url, get("/admin/dlq", ADMIN))).body)["depth"]:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.2)


async def replayed(url: str, replay: str) -> int:
    """How many letters a replay has begun."""
    return int(orjson.loads((await ask(url, get(f"/admin/dlq/{replay}", ADMIN))).body)["replayed"])
