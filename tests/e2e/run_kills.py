"""A run of five stages whose gateway is killed on the way, and what the provider's own ledger says of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import yaml

from tests.e2e.durable import ENDS, WEB, ask, new_job
from tests.e2e.five_stages import calls_paid, config_with, says
from tests.e2e.harness import PATIENCE_S, Response, get
from tests.e2e.lives import life
from tests.e2e.speaking import CALL_USD, SpeakingProvider, speaking

PAUSE_S = 0.05
DELAY_S = 0.02
"""Of an answer."""


@dataclass(frozen=True)
class KilledRun:
    """A run that has ended, and what was paid for it."""

    job: dict[str, Any]
    answer: dict[str, Any]
    steps: str
    kills: int
    paid: int
    """Answers that the provider has given."""
    least: int
    """Answers that a run without a kill pays for."""
    twice: int
    """Prompts that were answered more than once, but those that are asked again on purpose."""
    paid_usd: float
    run: dict[str, Any]
    """The run as its calls add up to it."""
    said: str

    def sentence(self) -> str:
        """What there is to tell."""
        return (
            f"{self.kills} kills: {self.steps}; {self.paid} answers paid for, {self.least} without a kill; "
            f"the run's cost ${self.job['cost_usd']:.4f} and ${self.run['wasted_usd']:.4f} wasted, "
            f"the provider's ledger ${self.paid_usd:.4f}"
        )


async def run_through_kills(
    folder: Path, clauses: int, kills: int, seed: int, jobs: Mapping[str, Any] | None = None
) -> KilledRun:
    """Begins a run and kills its gateway so often, each time after it has paid for something more."""
    rng = random.Random(seed)
    said, run_id = [], ""
    job: dict[str, Any] = {}
    run: dict[str, Any] = {}
    answer: Response | None = None
    least = calls_paid(clauses)
    async with speaking(says(clauses), DELAY_S) as provider:
        config = folder / "config.yaml"
        config.write_text(yaml.safe_dump(config_with(folder, provider.url, **(jobs or {}))))
        places = sorted(rng.sample(range(1, least), kills))
        for paid in [*places, None]:
            async with life(config) as served:
                if not run_id:
                    body = {"model": "pipelines/stages", "messages": [{"role": "user", "content": "un contrato"}]}
                    run_id = orjson.loads((await ask(served.url, new_job(body=body))).body)["id"]
                job = await _until(served.url, run_id, partial(_has_paid, provider, paid))
                if paid is None:
                    answer = await ask(served.url, get(f"/v1/jobs/{run_id}/result", WEB))
                    run = orjson.loads((await ask(served.url, get(f"/v1/runs/{run_id}", WEB))).body)
                served.kill()
                await served.ends()
                said.append(served.said)
    assert answer is not None
    again = {prompt: count for prompt, count in provider.answered.items() if not prompt.startswith("extract")}
    return KilledRun(
        job,
        orjson.loads(answer.body),
        answer.header("x-gateway-steps") or "",
        kills,
        sum(provider.answered.values()),
        least,
        sum(count - 1 for count in again.values()),
        sum(provider.answered.values()) * CALL_USD,
        run,
        "".join(said),
    )


def _has_paid(provider: SpeakingProvider, number: int | None) -> bool:
    return number is not None and sum(provider.answered.values()) >= number


async def _until(url: str, run_id: str, is_enough: Callable[[], bool]) -> dict[str, Any]:
    """Returns the run when it has ended, or as it is when it is enough."""
    async with asyncio.timeout(10 * PATIENCE_S):
        while True:
            if is_enough():
                return {}
            job: dict[str, Any] = orjson.loads((await ask(url, get(f"/v1/jobs/{run_id}", WEB))).body)
            if job["status"] in ENDS:
                return job
            await asyncio.sleep(PAUSE_S)
