"""A batch whose gateway is killed again and again, and the reckoning at its end, by the provider's ledger and the files.

After each kill the jobs file is asked which lines have results: none of these may ever be asked for again.

The gateway is a process that is killed as the kernel does, at moments drawn from a seed: soon after its start, or after some
progress. The provider outlives it and counts. Invariant: no kill comes before the batch was acknowledged.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import openai
import yaml
from openai import AsyncOpenAI
from openai.types import Batch

from gateway.demo.sqlite import lines_with_results
from gateway.emulator.app import EmulatorServer
from gateway.emulator.config import EmulatorConfig
from tests.e2e.batches import BATCH_ENDS, BatchFiles, asked_of, begin, calls_in, check_end, end_of, line
from tests.e2e.durable import with_jobs
from tests.e2e.harness import WEB_KEY, until
from tests.e2e.lives import Life, life
from tests.e2e.replaying import assert_sound
from tests.loopback import plain_http

LONGEST_LIFE_S = 0.8
"""Of a life that is killed by the clock."""
UNEVEN = EmulatorConfig(
    ttft_s=0.06, jitter=0.6, output_tokens=8, recorded_requests=1_000_000, recorded_bytes=256 * 1024 * 1024
)
"""Every answer takes its own time."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One life that was ended."""

    in_flight: int
    """Calls that the provider had not answered yet."""
    committed: frozenset[int]
    """The lines that have results."""
    asked: int
    """Calls that the provider has seen so far, over all lives."""
    status: str
    """Of the batch, as last seen before; empty: nobody could look."""


@dataclass(slots=True)
class Reckoning:
    """What a batch came to."""

    lines: int
    kills: list[Kill] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    files: BatchFiles | None = None
    said: str = ""
    """All that the gateways said."""

    @property
    def extra(self) -> int:
        """Calls beyond one for each line."""
        return self.asked.total() - self.lines

    @property
    def in_flight(self) -> int:
        """Calls that were in flight at the kills, all together."""
        return sum(kill.in_flight for kill in self.kills)

    def sentence(self) -> str:
        """The figures."""
        assert self.files is not None
        committed = [len(kill.committed) for kill in self.kills]
        seen = Counter(kill.status for kill in self.kills)
        return (
            f"{self.lines} lines, {len(self.kills)} kills ({dict(seen)}): {len(self.files.output)} results, "
            f"{len(self.files.errors)} errors; {self.extra} calls more than lines, {self.in_flight} in flight at the kills; "
            f"lines committed at the first, middle and last: {committed[0]}, {committed[len(committed) // 2]}, {committed[-1]}"
        )

    def check_paid_once(self, asked: Sequence[str], custom_ids: Sequence[str]) -> None:
        """That no line was asked for again whose result was kept; `asked` is every call in its order."""
        place = {name: number for number, name in enumerate(custom_ids)}
        for kill in self.kills:
            again = [name for name in asked[kill.asked :] if place[name] in kill.committed]
            assert not again, again[:5]


async def run_through_kills(folder: Path, custom_ids: Sequence[str], kills: int, seed: int) -> Reckoning:
    """Run a batch of these lines through so many kills to its end; raises AssertionError where a line is lost or doubled."""
    rng, found = random.Random(seed), Reckoning(len(custom_ids))
    provider = EmulatorServer(UNEVEN)
    await provider.start()
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(dict(with_jobs(folder)(provider.base_url))))
    async with life(config) as served, sdk_of(served) as sdk:
        batch = await begin(sdk, map(line, custom_ids))
        await _live(served, provider, rng, len(custom_ids) // (kills + 1))
        found.kills.append(await _kill(served, sdk, batch, provider, folder))
    for _ in range(1, kills):
        async with life(config) as served, sdk_of(served) as sdk:
            seen = await sdk.batches.retrieve(batch.id)
            await _live(served, provider, rng, len(custom_ids) // (kills + 1))
            found.kills.append(await _kill(served, sdk, seen, provider, folder))
        found.said += served.said
        assert_sound(folder / "jobs.db")
    async with life(config) as served, sdk_of(served) as sdk:
        done = await end_of(sdk, batch.id)
        found.files = await check_end(sdk, done, custom_ids)
        assert done.status == "completed"
        found.said += served.said
    await provider.stop()
    found.asked = asked_of(provider.emulator.recorder)
    found.check_paid_once(calls_in(provider.emulator.recorder), custom_ids)
    return found


async def _live(served: Life, provider: EmulatorServer, rng: random.Random, part: int) -> None:
    """Wait for a drawn time or a drawn number of answers, whichever comes first; every third life is a short one."""
    stats = provider.emulator.stats
    until = stats.statuses[200] + rng.randint(0, 2 * part)
    longest_s = rng.uniform(0.0, LONGEST_LIFE_S if rng.random() < 2 / 3 else LONGEST_LIFE_S / 8)
    ends_at = asyncio.get_running_loop().time() + longest_s
    while stats.statuses[200] < until and asyncio.get_running_loop().time() < ends_at:  # noqa: ASYNC110 - counters of another server set no event
        await asyncio.sleep(0.001)


async def _kill(served: Life, sdk: AsyncOpenAI, before: Batch, provider: EmulatorServer, folder: Path) -> Kill:
    """Look at the batch a last time, and kill; an end that was seen stays, and counts never go back."""
    status = ""
    try:
        async with asyncio.timeout(0.5):
            seen = await sdk.batches.retrieve(before.id)
    except (TimeoutError, openai.APIError):
        pass
    else:
        status = seen.status
        assert before.status not in BATCH_ENDS or status == before.status
        if before.request_counts is not None and seen.request_counts is not None:
            assert seen.request_counts.completed >= before.request_counts.completed
    served.kill()
    in_flight = provider.emulator.stats.active
    assert await served.ends() == -signal.SIGKILL
    await until(lambda: provider.emulator.stats.active == 0)
    return Kill(in_flight, lines_with_results(str(folder / "jobs.db")), len(provider.emulator.recorder._kept), status)


def sdk_of(served: Life) -> AsyncOpenAI:
    """The SDK of the first tenant."""
    return AsyncOpenAI(base_url=f"{served.url}/v1", api_key=WEB_KEY, max_retries=0, http_client=plain_http())
