"""Runs in the Redis that replicas share: one value a run, changed by compare-and-set, so that all replicas agree.

A tenant's runs are in one slot, with a list of them by time. Each value says which change of each replica it has last taken:
a replica that did not hear whether its change was taken finds out, and adds it once. Invariants: a change is added once; no
step takes longer for more runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

import orjson

from gateway.drivers.redis.job import StoreGone, StoreUnheard, load_script
from gateway.drivers.redis.link import Link
from gateway.features.runs.rules.codec import decode_run, encode_run
from gateway.features.runs.rules.errors import RunsUnavailable
from gateway.features.runs.rules.run import RunChange, RunRecord
from gateway.features.runs.step.step import Close, RunToChange, changed, nobody_waits

SWAP = load_script("runs_swap")
KEEP_S = 7 * 86_400
MOST_PER_TENANT = 20_000
MOST_TENANTS = 1_000
MOST_REPLICAS = 32
"""Of which a run remembers the last change; of more, the first ones are forgotten."""
TRIES = 20
PAGE = 500
_TENANT_AGAIN_S = 60.0

Marks = dict[str, int]


class SharedRunRecords:
    """Implements `gateway.core.ports.KeptRuns`."""

    def __init__(self, link: Link, replica: str) -> None:
        """`replica` is an id of this process, which no other has or had."""
        self._link = link
        self._replica = replica
        self._numbers = count(1)
        self._tenants = link.slot_key("runs", "tenants")
        self._noted: dict[str, float] = {}
        self._doubts: dict[tuple[str, str], tuple[int, RunChange]] = {}
        """Changes of which it was not heard whether they were taken, by run."""

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
        """Adds a change, and closes the run if it has ended, in one step."""
        whose, number = (tenant, run), next(self._numbers)
        doubt = self._doubts.pop(whose, None)
        try:
            await self._note(tenant)
            for _ in range(TRIES):
                raw = await self._link.command(b"GET", self._key(tenant, run)) or b""
                record, marks = _read(raw)
                if doubt is not None and marks.get(self._replica) == doubt[0]:
                    doubt = None  # it was taken
                more = _sum(change, None if doubt is None else doubt[1])
                result = changed(record, RunToChange(tenant, run, more, close))
                if result is None or (more is None and result.after is result.before):
                    return result
                try:
                    is_done = await self._swap(raw, result.after, {**marks, self._replica: number})
                except StoreUnheard as trouble:
                    doubt = None if more is None else (number, more)
                    raise RunsUnavailable(f"The store of runs did not answer: {trouble}", is_kept=True) from None
                if is_done:
                    written()
                    doubt = None
                    return result
        except StoreGone as trouble:
            raise RunsUnavailable(f"The store of runs cannot be reached: {trouble}") from None
        finally:
            if doubt is not None:
                self._doubts[whose] = doubt
        raise RunsUnavailable("A run is being changed by too many at once; try again.")

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        """Returns the run; None: there is none."""
        try:
            return _read(await self._link.command(b"GET", self._key(tenant, run)) or b"")[0]
        except StoreGone as trouble:
            raise RunsUnavailable(f"The store of runs cannot be reached: {trouble}") from None

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets the run; returns whether there was one."""
        self._doubts.pop((tenant, run), None)
        try:
            await self._link.command(b"ZREM", self._list(tenant), run)
            return bool(await self._link.command(b"DEL", self._key(tenant, run)))
        except StoreGone as trouble:
            raise RunsUnavailable(f"The store of runs cannot be reached: {trouble}") from None

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
        """Returns the runs of a tenant, or of all, that were changed last."""
        try:
            if tenant is not None:
                return await self._last_of(tenant, most)
            found: list[RunRecord] = []
            for name in await self._link.command(b"ZREVRANGE", self._tenants, 0, MOST_TENANTS - 1):
                if len(found) < most:
                    found += await self._last_of(name.decode(), most - len(found))
            return found
        except StoreGone as trouble:
            raise RunsUnavailable(f"The store of runs cannot be reached: {trouble}") from None

    async def _last_of(self, tenant: str, most: int) -> list[RunRecord]:
        found: list[RunRecord] = []
        runs = await self._link.command(b"ZREVRANGE", self._list(tenant), 0, most - 1)
        for at in range(0, len(runs), PAGE):
            keys = [self._key(tenant, run.decode()) for run in runs[at : at + PAGE]]
            records = (_read(raw)[0] for raw in await self._link.command(b"MGET", *keys) if raw is not None)
            found += (record for record in records if record is not None)
            await asyncio.sleep(0)
        return found

    async def _swap(self, raw: bytes, after: RunRecord, marks: Marks) -> bool:
        keys = self._key(after.tenant, after.run), self._list(after.tenant)
        args = raw, _write(after, marks), after.run, after.so_far.last_ms, KEEP_S, MOST_PER_TENANT
        return bool(await self._link.run(SWAP, keys, args))

    async def _note(self, tenant: str) -> None:
        """Sees to it that the tenant's runs are found by whoever asks for all."""
        now = asyncio.get_running_loop().time()
        if self._noted.get(tenant, 0.0) > now:
            return
        if len(self._noted) >= MOST_TENANTS:
            self._noted.clear()
        seconds = await self._link.command_near(self._tenants, b"TIME")
        await self._link.command(b"ZADD", self._tenants, int(seconds[0]), tenant)
        await self._link.command(b"EXPIRE", self._tenants, KEEP_S)
        await self._link.command(b"ZREMRANGEBYRANK", self._tenants, 0, -1 - MOST_TENANTS)
        self._noted[tenant] = now + _TENANT_AGAIN_S

    def _list(self, tenant: str) -> bytes:
        return self._link.key("runs", tenant)

    def _key(self, tenant: str, run: str) -> bytes:
        return self._list(tenant) + b":" + run.encode()


def _sum(one: RunChange | None, other: RunChange | None) -> RunChange | None:
    return one or other if one is None or other is None else one + other


def _read(raw: bytes) -> tuple[RunRecord | None, Marks]:
    """Returns a run and the last change of each replica; what cannot be read is as if it were not there."""
    if not raw:
        return None, {}
    marks, _, record = raw.partition(b"\n")
    try:
        return decode_run(record), orjson.loads(marks)
    except ValueError:
        return None, {}


def _write(record: RunRecord, marks: Marks) -> bytes:
    kept = dict(list(marks.items())[-MOST_REPLICAS:])
    return orjson.dumps(kept) + b"\n" + encode_run(record)
