"""`kill -HUP` 100 times under 300 calls/s, with good and bad configs in turn: no failed call, no mixed config.

Every config version names its targets after itself (`one/v7a`, then `two/v7b`) and sends itself in a header, so an answer or
a provider's request that mixes two versions shows it. The first provider fails often and is silent now and then, so calls
outlive the config they came in with, and need its other half late.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, Fault, FaultRule
from tests.e2e.harness import Response, chat, post
from tests.soak.conftest import Report
from tests.soak.load import Load
from tests.soak.support import Served, serve, spread, sum_of

pytestmark = pytest.mark.soak

CALLS_PER_S = 300.0
HANG_UPS = 100
_PROVIDER = "providers: {one: {dialect: openai, base_url: 'http://x/v1'"
BAD = (
    f"{_PROVIDER}, api_kee: 1}}}}\nmodels: {{m: {{targets: [one]}}}}\n",
    "models: [\n",
    "",
    f"{_PROVIDER}, api_key: '${{NO_SUCH_VARIABLE}}'}}}}\nmodels: {{m: {{targets: [one]}}}}\n",
    f"{_PROVIDER}}}}}\nmodels: {{m: {{targets: [three]}}}}\n",
    "\x00\x01",
)


@dataclass(slots=True)
class Stage:
    """A gateway process between a load and two providers, and the config it is told to read."""

    served: Served
    config: Path
    providers: dict[str, EmulatorServer]

    def write(self, text: str) -> None:
        """Replace the config in one step, as editors and config maps do."""
        new = self.config.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.config)

    async def reported(self) -> tuple[float, float]:
        """The version in force, and how many reloads were refused."""
        families = await self.served.metrics()
        return sum_of(families, "gateway_config_version"), sum_of(families, "gateway_config_reload_errors_total")

    async def until_reported(self, version: float, errors: float) -> None:
        """Wait until /metrics says so."""
        async with asyncio.timeout(10):
            while await self.reported() != (version, errors):  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(0.01)

    def mixed(self) -> list[str]:
        """Requests whose model and header are of different versions, as the providers saw them."""
        seen = [one for provider in self.providers.values() for one in provider.emulator.recorder.last(1_000_000)]
        return [str(one)[:500] for one in seen if dict(one["headers"])["x-config"] != _version(one["body"])]


def _version(body: str) -> str:
    return str(re.findall(r'"model":"(v\d+)[ab]"', body)[0])


def config_of(number: int, providers: dict[str, EmulatorServer]) -> str:
    """Version `number`: every name in it says so."""
    entries = {
        name: {"dialect": "openai", "base_url": one.base_url, "api_key": "k", "headers": {"x-config": f"v{number}"}}
        for name, one in providers.items()
    }
    models = {
        "m": {"targets": [f"one/v{number}a"], "fallbacks": ["f"]},
        "f": {"targets": [f"two/v{number}b"]},
    }
    return yaml.safe_dump({"policies": "policies", "providers": entries, "models": models})


def request_of(number: int) -> bytes:
    """Every fourth call is streamed."""
    return post(body=chat("m", stream=number % 4 == 0))


def check(number: int, answer: Response) -> str:
    """A whole answer, all of one version; told apart by whether the call met a silent provider."""
    trail = answer.header("x-gateway-attempts") or ""
    versions = set(re.findall(r"(v\d+)[ab]:", trail)) | set(re.findall(rb'"model":"(v\d+)[ab]"', answer.body))
    assert answer.status == 200, answer.raw
    assert answer.body.endswith(b"data: [DONE]\n\n" if number % 4 == 0 else b"}"), answer.raw
    assert len({str(one, "ascii") if isinstance(one, bytes) else one for one in versions}) == 1, answer.raw
    return "after a timeout" if ":timeout" in trail else "plain"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """The first provider fails a third of its calls, and keeps one in fifty waiting until the clock ends it."""
    faults = (FaultRule(Fault("silence"), 0.02), FaultRule(Fault("e500"), 0.33))
    providers = {
        "one": EmulatorServer(EmulatorConfig(faults=faults, recorded_requests=1_000_000, recorded_bytes=1 << 30)),
        "two": EmulatorServer(EmulatorConfig(recorded_requests=1_000_000, recorded_bytes=1 << 30)),
    }
    for one in providers.values():
        await one.start()
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "timeouts.yaml").write_text("default: {first_byte: 2500ms}\n")
    config = tmp_path / "config.yaml"
    config.write_text(config_of(1, providers))
    async with serve(config) as served:
        yield Stage(served, config, providers)
    for one in providers.values():
        await one.stop()


def judge(stage: Stage, load: Load) -> None:
    """No call failed, none was mixed."""
    assert load.faults == []
    assert stage.mixed() == []


async def test_100_hang_ups_under_load_fail_and_mix_nothing(stage: Stage, report: Report) -> None:
    """Good and bad configs in turn, each waited for: every good one takes over, every bad one is reported."""
    load = Load(stage.served.url, CALLS_PER_S, request_of, check)

    async def hang_up() -> None:
        for number in range(1, HANG_UPS + 1):
            is_bad = number % 2 == 0
            stage.write(BAD[number // 2 % len(BAD)] if is_bad else config_of(number + 1, stage.providers))
            stage.served.hang_up()
            await stage.until_reported(1 + (number + 1) // 2, number // 2)
            await asyncio.sleep(0.1)

    await load.during(hang_up())

    fell_back = stage.providers["two"].emulator.stats.total
    report(
        f"{HANG_UPS} hang-ups, {load.calls} calls at {CALLS_PER_S:g}/s, {fell_back} served by the second "
        f"provider, {len(load.faults)} failed, {len(stage.mixed())} mixed\n  latency: {spread(load.latencies_s['plain'])}"
    )
    judge(stage, load)
    assert load.latencies_s["after a timeout"]
    assert stage.served.log.read_text().count("config not reloaded") == HANG_UPS // 2
    calls = [orjson.loads(line) for line in stage.served.calls.read_text().splitlines()]
    assert {one["outcome"] for one in calls} == {"ok"}


async def test_hang_ups_in_a_burst_coalesce_and_the_last_config_counts(stage: Stage, report: Report) -> None:
    """100 at once are fewer reloads, but what the file says behind the last of them is what is in force."""
    load = Load(stage.served.url, CALLS_PER_S, request_of, check)

    async def hang_up() -> None:
        for number in range(2, HANG_UPS + 2):
            is_bad = number % 2 == 0
            stage.write(BAD[number // 2 % len(BAD)] if is_bad else config_of(number, stage.providers))
            stage.served.hang_up()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while f"v{HANG_UPS + 1}a" not in _asked(stage):  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(0.05)

    await load.during(hang_up())

    version, errors = await stage.reported()
    report(
        f"a burst of {HANG_UPS} hang-ups: {version - 1:g} good reloads, {errors:g} refused; {load.calls} calls, "
        f"{len(load.faults)} failed\n  latency: {spread(load.latencies_s['plain'])}"
    )
    judge(stage, load)


def _asked(stage: Stage) -> str:
    return str(stage.providers["one"].emulator.recorder.last(20))
