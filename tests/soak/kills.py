"""Clients that leave at a random byte of their request, of the wait, or of the answer, and what has to follow.

The draws come from a seed, so a failure can be repeated. Invariant: every client of a round dies before its answer ends,
so each call that reached the provider has to be cancelled there.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gateway.emulator.config import parse_script_entry
from tests.e2e.harness import Running, chat, post
from tests.soak.support import MANNERS, Manner, Mortal, draw_cut, mortal, wait_for

Stage = Literal["request", "waiting", "answer"]


@dataclass(frozen=True, slots=True)
class Death:
    """How one client dies: in `stage`, after `cut` bytes of it."""

    model: str
    path: str
    body: dict[str, Any]
    stage: Stage
    cut: int
    manner: Manner

    @property
    def request(self) -> bytes:
        return post(self.path, orjson.dumps(self.body))


@dataclass(slots=True)
class Round:
    """What came of a round: calls that were complete requests, and how long their providers waited for the news."""

    calls: int
    cancelled_after_s: list[tuple[float, str]]


def draw_death(rng: random.Random, number: int, answer_bytes: int) -> Death:
    """Endpoint, stage, byte and manner of one client's end."""
    model = f"kill-{number}"
    responses = rng.random() < 0.3
    stage: Stage = rng.choices(("request", "waiting", "answer"), (1, 3, 6))[0]
    is_stream = stage == "answer" or rng.random() < 0.5
    body = {"model": model, "input": "hello"} if responses else chat(model)
    death = Death(
        model,
        "/v1/responses" if responses else "/v1/chat/completions",
        body | {"stream": is_stream},
        stage,
        0,
        rng.choice(MANNERS),
    )
    length = len(death.request) - 1 if stage == "request" else answer_bytes
    return Death(death.model, death.path, death.body, stage, draw_cut(rng, length), death.manner)


async def kill_round(running: Running, streams: int, seed: int, answer_bytes: int, *, over_s: float = 0.0) -> Round:
    """Start `streams` clients within `over_s`, let each die its death, and wait until the provider has seen every one."""
    stats = running.emulator.emulator.stats
    stats.clear()
    stats.departures = deque(maxlen=streams)
    rng = random.Random(seed)
    deaths = [draw_death(rng, number, answer_bytes) for number in range(streams)]
    for death in deaths:
        if death.stage == "waiting":
            running.emulator.emulator.faults.script(death.model, [parse_script_entry("silence")])
    lives = (_live(running, death, over_s * number / streams) for number, death in enumerate(deaths))
    died_at = dict(await asyncio.gather(*lives))
    calls = {death.model for death in deaths if death.stage != "request"}
    await wait_for(
        lambda: stats.cancelled >= len(calls), lambda: f"{stats.cancelled} of {len(calls)} cancellations were seen"
    )
    seen_at = {departure["model"]: departure["mono_s"] for departure in stats.departures}
    assert seen_at.keys() == calls
    told = [(seen_at[death.model] - died_at[death.model], str(death)) for death in deaths if death.model in calls]
    return Round(len(calls), told)


async def _live(running: Running, death: Death, born_after_s: float) -> tuple[str, float]:
    await asyncio.sleep(born_after_s)
    async with mortal(running.url) as client:
        await _live_until(running, client, death)
        return death.model, await client.die(death.manner)


async def _live_until(running: Running, client: Mortal, death: Death) -> None:
    if death.stage == "request":
        await client.send(death.request[: death.cut])
        return
    await client.send(death.request)
    if death.stage == "waiting":
        models = running.emulator.emulator.stats.models
        await wait_for(lambda: models[death.model] > 0, lambda: f"{death} never reached the provider")
    else:
        data = await client.read(death.cut)
        assert len(data) == death.cut, data
