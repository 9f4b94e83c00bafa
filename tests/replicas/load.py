"""Callers: who asks which replica how often, and what each call came to.

Calls start when they are due, whether or not earlier ones were answered, and a call's time counts from then; closed loops ask
again when they are answered. Nothing is tried a second time: a call that gets no answer has failed. Invariant: a run ends
when its last call has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tests.soak.storms import Answered, Client

PATIENCE_S = 35.0
"""No call of these runs may take so long."""
OWN_REFUSALS = frozenset(
    {
        "429 key_rate_limited",
        "503 queue_full",
        "503 queue_wait_exceeds_deadline",
        "504 queue_deadline_exceeded",
        "504 deadline_exceeded",
        "429 rate_limit_exceeded",
    }
)
"""What a gateway says to calls that a limit leaves no room for, or no time: their deadlines are short. The last one is the
provider's own word, where no time is left to try again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw of one call; times are monotonic seconds."""

    where: int
    due_at: float
    took_s: float
    code: str
    """`ok`, status and code of an error, or what went wrong on the way."""
    retry_after_s: float | None = None

    @property
    def ended_at(self) -> float:
        return self.due_at + self.took_s

    @property
    def is_ok(self) -> bool:
        return self.code == "ok"

    @property
    def has_failed(self) -> bool:
        """Neither answered nor refused for want of room."""
        return not self.is_ok and self.code not in OWN_REFUSALS


@dataclass(slots=True)
class Crowd:
    """Callers of the servers at `urls`; a call's place in that list is where it went."""

    urls: Sequence[str]
    request: bytes
    seed: int = 1
    seen: list[Seen] = field(default_factory=list)
    _idle: dict[str, list[Client]] = field(default_factory=dict)
    _calls: set[asyncio.Task[Seen]] = field(default_factory=set)

    async def come(self, per_s: Sequence[float], for_s: float) -> None:
        """At random, this many a second on average at each server; returns when it is over, not when all are answered."""
        rng, total, began_at = random.Random(self.seed), sum(per_s), time.monotonic()
        places, after_s = range(len(per_s)), 0.0
        while (after_s := after_s + rng.expovariate(total)) < for_s:
            await asyncio.sleep(began_at + after_s - time.monotonic())
            where = rng.choices(places, per_s)[0]
            self.start(where, began_at + after_s)
        await asyncio.sleep(began_at + for_s - time.monotonic())
        self.seed += 1

    def start(self, where: int, due_at: float) -> None:
        """One call, from now on."""
        call = asyncio.create_task(self.call(where, due_at))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def ask_on(self, where: int, goes_on: Callable[[], bool]) -> None:
        """One caller who asks again as soon as there is an answer."""
        while goes_on():
            seen = await self.call(where, time.monotonic())
            if not seen.is_ok:
                await asyncio.sleep(min(seen.retry_after_s or 0.05, 0.2))

    async def during(self, *calling: Awaitable[None]) -> None:
        """All of these, and the last answers."""
        try:
            await asyncio.gather(*calling)
            while self._calls:
                await asyncio.wait(self._calls)
        finally:
            self.close()

    async def call(self, where: int, due_at: float) -> Seen:
        """One call, and what it came to."""
        client: Client | None = None
        try:
            async with asyncio.timeout(PATIENCE_S):
                client = await self._client(where)
                answer = await client.ask(self.request)
        except (OSError, EOFError, TimeoutError) as error:
            if client is not None:
                client.close()
            seen = Seen(where, due_at, time.monotonic() - due_at, type(error).__name__)
        else:
            self._keep(client, where, answer)
            seen = Seen(where, due_at, answer.ended_at - due_at, answer.code, _retry_after_s(answer))
        self.seen.append(seen)
        return seen

    async def _client(self, where: int) -> Client:
        url = self.urls[where]
        idle = self._idle.setdefault(url, [])
        if idle:
            return idle.pop()
        host, _, port = url.removeprefix("http://").partition(":")
        return Client(*await asyncio.open_connection(host, int(port)))

    def _keep(self, client: Client, where: int, answer: Answered) -> None:
        if answer.headers.get("connection", "").lower() == "close":
            client.close()
        else:
            self._idle[self.urls[where]].append(client)

    def forget(self, where: int) -> None:
        """Idle connections there are of no more use."""
        for client in self._idle.pop(self.urls[where], []):
            client.close()

    def close(self) -> None:
        """Leave."""
        for call in self._calls:
            call.cancel()
        for where in range(len(self.urls)):
            with suppress(OSError):
                self.forget(where)


def _retry_after_s(answer: Answered) -> float | None:
    told = answer.headers.get("retry-after-ms")
    return None if told is None else int(told) / 1000
