"""What a process does not load that has no use for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CONFIG = """
providers: {p: {dialect: openai, base_url: "http://127.0.0.1:9/v1", api_key: sk-x}}
models: {m: {targets: [p/m]}}
"""
START = """
import asyncio, sys
from pathlib import Path

import pytest
import gateway.cli.main, gateway.cli.serve
from gateway.app import Gateway
from gateway.cli.arguments import build_parser
from gateway.settings import Settings

build_parser("serve")

async def start_and_stop():
    gateway = Gateway(Settings(config=Path(sys.argv[1]), host="127.0.0.1", port=0), {})
    await gateway.start()
    print(*sorted(sys.modules))
    await gateway.stop()

asyncio.run(start_and_stop())
import redis  # it can be had all the same
"""


UNUSED = {
    "redis": "it shares no state",
    "hiredis": "it shares no state",
    "sqlite3": "it keeps no file",
    "numpy": "it has no semantic cache",
    "websockets": "it has no realtime session yet",
    "gateway.core.websocket": "it has no realtime session yet",
    "gateway.drivers.redis_store": "it shares no state",
    "gateway.drivers.redis.link": "it shares no state",
    "gateway.drivers.sqlite": "it keeps no file",
    "gateway.features.semantic.index": "it has no semantic cache",
    "gateway.features.semantic.guards": "it has no semantic cache",
    "gateway.dialects.anthropic.in_answer": "nobody has asked for Messages",
    "gateway.dialects.openai.translators": "nobody was asked in another language",
    "gateway.emulator.app": "no provider is emulated",
    "gateway.credentials.sources": "no provider is called with a cloud's credential",
    "cryptography": "it has no service account",
    "gateway.demo": "it is no demo",
    "gateway.workers.supervisor": "it is the only process",
    "httpx2": "it fetches no list of prices",
}
"""Modules, and why a plain gateway has no use for them."""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """What `gateway serve` has imported once it takes calls, with the state in memory and one provider."""
    config = tmp_path_factory.mktemp("plain") / "config.yaml"
    config.write_text(CONFIG)
    ran = subprocess.run([sys.executable, "-c", START, str(config)], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[0].split())


def test_a_gateway_without_redis_does_not_load_its_client(loaded: set[str]) -> None:
    """Not through pybreaker, either, which takes it where it finds it."""
    assert "pybreaker" in loaded
    assert not {"redis", "hiredis"} & loaded


@pytest.mark.parametrize(("module", "why"), UNUSED.items())
def test_a_plain_gateway_does_not_load_what_it_never_uses(loaded: set[str], module: str, why: str) -> None:
    """Each module costs time at the start, and memory as long as the process lives."""
    assert module not in loaded, why


def test_the_prices_are_there_without_a_client_to_fetch_them(loaded: set[str]) -> None:
    """The list comes with its package."""
    assert "genai_prices.data" in loaded
