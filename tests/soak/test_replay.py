"""Nobody pays twice, at scale: 1,000 keys from 50 callers each, 10,000 identical calls, and 20 lives ended by kill -9."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import Peer, Response, Running, chat, config_of, connect, post
from tests.e2e.lives import life
from tests.e2e.replaying import Crowd, Ledger, Question, assert_sound, check, is_replayed, questions
from tests.soak.conftest import Report
from tests.soak.support import Held, discard_log, rss_kib, serve, spread, until_only

pytestmark = pytest.mark.soak

KEYS, CALLERS, AT_ONCE = 1000, 50, 40
"""So many keys at a time: 2,000 callers."""
FOLLOWERS = 10_000
LIVES, CALLS_A_LIFE = 20, 50
UNHURRIED = EmulatorConfig(ttft_s=0.5, tokens_per_second=40.0, output_tokens=60, recorded_requests=0)
"""About two seconds for an answer."""
UNEVEN = EmulatorConfig(ttft_s=0.05, tokens_per_second=400.0, jitter=0.6, recorded_requests=0)
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def on_sqlite(folder: Path, base_url: str) -> dict[str, Any]:
    """A config whose state is a file."""
    return config_of(base_url, state=f"sqlite:///{folder}/state.db")


@pytest.mark.parametrize("state", ["memory", "sqlite"])
async def test_1000_keys_from_50_callers_each_who_leave_at_any_byte(
    start: StartGateway, tmp_path: Path, report: Report, state: str
) -> None:
    """One execution a key, equal bytes for all who stay, 422 for another body, and nothing is left behind."""
    gateway = await start(partial(on_sqlite, tmp_path) if state == "sqlite" else config_of, emulator=UNHURRIED)
    discard_log(gateway)
    before, began, some = Held.by(gateway), time.monotonic(), asyncio.Semaphore(AT_ONCE)
    told: Counter[str | None] = Counter()

    async def one(number: int, question: Question) -> None:
        async with some:
            await _one_key(gateway, question, random.Random(number), told)

    await asyncio.gather(*(one(number, question) for number, question in enumerate(questions(KEYS))))
    stats = gateway.emulator.emulator.stats
    report(
        f"{KEYS} keys, {CALLERS} callers each, state {state}: {stats.total} executions, at most "
        f"{max(stats.models.values())} a key; those who stayed were told {dict(told)}; {time.monotonic() - began:.0f} s"
    )
    assert set(stats.models.values()) == {1}
    assert stats.total == KEYS
    await until_only(before, gateway)


async def _one_key(gateway: Running, question: Question, rng: random.Random, told: Counter[str | None]) -> None:
    answers = await Crowd(gateway.url, question, CALLERS, rng, gateway.emulator.emulator.stats).ask()
    async with connect(gateway.url) as peer:
        answers.append(await peer.exchange(question.request()))
        refused = await peer.exchange(question.request(temperature=2))
    check(question, answers)
    assert is_replayed(answers[-1])
    assert (refused.status, refused.error["code"]) == (422, "idempotency_key_reused")
    told.update(answer.header("x-gateway-cache") for answer in answers)


@pytest.mark.parametrize("seed", [1, 2])
async def test_20_lives_ended_by_kill_9(tmp_path: Path, report: Report, seed: int) -> None:
    """Whatever a client has heard to its end is replayed in all later lives; whatever it has not is answered then."""
    provider = EmulatorServer(UNEVEN)
    await provider.start()
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(on_sqlite(tmp_path, provider.base_url)))
    ledger = Ledger(provider.emulator.stats, seed)
    for _ in range(LIVES):
        async with life(config) as served:
            await ledger.reckon(served.url)
            await ledger.live(served.url, CALLS_A_LIFE, served.kill)
            await served.ends()
        assert_sound(tmp_path / "state.db")
    async with life(config) as served:
        await ledger.reckon(served.url)
    await provider.stop()

    report(f"{LIVES} lives, seed {seed}: {ledger}")
    assert ledger.ran_again > 0


# Ten thousand at once.


class Holding:
    """A provider that answers when it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.server = EmulatorServer(EmulatorConfig(ttft_s=1.0, recorded_requests=0), sleep=self._sleep)

    async def _sleep(self, _seconds: float) -> None:
        await self.may_answer.wait()


@asynccontextmanager
async def ten_thousand(url: str) -> AsyncIterator[list[Peer]]:
    """Clients that are connected."""
    async with AsyncExitStack() as stack:
        peers = []
        for _ in range(FOLLOWERS):
            peers.append(await stack.enter_async_context(connect(url)))
        yield peers


def cpu_s(pid: int) -> float:
    """Of a process, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


async def until_idle(pid: int) -> None:
    """Wait until a process has stopped computing."""
    seen, still = cpu_s(pid), 0
    while still < 4:
        await asyncio.sleep(0.25)
        now = cpu_s(pid)
        seen, still = now, still + 1 if now - seen < 3 * TICK_S else 0


async def send_all(peers: list[Peer], request: bytes) -> None:
    """In steps that the gateway can take: what comes faster is shed, as it should be."""
    for at in range(0, len(peers), 100):
        for peer in peers[at : at + 100]:
            peer.send(request)
        await asyncio.sleep(0.04)


async def receive(peer: Peer, latencies_s: list[float], since: float) -> Response:
    """One answer, and how long it took."""
    async with asyncio.timeout(120):
        answer = await peer.response()
    latencies_s.append(time.monotonic() - since)
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_10000_identical_calls_are_one(tmp_path: Path, report: Report, stream: bool) -> None:
    """One is asked, nobody hangs; to follow takes the gateway no more work than to be answered by its cache."""
    provider = Holding()
    await provider.server.start()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "cache.yaml").write_text(
        yaml.safe_dump({"default": {"exact": {"requests": "deterministic"}}})
    )
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(config_of(provider.server.base_url, policies="policies")))
    request = post(body=orjson.dumps(chat(temperature=0, stream=stream)))
    follow_s: list[float] = []
    hit_s: list[float] = []
    async with serve(config) as served, ten_thousand(served.url) as peers:
        await until_idle(served.pid)
        idle_kib, before = rss_kib(served.pid), cpu_s(served.pid)
        await send_all(peers, request)
        await until_idle(served.pid)
        waiting_kib = rss_kib(served.pid)
        provider.may_answer.set()
        since = time.monotonic()
        followed = await asyncio.gather(*(receive(peer, follow_s, since) for peer in peers))
        await until_idle(served.pid)
        between = cpu_s(served.pid)
        await send_all(peers, request)
        since = time.monotonic()
        hits = await asyncio.gather(*(receive(peer, hit_s, since) for peer in peers))
        await until_idle(served.pid)
        after = cpu_s(served.pid)
    calls = provider.server.emulator.stats.total
    await provider.server.stop()

    follower_us, hit_us = ((end - begin) / FOLLOWERS * 1e6 for begin, end in ((before, between), (between, after)))
    report(
        f"{FOLLOWERS} identical calls at once ({'streams' if stream else 'whole'}): {calls} upstream; CPU per follower "
        f"{follower_us:.0f} us, per cache hit {hit_us:.0f} us; {(waiting_kib - idle_kib) / FOLLOWERS:.1f} KiB each\n"
        f"  from the provider's answer to theirs: {spread(follow_s)}; hits: {spread(hit_s)}"
    )
    assert calls == 1
    assert {answer.status for answer in (*followed, *hits)} == {200}
    assert len({answer.body for answer in (*followed, *hits)}) == 1
    assert Counter(answer.header("x-gateway-cache") for answer in followed) == {"miss": 1, "coalesced": FOLLOWERS - 1}
    assert {answer.header("x-gateway-cache") for answer in hits} == {"hit"}
