"""Replicas: gateways in processes of their own that share a Redis, before one provider that is told which of them asks.

Each life has a provider key of its own, so that the provider's record says who ran what. Invariant: none outlasts its test.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from gateway.emulator.app import EmulatorServer
from tests.e2e.harness import PATIENCE_S, connect, get
from tests.e2e.lives import Life, life
from tests.e2e.replaying import Question, hear
from tests.e2e.test_process import write
from tests.soak.support import wait_for
from tests.support.redis_servers import RedisServer

KEY = "sk-life-"
PATIENT = "1s"
"""For the store: this machine may be busy, and who has no answer in time goes on alone."""


class Replicas:
    """Those that are alive, in their places; who is killed stays in its place until somebody else takes it."""

    def __init__(self, folder: Path, provider: EmulatorServer, sections: dict[str, Any], stack: AsyncExitStack) -> None:
        self._folder = folder
        self._provider = provider
        self._sections = sections
        self._stack = stack
        self._numbers = count()
        self._ids: list[int] = []
        self.lives: list[Life] = []
        self.killed: list[int] = []
        """The lives that are over, in order."""

    @property
    def urls(self) -> list[str]:
        """Where they listen."""
        return [one.url for one in self.lives]

    async def add(self, many: int) -> None:
        """So many more, which are there and share their store."""
        for number, one in await asyncio.gather(*(self._begin() for _ in range(many))):
            self._ids.append(number)
            self.lives.append(one)

    def kill(self, at: int) -> None:
        """As the kernel does."""
        self.killed.append(self._ids[at])
        self.lives[at].kill()

    async def replace(self, at: int) -> None:
        """Somebody else in this place, once the former is dead."""
        await self.lives[at].ends()
        self._ids[at], self.lives[at] = await self._begin()

    def runs(self) -> dict[str, list[int]]:
        """The lives that have asked the provider, by model, in order."""
        found: dict[str, list[int]] = defaultdict(list)
        for one in self._provider.emulator.recorder.last(100_000):
            key = dict(one["headers"])["authorization"].removeprefix(f"Bearer {KEY}")
            found[orjson.loads(one["body"])["model"]].append(int(key))
        return found

    async def _begin(self) -> tuple[int, Life]:
        number = next(self._numbers)
        folder = self._folder / f"life-{number}"
        folder.mkdir()
        provider = {"dialect": "openai", "base_url": self._provider.base_url, "api_key": f"{KEY}{number}"}
        config = write(folder, self._provider.base_url, providers={"main": provider}, **self._sections)
        one = await self._stack.enter_async_context(life(config))
        await until_shared(one.url)
        return number, one


async def until_shared(url: str, *, is_up: bool = True) -> None:
    """Wait until a replica says that it reaches the store, or does not."""
    async with asyncio.timeout(PATIENCE_S), connect(url) as peer:
        while orjson.loads((await peer.exchange(get("/readyz"))).body)["state"]["status"] != (
            "up" if is_up else "gone"
        ):
            pass


@asynccontextmanager
async def replicas(
    folder: Path, provider: EmulatorServer, server: RedisServer, many: int = 4, **sections: Any
) -> AsyncIterator[Replicas]:
    """So many gateways that share a server."""
    async with AsyncExitStack() as stack:
        fleet = Replicas(folder, provider, {"state": {"redis": server.url, "timeout": PATIENT}, **sections}, stack)
        await fleet.add(many)
        yield fleet


def times(provider: EmulatorServer, question: Question) -> int:
    """How often the provider was asked."""
    return provider.emulator.stats.models[question.model]


KEPT_ALIVE = re.compile(rb"\A(?:: waiting[^\n]*\n\n)+")
"""What a stream that had to wait says before its answer begins."""
INSISTENCE_S = 60.0
"""For one answer: several holders may die under it, and each has its lease."""


class Trial:
    """Callers who insist while replicas are killed under them, and what was heard."""

    def __init__(self, fleet: Replicas, provider: EmulatorServer, seed: int) -> None:
        self._fleet = fleet
        self._provider = provider
        self._rng = random.Random(seed)
        self._bodies: dict[Question, set[bytes]] = {}
        self._runs_then: dict[Question, int] = {}
        """How often it had been run when the first whole answer was heard."""
        self.cut_off = 0
        """Calls whose replica died, or was dead."""

    @property
    def answered(self) -> int:
        """Questions to which somebody has a whole answer."""
        return len(self._bodies)

    async def insist(self, question: Question, callers: int) -> None:
        """Let so many ask, each at any replica; who is cut off asks another, until it has a whole answer."""
        async with asyncio.TaskGroup() as crowd:
            for _ in range(callers):
                crowd.create_task(self._insist(question))

    async def kill_at_random(self, kills: int, of: int) -> None:
        """Kill one or another as the questions get answered, so often until `of` them are; each is replaced at once."""
        for enough in sorted(self._rng.randrange(of) for _ in range(kills)):
            await wait_for(partial(self._has, enough), lambda: f"{self.answered} answered", 2 * INSISTENCE_S)
            at = self._rng.randrange(len(self._fleet.lives))
            self._fleet.kill(at)
            await self._fleet.replace(at)

    def judge(self, questions: Sequence[Question]) -> str:
        """One answer for all; nobody ran it again who need not: once answered it never is, and before only for the dead."""
        runs = self._fleet.runs()
        for question in questions:
            assert len(self._bodies[question]) == 1, question
            *before, _ = mine = runs[question.model]
            assert len(mine) == len(set(mine)) == self._runs_then[question], (question, mine)
            assert set(before) <= set(self._fleet.killed), (question, mine, self._fleet.killed)
        again = sum(len(runs[question.model]) - 1 for question in questions)
        return f"{len(self._fleet.killed)} kills, {self.cut_off} calls cut off, {again} runs for {again} dead holders"

    def _has(self, answered: int) -> bool:
        return self.answered >= answered

    async def _insist(self, question: Question) -> None:
        while (body := await self._hear(question)) is None:
            self.cut_off += 1
        self._runs_then.setdefault(question, times(self._provider, question))
        self._bodies.setdefault(question, set()).add(KEPT_ALIVE.sub(b"", body))

    async def _hear(self, question: Question) -> bytes | None:
        try:
            return await hear(self._rng.choice(self._fleet.urls), question, INSISTENCE_S)
        except ConnectionError:
            await asyncio.sleep(0.01)  # nobody listens there any more
            return None
