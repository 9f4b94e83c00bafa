"""What the handling of failures promises under load: a total outage, a dead primary, providers that fail at random.

The gateway is a process of its own with the default policies; providers and clients share this one, so times are upper
bounds. Ratios are of what reached the providers, as they count it themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from openai import AsyncOpenAI

from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_rule
from tests.soak.conftest import Report
from tests.soak.provided import provided
from tests.soak.storms import Answered, Client, clients, codes, percentile, request
from tests.soak.support import Served, serve, sum_of

pytestmark = pytest.mark.soak

TTFT_S = 0.02
PROVIDER = EmulatorConfig(ttft_s=TTFT_S, output_tokens=10, recorded_requests=0)
MIX = (
    *("e500", "e503", "e529", "html502", "reset", "silence", "cut", "truncated", "malformed"),
    *("in_band_error", "empty_200", "error_in_200", "no_done"),
)
"""Half of them break streams only when the client has a part of them. 429s are not among them: they have their storms."""
DEADLINE_S = 5.0
SHORT: dict[str, Any] = {"timeouts": {"first_byte": "500ms", "idle": "500ms"}}
"""Half a second of silence is long enough for these providers."""
MESSAGES: Any = [{"role": "user", "content": "hello there"}]


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway with a model `m`, and its providers."""

    served: Served
    providers: list[EmulatorServer]

    @property
    def url(self) -> str:
        return self.served.url

    def reached(self) -> int:
        """How many requests have come to the providers."""
        return sum(one.emulator.stats.total for one in self.providers)

    async def fail(self, *rules: str) -> None:
        """Let all providers fail like this from now on; nothing: not at all."""
        for one in self.providers:
            await one.configure(faults=tuple(map(parse_rule, rules)))

    async def attempts(self) -> float:
        """How many tries the gateway has counted."""
        return sum_of(await self.served.metrics(), "gateway_attempts_total")


@asynccontextmanager
async def scene(
    folder: Path, *, model: str = "m", fallback: bool = False, **policies: dict[str, Any]
) -> AsyncIterator[Scene]:
    """Two providers: both the model's own, or the second one a fallback's. What nobody has a price for is tried less often."""
    written = folder / "policies"
    written.mkdir(exist_ok=True)
    for name, policy in policies.items():
        (written / f"{name}.yaml").write_text(yaml.safe_dump({"default": policy}))
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(provided(PROVIDER)) for _ in range(2)]
        entries = {
            f"p{number}": {"dialect": "openai", "base_url": one.base_url, "api_key": "k"}
            for number, one in enumerate(providers)
        }
        models: dict[str, Any] = {"m": {"targets": [f"p0/{model}", f"p1/{model}"]}}
        if fallback:
            models = {"m": {"targets": ["p0/m"], "fallbacks": ["n"]}, "n": {"targets": ["p1/m"]}}
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump({"providers": entries, "models": models, "policies": "policies"}))
        yield Scene(await stack.enter_async_context(serve(config)), providers)


async def offer(url: str, per_s: float, while_: Callable[[], bool], found: list[Answered]) -> None:
    """So many calls a second, each when it is due; latencies count from then. Answers are put into `found` as they come."""
    idle: list[Client] = []
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as calls:

        async def one(due_at: float) -> None:
            client = idle.pop() if idle else (await stack.enter_async_context(clients(url, 1)))[0]
            found.append(replace(await client.ask(request()), sent_at=due_at))
            idle.append(client)

        began_at, number = time.monotonic(), 0
        while while_():
            due_at = began_at + number / per_s
            await asyncio.sleep(due_at - time.monotonic())
            calls.create_task(one(due_at))
            number += 1


def p99_ms(answers: Sequence[Answered]) -> float:
    """Of the times that these took."""
    return percentile([one.took_s for one in answers], 99) * 1000


def between(answers: Sequence[Answered], start: float, end: float) -> list[Answered]:
    """Those that were due then."""
    return [one for one in answers if start <= one.sent_at < end]


OUTAGE_S = 10.0
CALLS_PER_S = 500
PROBE_INTERVAL_S = 20.0
"""After an outage of 10 s: the second one, 10 s doubled."""


@pytest.mark.parametrize("fault", ["e503", "refuse"])
async def test_a_total_outage(tmp_path: Path, report: Report, fault: str) -> None:
    """Few requests reach the dead, refusals are quick, and once the providers are well again everybody is soon served."""
    async with scene(tmp_path) as on_scene:
        found, done = list[Answered](), False
        calling = asyncio.create_task(offer(on_scene.url, CALLS_PER_S, lambda: not done, found))
        await asyncio.sleep(3.0)
        tried = await on_scene.attempts()
        await on_scene.fail(fault)
        began_at = time.monotonic()
        await asyncio.sleep(OUTAGE_S)
        await on_scene.fail()
        healed_at = time.monotonic()
        tried = await on_scene.attempts() - tried
        recovered_at = await all_served(found, healed_at)
        done = True
        await calling

    offered = between(found, began_at, healed_at)
    open_at = min(one.ended_at for one in offered if one.code.endswith("circuit_open"))
    refusals = [one for one in between(offered, open_at, healed_at) if one.status != 200]
    first_at = min(one.ended_at for one in found if one.sent_at > healed_at and one.status == 200)
    report(
        f"outage ({fault}), {CALLS_PER_S} calls/s for {OUTAGE_S:g} s: {len(offered)} calls, {codes(offered)}\n"
        f"  {tried:.0f} attempts, {tried / len(offered):.3f} per call (bar 1.2); open after {open_at - began_at:.2f} s\n"
        f"  refusals once open: p50 {percentile([one.took_s for one in refusals], 50) * 1000:.1f} ms, "
        f"p99 {p99_ms(refusals):.1f} ms (bar 50)\n"
        f"  healed: first answer after {first_at - healed_at:.1f} s, every call served after "
        f"{recovered_at - healed_at:.1f} s (one probe interval: {PROBE_INTERVAL_S:g} s)"
    )
    assert tried <= 1.2 * len(offered)
    assert p99_ms(refusals) < 50.0
    assert first_at - healed_at <= PROBE_INTERVAL_S


async def all_served(found: list[Answered], since: float) -> float:
    """Wait for a second in which every call was served; when it began."""
    while time.monotonic() < since + 60.0:
        await asyncio.sleep(0.25)
        now = time.monotonic()
        lately = [one for one in found[-3 * CALLS_PER_S :] if now - 1.5 < one.sent_at < now - 0.5]
        if lately and now - 1.5 > since and all(one.status == 200 for one in lately):
            return now - 1.5
    raise AssertionError("not recovered within a minute")


DEAD_CALLS = 10_000
DEAD_PER_S = 250


@pytest.mark.parametrize("fault", ["e503", "silence", "refuse"])
async def test_a_dead_primary(tmp_path: Path, report: Report, fault: str) -> None:
    """No client notices, but for the few who find out."""
    async with scene(tmp_path, fallback=True, **SHORT) as on_scene:
        usual = list[Answered]()
        usual_until = time.monotonic() + 4.0
        await offer(on_scene.url, DEAD_PER_S, lambda: time.monotonic() < usual_until, usual)
        primary = on_scene.providers[0]
        tried = sum_of(await on_scene.served.metrics(), "gateway_attempts_total", target="p0/m")
        await primary.configure(faults=(parse_rule(fault),))
        began_at = time.monotonic()
        found = list[Answered]()
        ends_at = began_at + DEAD_CALLS / DEAD_PER_S
        watching = asyncio.create_task(watch(on_scene, began_at, ends_at))
        await offer(on_scene.url, DEAD_PER_S, lambda: time.monotonic() < ends_at, found)
        seen = await watching

    at_once, later = seen[0] - tried, seen[-1] - seen[0]
    per_min = later / (ends_at - began_at - 5.0) * 60.0
    calm = between(found, began_at + 5.0, ends_at)
    report(
        f"primary dead ({fault}), fallback healthy: {len(found)} calls at {DEAD_PER_S}/s: {codes(found)}\n"
        f"  reached the dead one: {at_once:.0f} in the first 5 s, then {per_min:.1f} a minute (bar 10)\n"
        f"  p99 {p99_ms(calm):.1f} ms once open, {p99_ms(usual):.1f} ms with a healthy primary: "
        f"{p99_ms(calm) - p99_ms(usual):+.1f} ms (bar 20); all from the start: p99 {p99_ms(found):.1f} ms"
    )
    assert codes(found) == {"ok": len(found)}
    assert per_min <= 10.0
    assert p99_ms(calm) - p99_ms(usual) <= 20.0


async def watch(on_scene: Scene, began_at: float, ends_at: float) -> list[float]:
    """How often the primary has been tried, 5 s after the beginning and at the end."""
    seen = []
    for at in (began_at + 5.0, ends_at):
        await asyncio.sleep(at - time.monotonic())
        seen.append(sum_of(await on_scene.served.metrics(), "gateway_attempts_total", target="p0/m"))
    return seen


RANDOM_CALLS = 10_000
AT_ONCE = 40


@pytest.mark.parametrize("percent", [10, 30])
async def test_random_faults(tmp_path: Path, report: Report, percent: int) -> None:
    """Whatever the mix, what can be repaired is, within the deadline and with little more than one try a call."""
    async with scene(tmp_path, model="gpt-4o", **SHORT) as on_scene:
        await on_scene.fail(*mix(percent))
        found = list[Answered]()
        asked = request(deadline_s=DEADLINE_S)

        async def caller(client: Client) -> None:
            while len(found) < RANDOM_CALLS:
                found.append(await client.ask(asked))

        async with clients(on_scene.url, AT_ONCE) as made:
            await asyncio.gather(*map(caller, made))
        denied = sum_of(await on_scene.served.metrics(), "gateway_retries_denied_total")

    served_share = sum(one.status == 200 for one in found) / len(found)
    per_call = on_scene.reached() / len(found)
    report(
        f"{percent} % random faults of {len(MIX)} kinds, {len(found)} calls, {AT_ONCE} at once: {codes(found)}\n"
        f"  {served_share:.3%} served within {DEADLINE_S:g} s, {per_call:.3f} attempts per call, "
        f"{denied:.0f} retries denied, p99 {p99_ms(found):.0f} ms"
    )
    if percent == 10:
        assert served_share >= 0.9995
        assert per_call <= 1.15


def mix(percent: float) -> list[str]:
    """All kinds of faults, together so often."""
    rules, left = [], 1.0
    for fault in MIX:  # each rule is asked only where those before it have not fired
        share = percent / 100 / len(MIX)
        kind, _, rest = fault.partition(";")
        rules.append(f"{kind}={share / left:.6f}" + (f";{rest}" if rest else ""))
        left -= share
    return rules


SDK_CALLS = 1000
Ask = Callable[[AsyncOpenAI], Awaitable[str]]


async def ask_whole(sdk: AsyncOpenAI) -> str:
    """One answer in one piece."""
    answer = await sdk.chat.completions.create(model="m", messages=MESSAGES)
    return "ok" if answer.choices and answer.choices[0].finish_reason == "stop" else "silently wrong"


async def ask_streamed(sdk: AsyncOpenAI) -> str:
    """One stream, read to its end."""
    finish = None
    async for chunk in await sdk.chat.completions.create(model="m", messages=MESSAGES, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
    return "ok" if finish == "stop" else "silently wrong"


async def through(url: str, retries: int, ask: Ask) -> tuple[Counter[str], list[float]]:
    """What an application sees of many calls."""
    ends, took_s, left = Counter[str](), list[float](), iter(range(SDK_CALLS))
    async with AsyncOpenAI(base_url=url, api_key="k", max_retries=retries, timeout=DEADLINE_S) as sdk:

        async def caller() -> None:
            for _ in left:
                began_at = time.monotonic()
                try:
                    ends[await ask(sdk)] += 1
                except openai.OpenAIError:
                    ends["error"] += 1
                except Exception:  # noqa: BLE001 - a broken answer leaves the SDK in many ways
                    ends["crash"] += 1
                took_s.append(time.monotonic() - began_at)

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return ends, took_s


async def test_the_table(tmp_path: Path, report: Report) -> None:
    """The same faults without a gateway, with the SDK's own retries, and through the gateway."""
    lines = [f"{'faults':>6} {'answer':8} {'by way of':22} {'served':>7} {'silent':>7} {'tries/call':>10} {'p99':>7}"]
    for percent in (10, 30):
        async with scene(tmp_path, model="gpt-4o", **SHORT) as on_scene:
            await on_scene.fail(*mix(percent))
            direct = on_scene.providers[0].base_url
            ways = (
                ("no gateway", direct, 0),
                ("plain SDK retries (2)", direct, 2),
                ("gateway", f"{on_scene.url}/v1", 2),
            )
            for kind, ask in (("whole", ask_whole), ("streamed", ask_streamed)):
                for way, url, retries in ways:
                    before = on_scene.reached()
                    ends, took_s = await through(url, retries, ask)
                    tries = (on_scene.reached() - before) / SDK_CALLS
                    lines.append(
                        f"{percent:>4} % {kind:8} {way:22} {ends['ok'] / SDK_CALLS:>7.1%} "
                        f"{ends['silently wrong'] / SDK_CALLS:>7.1%} {tries:>10.2f} {percentile(took_s, 99):>6.2f}s"
                    )
                    assert way != "gateway" or not ends["silently wrong"]
    report("\n".join(lines))
