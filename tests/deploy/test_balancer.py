"""The balancer's config, live: replicas are restarted behind it while calls run, and no client sees it.

Needs HAProxy on the machine (`apt-get install haproxy`), so it is part of the soak.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.deploy.support import ROOT, SECRET, tool
from tests.deploy.test_compose import HAPROXY, without_names
from tests.e2e.harness import until

pytestmark = pytest.mark.soak

CALLERS = 20
PATIENCE_S = 30.0
ASK = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Replica:
    """A gateway process that can be started anew on its port."""

    def __init__(self, config: Path) -> None:
        self.port = free_port()
        self._config = config
        self._process: Process | None = None

    async def start(self) -> None:
        """Returns once it is ready."""
        command = ("-m", "gateway", "serve", "--config", str(self._config), "--port", str(self.port))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *command, cwd=ROOT, stdout=DEVNULL, stderr=DEVNULL
        )
        await answers(f"http://127.0.0.1:{self.port}/readyz")

    async def stop(self, how: signal.Signals = signal.SIGTERM) -> int | None:
        """Its exit code, once it has ended; None when it never ran."""
        if self._process is None:
            return None
        if self._process.returncode is None:
            self._process.send_signal(how)
        return await self._process.wait()


async def answers(url: str) -> None:
    """Wait until a GET is answered with 200."""
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient() as client:
        while True:
            try:
                if (await client.get(url)).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.05)


def config_for(folder: Path, base_url: str) -> Path:
    """What every replica runs on."""
    path = folder / "config.yaml"
    provider = {"dialect": "openai", "base_url": base_url, "api_key": "sk-test"}
    model = {"targets": [{"provider": "main", "model": "gpt-4o", "rpm": 1_000_000}]}
    keys = [{"name": "web", "key": SECRET}]
    path.write_text(yaml.safe_dump({"providers": {"main": provider}, "models": {"gpt-4o": model}, "keys": keys}))
    return path


@asynccontextmanager
async def balanced(folder: Path, replicas: list[Replica]) -> AsyncIterator[str]:
    """HAProxy with the config of this project in front of them; its URL, once it takes calls."""
    haproxy = tool("haproxy")
    assert haproxy, "HAProxy is needed: apt-get install haproxy"
    ports, front = iter(replicas), free_port()
    path = without_names(folder, HAPROXY.read_text())
    text = re.sub(r"127\.0\.0\.1:8080", lambda _: f"127.0.0.1:{next(ports).port}", path.read_text())
    path.write_text(text.replace("bind :8080", f"bind 127.0.0.1:{front}"))
    process = await asyncio.create_subprocess_exec(haproxy, "-f", str(path), stdout=DEVNULL, stderr=DEVNULL)
    try:
        await answers(f"http://127.0.0.1:{front}/readyz")
        yield f"http://127.0.0.1:{front}"
    finally:
        process.kill()
        await process.wait()


class Traffic:
    """Callers who ask one after the other until they are told to stop; every second one for a stream."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/v1/chat/completions"
        self.failed: list[str] = []
        self.served = 0
        self.goes_on = True

    async def caller(self, number: int) -> None:
        """Every answer is whole, or noted."""
        headers = {"authorization": f"Bearer {SECRET}"}
        is_stream = number % 2 == 0
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE_S) as client:
            while self.goes_on:
                answer = await client.post(self._url, json={**ASK, "stream": is_stream})
                if answer.status_code == 200 and ("[DONE]" if is_stream else '"usage"') in answer.text:
                    self.served += 1
                else:
                    self.failed.append(f"{answer.status_code} {answer.text[:200]}")

    async def served_more(self, count: int) -> None:
        """Wait until so many more calls were answered."""
        goal = self.served + count
        await until(lambda: self.served >= goal or bool(self.failed))


@asynccontextmanager
async def two_replicas(folder: Path) -> AsyncIterator[list[Replica]]:
    """Ready, with an emulator for a provider."""
    provider = EmulatorServer(EmulatorConfig(ttft_s=0.02, tokens_per_second=200.0, output_tokens=10))
    await provider.start()
    replicas = [Replica(config_for(folder, provider.base_url)) for _ in range(2)]
    try:
        for replica in replicas:
            await replica.start()
        yield replicas
    finally:
        for replica in replicas:
            await replica.stop(signal.SIGKILL)
        await provider.stop()


async def test_no_call_fails_while_replicas_are_restarted(tmp_path: Path) -> None:
    """Each is stopped and started twice under load; it ends with 0, and every call is answered whole."""
    codes = []
    async with two_replicas(tmp_path) as replicas, balanced(tmp_path, replicas) as url:
        traffic = Traffic(url)
        async with asyncio.TaskGroup() as tasks:
            for number in range(CALLERS):
                tasks.create_task(traffic.caller(number))
            for replica in replicas * 2:
                await traffic.served_more(50)
                codes.append(await replica.stop())
                await traffic.served_more(50)
                await replica.start()
                await traffic.served_more(100)
            traffic.goes_on = False

    assert traffic.failed == []
    assert codes == [0, 0, 0, 0]
