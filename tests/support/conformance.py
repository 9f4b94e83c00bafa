"""What every store is tried with: a clock moved by hand, answers to keep, and models of what a store has to say.

It knows the port only, and no implementation: time is the wall clock given to the store, and no test sleeps. Where the
port leaves it open (how many bytes an entry takes, when exactly what has expired goes) the models accept either.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gateway.core.ports import Later
from gateway.core.types import Kept, StoreBounds, Usage
from gateway.drivers.store import Claim
from gateway.features.semantic.store import VectorRow
from tests.support.stores import Store

T = TypeVar("T")
KIB = 1024
ROOMY = StoreBounds(answers={"default": 1024 * KIB, "other": 1024 * KIB}, records=1024 * KIB)
ENOUGH_TICKS = 20
"""After so many, a small store has forgotten all that has expired."""

MakeStore = Callable[[StoreBounds, Callable[[], float]], Store]
"""A new, empty store on every call, made in the running loop; the fixture closes what it made."""


def _matches(key: bytes, answer: Kept, which: Mapping[str, object]) -> bool:
    found = {"key": key, "model": answer.model, "tenant": answer.tenant}
    return all(value is None or found[name] == value for name, value in which.items())


class Wall:
    """Wall-clock seconds that pass only when a test says so; never a whole number, so that no two times are equal."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.25

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


async def settle(later: Later[T]) -> T:
    """What a store says, at once or later."""
    return await later if isinstance(later, asyncio.Future) else later


async def ticked(store: Store, times: int = ENOUGH_TICKS) -> None:
    """Let a store do what it does in the background, and see it done."""
    for _ in range(times):
        store.tick()
        await settle(store.answers.get(digest("nobody's"), "default"))


async def swept(store: Store, use: str, count: int) -> None:
    """Let a store forget in the background until it has `count` left, or has had ample time for it.

    A cluster sweeps at another server than the one that has just answered, so some ticks come before the sweep is over.
    """
    for _ in range(20):
        await ticked(store)
        if entries(store, use) == count:
            break


async def shrunk(store: Store, use: str, most_bytes: int) -> None:
    """Let a store evict in the background until it has no more bytes than this, or has had ample time for it, as `swept`."""
    for _ in range(20):
        await ticked(store)
        if held_bytes(store, use) <= most_bytes:
            break


def digest(*parts: object) -> bytes:
    """32 bytes that stand for these."""
    return hashlib.sha256(repr(parts).encode()).digest()


def kept(
    body: bytes = b"{}",
    *,
    now: float,
    fresh_s: float = 60.0,
    stale_s: float = 0.0,
    model: str = "m",
    tenant: str = "t",
    group: str = "default",
) -> Kept:
    """An answer stored at `now`, fresh for `fresh_s`, and stale for `stale_s` more."""
    return Kept(
        status=200,
        headers=[(b"content-type", b"application/json")],
        body=body,
        is_stream=False,
        endpoint="chat",
        model=model,
        tenant=tenant,
        group=group,
        source="call-1",
        target="openai/gpt",
        stored_at=now,
        fresh_until=now + fresh_s,
        stale_until=now + fresh_s + stale_s,
        usage=Usage(3, 5),
    )


def row(
    name: object, *, now: float, partition: bytes, ttl_s: float = 60.0, model: str = "m", tenant: str = "t"
) -> VectorRow:
    """A question of the semantic index."""
    return VectorRow(digest(name), partition, b"\x01\x02", b"facts", model, tenant, now, now + ttl_s)


def entries(store: Store, use: str) -> int:
    """How many a store says that it keeps."""
    return store.stats()[use]["entries"]


def held_bytes(store: Store, use: str) -> int:
    """How many bytes a store says that it keeps."""
    return store.stats()[use]["bytes"]


@dataclass
class Told:
    """What is known of one record."""

    state: str = "free"
    """`free`, `running` or `done`; a lease that has ended leaves it `running` until somebody else claims it."""
    fence: int = 0
    last_fence: int = 0
    """Of all its life."""
    fingerprint: bytes = b""
    until: float = 0.0
    """When the lease ends, or the answer is forgotten."""
    kept: Kept | None = None
    is_certain: bool = True
    """False: the store may have forgotten an ended lease by now."""

    def is_over(self, now: float) -> bool:
        return now >= self.until

    def claim_is_right(self, claim: Claim, fingerprint: bytes, lease_s: float, now: float) -> bool:
        """Whether this is what a store has to answer now."""
        if self.state == "free" or self.is_over(now):
            return claim.state == "claimed" and claim.fence > self.last_fence
        if fingerprint != self.fingerprint:
            return claim.state == "mismatch"
        if self.state == "done":
            return claim.state == "done" and claim.kept == self.kept
        return claim.state == "running" and abs(claim.lease_left_s - (self.until - now)) < 0.01

    def claimed(self, claim: Claim, fingerprint: bytes, until: float) -> None:
        self.state, self.fence, self.last_fence = "running", claim.fence, claim.fence
        self.fingerprint, self.until, self.kept, self.is_certain = fingerprint, until, None, True

    def is_held_with(self, fence: int) -> bool:
        return self.state == "running" and self.fence == fence

    def may_say(self, answer: bool, fence: int, now: float) -> bool:
        """Whether a renewal or a completion may be answered so."""
        if self.is_held_with(fence) and self.is_over(now) and not self.is_certain:
            return True
        return answer == self.is_held_with(fence)


@dataclass
class RecordsModel:
    """Drives a store's records and a model of them with the same steps, and compares every answer.

    Invariants: a record has one holder at a time; what its winner completed is never changed by anybody; fences only grow.
    """

    store: Store
    wall: Wall
    told: dict[bytes, Told] = field(default_factory=dict)
    claims: list[tuple[bytes, int]] = field(default_factory=list)
    """Record and fence of everybody who was ever told to run: holders, and those who are too late."""

    async def claim(self, name: int, request: int, lease_s: float) -> None:
        record, fingerprint = digest("record", name), digest("request", request)
        told = self.told.setdefault(record, Told())

        claim = await settle(self.store.records.claim(record, fingerprint, lease_s))

        assert told.claim_is_right(claim, fingerprint, lease_s, self.wall.now), (claim, told)
        if claim.state == "claimed":
            told.claimed(claim, fingerprint, self.wall.now + lease_s)
            self.claims.append((record, claim.fence))

    async def renew(self, which: int, lease_s: float) -> None:
        if (one := self._one(which)) is None:
            return
        record, fence, told = one

        answer = await settle(self.store.records.renew(record, fence, lease_s))

        assert told.may_say(answer, fence, self.wall.now), (answer, told)
        if answer:
            told.until, told.is_certain = self.wall.now + lease_s, True

    async def complete(self, which: int, body: bytes, keep_s: float) -> None:
        if (one := self._one(which)) is None:
            return
        record, fence, told = one
        answer_kept = kept(body, now=self.wall.now, fresh_s=keep_s, group="")

        answer = await settle(self.store.records.complete(record, fence, answer_kept))

        assert told.may_say(answer, fence, self.wall.now), (answer, told)
        if answer:
            told.state, told.kept, told.until = "done", answer_kept, answer_kept.fresh_until

    async def release(self, which: int) -> None:
        if (one := self._one(which)) is None:
            return
        record, fence, told = one

        await settle(self.store.records.release(record, fence))

        if told.is_held_with(fence):
            told.state = "free"

    async def pass_time(self, seconds: float) -> None:
        self.wall.advance(seconds)

    async def tick(self) -> None:
        for told in self.told.values():
            told.is_certain = told.is_certain and not (told.state == "running" and told.is_over(self.wall.now))
        await ticked(self.store, 1)

    def _one(self, which: int) -> tuple[bytes, int, Told] | None:
        if not self.claims:
            return None
        record, fence = self.claims[which % len(self.claims)]
        return record, fence, self.told[record]


@dataclass
class AnswersModel:
    """Drives a store's answers with steps, and holds what it gives against all that was ever put.

    Invariants: what it gives is what was last put under that key, and has not expired; its bytes stay within the bound.
    """

    store: Store
    wall: Wall
    bound: int
    last: dict[bytes, Kept] = field(default_factory=dict)

    async def put(self, name: int, size: int, fresh_s: float, stale_s: float) -> None:
        model, tenant = f"m{name % 2}", f"t{name % 3}"
        body = bytes([size % 251]) * size
        one = kept(body, now=self.wall.now, fresh_s=fresh_s, stale_s=stale_s, model=model, tenant=tenant)
        key = digest(tenant, model, name)
        self.last[key] = one

        await settle(self.store.answers.put(key, one))

        assert held_bytes(self.store, "answers") <= self.bound

    async def get(self, name: int) -> None:
        key = digest(f"t{name % 3}", f"m{name % 2}", name)

        found = await settle(self.store.answers.get(key, "default"))

        assert found is None or (found == self.last.get(key) and found.stale_until > self.wall.now)

    async def forget(self, name: int | None, model: int | None, tenant: int | None) -> None:
        key = None if name is None else digest(f"t{name % 3}", f"m{name % 2}", name)
        which = {
            "key": key,
            "model": model if model is None else f"m{model}",
            "tenant": tenant if tenant is None else f"t{tenant}",
        }
        gone = [one for one, answer in self.last.items() if _matches(one, answer, which)]

        count = await settle(self.store.answers.forget(key=key, model=which["model"], tenant=which["tenant"]))  # type: ignore[arg-type]  # as named

        assert count <= len(gone)
        for one in gone:
            del self.last[one]

    async def pass_time(self, seconds: float) -> None:
        self.wall.advance(seconds)

    async def tick(self) -> None:
        await ticked(self.store, 1)

    async def check(self) -> None:
        """Nothing that was forgotten is given, and nothing that was put is given wrongly."""
        for name in range(8):
            await self.get(name)
        assert held_bytes(self.store, "answers") <= self.bound
