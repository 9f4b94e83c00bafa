"""A run of five stages whose gateway kills itself, as the kernel does, before and after each of its writes to the store.

Where that is is taken from a life that nobody disturbs; another life ends the run. The provider outlives them all, and counts.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from gateway.emulator.app import EmulatorServer
from gateway.products.jobs.redis import RedisJobStore
from gateway.products.jobs.sqlite_store import SqliteJobStore
from tests.e2e.durable import ASYNC, WEB, ask, end_of, policies, result_of, take
from tests.e2e.harness import KEYS, config_of, get, post
from tests.e2e.lives import life
from tests.soak.conftest import Report
from tests.soak.provided import jobs_in, prompts_of, provided, remembering
from tests.support.redis_jobs import end_leases
from tests.support.redis_servers import redis_server

pytestmark = pytest.mark.soak

ITEMS = 6
WRITES = ("claim", "park", "finish", "begin_lines", "commit", "complete_chunk", "note")
"""What moves a run from one step to the next. Its acceptance is not among them: who has no answer begins another run."""
QUICK = remembering(ttft_s=0.02, jitter=0.5, output_tokens=4)


def call(words: str, **more: Any) -> dict[str, Any]:
    return {"call": {"model": "gpt-4o", "messages": [{"role": "user", "content": words}]}, **more}


STAGES: dict[str, Any] = {
    "input": {"type": "object", "required": ["name", "items"]},
    "steps": {
        "extract": call("{{ input.name }} extract"),
        "language": call("{{ input.name }} language", after=["extract"]),
        "clause": {"for_each": "input.items", "after": ["language"], **call("{{ input.name }} clause {{ item }}")},
        "report": {
            "after": ["clause"],
            "choose": [
                {"when": "input.name == 'nobody'", **call("{{ input.name }} never")},
                call("{{ input.name }} report {{ steps.language.text }}"),
            ],
        },
        "check": call("{{ input.name }} check {{ steps.report.text }}"),
    },
    "output": "steps.check.text",
}


@dataclass(frozen=True, slots=True)
class Death:
    """At which use of the store a life ends."""

    write: str
    number: int
    is_after: bool


def watch_writes(store: str, folder: Path, death: Death | None) -> None:
    """Has this process write down its writes to the store, and kill itself at one of them."""
    kind: type[Any] = SqliteJobStore if store == "sqlite" else RedisJobStore
    counts: Counter[str] = Counter()

    def watched(name: str) -> Callable[..., Any]:
        method = getattr(kind, name)

        @wraps(method)
        async def asked(*given: Any, **named: Any) -> Any:
            is_claim = name == "claim"
            if not is_claim:
                counts[name] += 1
            number = counts[name]
            if death == Death(name, number, False):
                os.kill(os.getpid(), signal.SIGKILL)
            answer = await method(*given, **named)
            if is_claim and answer:  # what nobody was given is no write
                counts[name] += 1
                number = counts[name]
            if not is_claim or answer:
                with (folder / "writes").open("a") as said:
                    said.write(f"{name} {number}\n")
                if death == Death(name, number, True):
                    os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return asked

    for name in WRITES:
        setattr(kind, name, watched(name))


@dataclass(slots=True)
class Place:
    """Where runs are kept, and what their lives share."""

    store: str
    folder: Path
    provider: EmulatorServer
    redis: str = ""
    config: Path = field(init=False)

    def __post_init__(self) -> None:
        rules = Path(policies(self.folder))
        (rules / "pipelines").mkdir()
        (rules / "pipelines" / "five.yaml").write_text(yaml.safe_dump(STAGES))
        sections = {**jobs_in(self.folder, self.redis), "policies": str(rules), "keys": KEYS}
        self.config = self.folder / "config.yaml"
        self.config.write_text(yaml.safe_dump(dict(config_of(self.provider.base_url, **sections))))

    async def run(self, name: str, death: Death | None) -> bool:
        """One run, through a death if it comes to that; returns whether it did. Raises AssertionError where it is not whole."""
        before = partial(watch_writes, self.store, self.folder, death)
        asked = orjson.dumps({"name": name, "items": list(range(ITEMS))}).decode()
        messages = [{"role": "user", "content": asked}]
        request = post("/v1/chat/completions", {"model": "pipelines/five", "messages": messages}, WEB, ASYNC)
        async with life(self.config, before=before) as first:
            run = await take(first.url, request)
            if death is None:
                await end_of(first.url, run["id"])
                await self.check(first.url, name, run["id"])
                return False
            has_died = await first.ends() == -signal.SIGKILL
        if self.redis:
            end_leases(self.redis, "gateway")
        async with life(self.config) as other:
            await self.check(other.url, name, run["id"], death)
        assert "Traceback" not in first.said + other.said
        return has_died

    async def check(self, url: str, name: str, run_id: str, death: Death | None = None) -> None:
        """That the run has ended well, and no step but what was in flight was paid for twice."""
        job = await end_of(url, run_id)
        answer = await result_of(url, run_id)
        assert (job["status"], answer.status, answer.header("x-gateway-steps")) == ("succeeded", 200, STEPS), answer.raw
        assert job["progress"]["done"] == 5
        paid = self.paid(name)
        assert set(paid) == {"extract", "language", "report", "check", *(f"clause {number}" for number in range(ITEMS))}
        again = sorted(step for step, times in paid.items() if times > 1)
        assert max(paid.values()) <= 1 + (death is not None), (death, paid)
        assert len({step.partition(" ")[0] for step in again}) <= 1, (death, again)
        children = orjson.loads((await ask(url, get("/v1/jobs?limit=100", WEB))).body)["data"]
        assert all(child["status"] == "succeeded" for child in children)

    def paid(self, name: str) -> Counter[str]:
        """How often the provider was asked for each step of a run."""
        asked = [prompt.split() for prompt in prompts_of(self.provider, name)]
        return Counter(" ".join(words) if words[0] == "clause" else words[0] for words in asked)


STEPS = f"extract:1 language:1 clause:{ITEMS} report:1 check:1"


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_a_kill_at_each_write(store: str, tmp_path: Path, report: Report) -> None:
    """The run ends once, as it would have; what had its answer kept is not asked for again."""
    async with provided(QUICK) as provider:
        with redis_server() as server:
            place = Place(store, tmp_path, provider, server.url if store == "redis" else "")
            await place.run("whole", None)
            writes = [line.split() for line in (tmp_path / "writes").read_text().splitlines()]
            deaths = [
                Death(name, int(number), is_after)
                for name, number in writes
                for is_after in (False, True)
                if is_after or name != "claim"
            ]
            kills = 0
            for number, death in enumerate(deaths):
                kills += await place.run(f"run-{number}", death)
            extra = sum(place.paid(f"run-{number}").total() - ITEMS - 4 for number in range(len(deaths)))
            report(
                f"{store}: {kills} kills at {len(writes)} writes ({dict(Counter(name for name, _ in writes))}); "
                f"{extra} calls more than {ITEMS + 4} for each run"
            )
    assert kills >= len(deaths) - 4
