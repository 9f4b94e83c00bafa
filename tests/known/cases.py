"""The cases: a client's load, what goes wrong at the provider, and what became of it, by the provider's own ledger.

Each side of a case has a provider of its own with the same seed, and the same client: the openai SDK. An answer that the
provider has begun with a 200 counts as paid, whether it was of use or not. It must not know how results are shown.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from openai import APIStatusError, AsyncOpenAI, OpenAIError

from gateway.demo.processes import process
from gateway.demo.storm import provider
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig, parse_rule

MODEL = "gpt-4o"
AT_A_TIME = 40
"""Calls of a client that has many to make."""
ASYNC = {"Prefer": "respond-async, wait=60"}
QUICK = {"jobs.yaml": {"default": {"backoff": {"base": "200ms", "max": "2s"}}}}
"""What failed for now is tried again within a case's time."""
CACHED = {"cache.yaml": {"default": {"exact": {"requests": "always", "ttl": "1h"}}}}
Ends = Counter[str]
"""How often parts of a load ended so: as `DONE`, or by the status and code of the error that the client was left with."""
DONE = ""
Make = Callable[[AsyncOpenAI], Coroutine[Any, Any, Ends]]
"""Makes the load with a client."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a case."""

    name: str
    ends: Ends
    of: int
    paid: int

    @property
    def done(self) -> int:
        """How much of the load was done."""
        return self.ends[DONE]

    @property
    def refusals(self) -> str:
        """What the rest ended with, the most frequent first: `503 queue_full x 3`."""
        return ", ".join(f"{code} x {count:,}" for code, count in self.ends.most_common() if code != DONE)

    @property
    def percent(self) -> float:
        """What part was done."""
        return 100 * self.done / self.of


@dataclass(frozen=True, slots=True)
class Case:
    """A case and its sides, the first of which is straight at the provider."""

    name: str
    sides: tuple[Side, ...]


def faults(*rules: str, seed: int) -> EmulatorConfig:
    """A provider where these go wrong."""
    return EmulatorConfig(seed=seed, faults=tuple(map(parse_rule, rules)), recorded_requests=0, ttft_s=0.005)


TRANSIENT = ("e503=0.045", "e500=0.03", "reset=0.0256", "truncated=0.005")
"""One call in ten fails, and nothing in it is the call's fault: of four in a row without a fault there are 64 %."""


async def hundred_at_once(seed: int, calls: int = 100) -> Case:
    """A limit of 10 a second, 10 at once."""
    limited = EmulatorConfig(seed=seed, rpm=600, burst=10, recorded_requests=0, ttft_s=0.05)
    told = {"rpm": 600, "burst": 10}
    work = _calls(calls, at_a_time=calls)
    return Case(
        f"{calls} calls at once, 10 a second allowed",
        (
            await _straight("SDK's 2 retries", limited, work, calls),
            await _through("gateway", (limited,), work, calls, target=told),
        ),
    )


async def documents(seed: int, count: int = 150) -> Case:
    """Each goes through four calls, one after the other, and is lost with the first that fails."""
    troubled, work = faults(*TRANSIENT, seed=seed), _documents(count)
    return Case(
        f"{count} documents x 4 stages, 10 % of calls fail for now",
        (
            await _straight("no retries", troubled, work, count, retries=0),
            await _straight("SDK's 2 retries", troubled, work, count),
            await _through("gateway, no retries of the SDK's", (troubled,), work, count, retries=0),
            await _through("gateway, as jobs", (troubled,), work, count, retries=0, headers=ASYNC, policies=QUICK),
        ),
    )


async def transient(seed: int, calls: int = 1000) -> Case:
    """Three calls in ten fail for a reason that passes, and there is no second provider."""
    troubled, work = faults("e503=0.15", "e500=0.1", "reset=0.05", seed=seed), _calls(calls)
    return Case(
        f"{calls} calls, 30 % fail for now, one provider",
        (
            await _straight("no retries", troubled, work, calls, retries=0),
            await _straight("SDK's 2 retries", troubled, work, calls),
            await _through("gateway, no retries of the SDK's", (troubled,), work, calls, retries=0),
            await _through("gateway, as jobs", (troubled,), work, calls, retries=0, headers=ASYNC, policies=QUICK),
        ),
    )


async def outage(seed: int, calls: int = 1000) -> Case:
    """A provider whose answers break off, and are paid for, for a while; there is another one."""
    broken = faults("truncated;from_s=0;to_s=4", seed=seed)
    work = _calls(calls, every_s=0.01)
    return Case(
        f"{calls} calls in {calls / 100:g} s, answers break off for 4 s",
        (
            await _straight("SDK's 2 retries", broken, work, calls),
            await _through("breaker, fallback", (broken, faults(seed=seed)), work, calls),
        ),
    )


async def repeated(seed: int, calls: int = 1000) -> Case:
    """The same outage, and three calls in ten ask what was asked before."""
    broken = faults("truncated;from_s=0;to_s=4", seed=seed)
    work = _calls(calls, every_s=0.01, kinds=7 * calls // 10)
    return Case(
        f"the same, 30 % of the {calls} questions asked before",
        (
            await _straight("SDK's 2 retries", broken, work, calls),
            await _through("breaker, fallback, cache", (broken, faults(seed=seed)), work, calls, policies=CACHED),
        ),
    )


async def fallback(seed: int, calls: int = 2000) -> Case:
    """A provider that serves 82 of 100, whoever asks again."""
    troubled = faults("e503=0.18", seed=seed)
    return Case(
        f"{calls} calls, 18 % fail; a second provider has the same trouble",
        (
            await _straight("no retries", troubled, _calls(calls), calls, retries=0),
            await _through(
                "one fallback", (troubled, replace(troubled, seed=seed + 1)), _calls(calls), calls, retries=0
            ),
        ),
    )


CASES: tuple[Callable[[int], Coroutine[Any, Any, Case]], ...] = (
    hundred_at_once,
    documents,
    transient,
    outage,
    repeated,
    fallback,
)


def _calls(count: int, *, at_a_time: int = AT_A_TIME, every_s: float = 0.0, kinds: int | None = None) -> Make:
    """So many calls; with `every_s` one begins then, however many are under way. `kinds` of them differ."""

    async def make(client: AsyncOpenAI) -> Ends:
        gate = asyncio.Semaphore(count if every_s else at_a_time)

        async def one(number: int) -> str:
            await asyncio.sleep(number * every_s)
            async with gate:
                return await _ask(client, f"question {number % (kinds or count)}")

        return Counter(await asyncio.gather(*map(one, range(count))))

    return make


def _documents(count: int) -> Make:
    async def make(client: AsyncOpenAI) -> Ends:
        gate = asyncio.Semaphore(AT_A_TIME)

        async def one(number: int) -> str:
            async with gate:
                for stage in ("extract", "classify", "enrich", "report"):
                    if failed := await _ask(client, f"{stage} document {number}"):
                        return failed
                return DONE

        return Counter(await asyncio.gather(*map(one, range(count))))

    return make


async def _ask(client: AsyncOpenAI, words: str) -> str:
    """How a call ended."""
    try:
        said: Any = [{"role": "user", "content": words}]
        answer = await client.chat.completions.create(model=MODEL, messages=said, temperature=0)
    except APIStatusError as error:
        return f"{error.status_code} {error.code or 'without a code'}"
    except (OpenAIError, OSError) as error:
        return type(error).__name__
    return DONE if answer.choices else "no choices"


async def _straight(name: str, config: EmulatorConfig, make: Make, of: int, *, retries: int = 2) -> Side:
    async with provider(config) as server, _client(server.base_url, retries, {}) as client:
        return Side(f"straight, {name}", await make(client), of, server.emulator.stats.statuses[200])


async def _through(
    name: str,
    configs: tuple[EmulatorConfig, ...],
    make: Make,
    of: int,
    *,
    retries: int = 2,
    headers: Mapping[str, str] | None = None,
    policies: Mapping[str, Any] | None = None,
    target: Mapping[str, Any] | None = None,
) -> Side:
    async with AsyncExitStack() as stack:
        servers: list[EmulatorServer] = [await stack.enter_async_context(provider(one)) for one in configs]
        url = await stack.enter_async_context(_gateway(_config(servers, target or {}), policies or {}))
        client = await stack.enter_async_context(_client(url, retries, headers or {}))
        done = await make(client)
        return Side(f"through: {name}", done, of, sum(server.emulator.stats.statuses[200] for server in servers))


@asynccontextmanager
async def _gateway(config: Mapping[str, Any], policies: Mapping[str, Any]) -> AsyncIterator[str]:
    """The base URL of a gateway in a process of its own: what the client and the providers do is none of its load."""
    with TemporaryDirectory(prefix="gateway-known-") as name:
        folder = Path(name)
        (folder / "policies").mkdir()
        for file, content in {"config.yaml": config, **{f"policies/{one}": policies[one] for one in policies}}.items():
            (folder / file).write_text(json.dumps(content))  # JSON is YAML
        async with process(folder, "serve", "--config", "config.yaml", "--port", "0") as one:
            yield f"{await one.address('listens on ')}/v1"


def _config(servers: list[EmulatorServer], target: Mapping[str, Any]) -> dict[str, Any]:
    entries = {
        f"p{at}": {"dialect": "openai", "base_url": server.base_url, "api_key": "sk-known-cases"}
        for at, server in enumerate(servers)
    }
    models: dict[str, Any] = {MODEL: {"targets": [{"provider": "p0", "model": MODEL, **target}]}}
    if len(servers) > 1:
        models[MODEL]["fallbacks"] = ["spare"]
        models["spare"] = {"targets": [f"p1/{MODEL}"]}
    return {
        "providers": entries,
        "models": models,
        "policies": "policies",
        "jobs": {"store": "sqlite:///jobs.db", "min_free": "1MiB"},
    }


@asynccontextmanager
async def _client(url: str, retries: int, headers: Mapping[str, str]) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=url, api_key="sk-known-cases", max_retries=retries, default_headers=dict(headers), timeout=120
    ) as client:
        yield client
