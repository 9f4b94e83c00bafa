"""A program of five steps whose gateway is killed, as the kernel does, behind each step and at any moment within one.

The program is plain: it asks for its steps in order, and begins anew with the next gateway. The provider outlives them all, and
counts: each kill may cost one step more.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from gateway.emulator.app import EmulatorServer
from tests.e2e.durable import WEB, policies
from tests.e2e.harness import KEYS, config_of, connect, post
from tests.e2e.lives import Life, life
from tests.soak.conftest import Report
from tests.soak.provided import jobs_in, prompts_of, provided, remembering
from tests.support.redis_servers import redis_server

pytestmark = pytest.mark.soak

NAMES = ("extract", "check", "translate", "summarise", "report")
RUNS = 10
"""Each with a kill within each step, and one behind it."""
WITHIN_S = 0.030
"""A step takes about as long: first bytes after 10 ms, and some more for the rest."""
WORDS = remembering(ttft_s=0.01, jitter=0.5, output_tokens=8)


@dataclass(slots=True)
class Program:
    """One run of the program, and what its steps were answered."""

    provider: EmulatorServer
    run: str
    is_streamed: bool
    given: dict[str, bytes] = field(default_factory=dict)
    replayed: int = 0

    async def ask(self, url: str, name: str) -> None:
        """One step; its answer is what it was before, if it was given before."""
        asked: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": f"{self.run} {name}"}]}
        headers = (WEB, f"x-gateway-run: {self.run}", f"x-gateway-step: {name}")
        async with connect(url) as peer:
            answer = await peer.exchange(post("/v1/chat/completions", {**asked, "stream": self.is_streamed}, *headers))
        assert answer.status == 200, answer.raw
        assert answer.body.endswith(b"data: [DONE]\n\n") == self.is_streamed
        assert self.given.setdefault(name, answer.body) == answer.body
        self.replayed += answer.header("x-gateway-step-replayed") == "true"

    async def until_killed(self, one: Life, last: int, within_s: float | None) -> None:
        """The steps up to this one; then the kill, or so many seconds within the next."""
        for name in NAMES[: last + 1]:
            await self.ask(one.url, name)
        if within_s is not None:
            asking = asyncio.ensure_future(self.ask(one.url, NAMES[last + 1]))
            await asyncio.sleep(within_s)
            one.kill()
            await asyncio.gather(asking, return_exceptions=True)
        else:
            one.kill()
        assert await one.ends() == -signal.SIGKILL

    def paid(self) -> Counter[str]:
        """How often the provider was asked for each step."""
        return Counter(prompts_of(self.provider, self.run))


def config_in(folder: Path, url: str, redis: str) -> Path:
    """A gateway with its jobs in a file, or in the Redis that it has as its state."""
    rules = policies(folder, cache={"idempotency": {"lease": "300ms"}})  # the claims of the dead end while others begin
    config = folder / "config.yaml"
    sections = {**jobs_in(folder, redis), "policies": rules, "keys": KEYS}
    config.write_bytes(orjson.dumps(dict(config_of(url, **sections))))
    return config


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_a_kill_costs_one_step_at_most(store: str, tmp_path: Path, report: Report) -> None:
    """Behind a step nothing; within one, that step at most. What was given is given again."""
    random = Random(f"{store} kills")
    kills = Counter[str]()
    paid = again = 0
    async with provided(WORDS) as provider:
        with redis_server() as server:
            config = config_in(tmp_path, provider.base_url, server.url if store == "redis" else "")
            for number in range(RUNS):
                program = Program(provider, f"run-{number}", is_streamed=number % 2 == 1)
                moments = [
                    moment
                    for last in range(len(NAMES))
                    for moment in ((last - 1, random.uniform(0, WITHIN_S)), (last, None))
                ]
                for last, within_s in moments:
                    before = program.paid()
                    async with life(config) as one:
                        await program.until_killed(one, last, within_s)
                    assert "Traceback" not in one.said
                    more = program.paid() - before
                    wanted = {NAMES[last]} if within_s is None else {NAMES[last + 1]}
                    assert set(more) <= wanted, (last, within_s, more)
                    assert more.total() <= 1, (last, within_s, more)
                    kills["behind" if within_s is None else "within"] += 1
                async with life(config) as one:
                    for name in NAMES:
                        await program.ask(one.url, name)
                counted = program.paid()
                assert set(counted) == set(NAMES)
                assert max(counted.values()) <= 2, counted
                paid, again = paid + counted.total(), again + program.replayed
    report(
        f"{store}: {kills.total()} kills ({dict(kills)}) in {RUNS} runs of {len(NAMES)} steps; {paid} steps paid for, "
        f"{paid - RUNS * len(NAMES)} more than without a kill; {again} answers given again, each the same bytes"
    )
    assert paid <= RUNS * len(NAMES) + kills.total()
