"""A hundred thousand model names, and as many callers: memory stays where it was, and no collection stops the loop."""

from __future__ import annotations

import asyncio
import gc
import io
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app import Gateway
from gateway.settings import Settings
from tests.bench.canned import Canned, stream_events
from tests.e2e.harness import chat, connect, post
from tests.soak.conftest import Report
from tests.soak.support import rss_kib

pytestmark = pytest.mark.soak

WARM, ALL = 10_000, 100_000
"""Names: until memory is what it is, and in all."""
CLIENTS = 8
MOST_GROWTH_KIB = 4 * 1024
LONGEST_PAUSE_S = 0.05


class Collections:
    """The garbage collector's runs: how long the longest took, and what they found.

    In CPU time, which a busy machine does not stretch as it does the clock's.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.collected = 0
        self._began_at = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """As `gc.callbacks` wants it."""
        if phase == "start":
            self._began_at = time.thread_time()
        else:
            self.longest_s = max(self.longest_s, time.thread_time() - self._began_at)
            self.collected += info["collected"]


class Silent(io.StringIO):
    """A call log that is not kept."""

    def write(self, text: str, /) -> int:
        return len(text)


async def ask(url: str, requests: Any) -> None:
    """One client, one call after the other."""
    async with connect(url) as peer:
        for request in requests:
            peer.send(request)
            assert (await peer.response()).status == 200


def request_of(kind: str, number: int) -> bytes:
    """A call for a name, or of a caller, that nobody has heard of."""
    if kind == "names":
        return post("/v1/chat/completions", chat(f"name-{number}"), "authorization: Bearer one")
    return post("/v1/chat/completions", chat("gpt-4o"), f"authorization: Bearer made-up-{number}")


async def ask_all(url: str, kind: str, first: int, end: int) -> None:
    """Every number once."""
    clients = [(request_of(kind, number) for number in range(first + one, end, CLIENTS)) for one in range(CLIENTS)]
    await asyncio.gather(*(ask(url, client) for client in clients))


@pytest.mark.parametrize("kind", ["names", "callers"])
async def test_names_and_callers_without_end(kind: str, tmp_path: Path, report: Report) -> None:
    """From the ten thousandth to the hundred thousandth at most 4 MiB more are resident, and pauses stay below 50 ms."""
    events = stream_events()
    provider = await asyncio.get_running_loop().create_server(lambda: Canned(events), "127.0.0.1", 0)
    address = "http://{}:{}/v1".format(*provider.sockets[0].getsockname())
    config = {
        "providers": {"main": {"dialect": "openai", "base_url": address}},
        "models": {"*": {"targets": ["main"]}},
        "policies": "policies",
    }
    (tmp_path / "policies").mkdir()
    # Clients and gateway share a loop, and a machine: its lag is theirs, and sheds nobody.
    (tmp_path / "policies" / "queue.yaml").write_text("default: {shed: {loop_lag: 60s}}\n")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    gateway = Gateway(Settings(config=path, port=0), {}, log_stream=Silent())
    await gateway.start()
    seen = Collections()
    try:
        await ask_all(gateway.url, kind, 0, WARM)
        before_kib = rss_kib()
        gc.callbacks.append(seen)
        await ask_all(gateway.url, kind, WARM, ALL)
        grown_kib = rss_kib() - before_kib
    finally:
        gc.callbacks.remove(seen)
        await gateway.stop()
        provider.close()
    longest_ms = seen.longest_s * 1000
    report(f"{ALL} {kind}: {grown_kib} KiB more, longest pause {longest_ms:.1f} ms, {seen.collected} objects collected")

    assert grown_kib <= MOST_GROWTH_KIB
    assert seen.longest_s <= LONGEST_PAUSE_S
