"""The runs in the Redis: first those with steps, each beside the jobs of its tenant, then those that replicas share.

Steps are kept as safely as jobs are accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from secrets import token_hex
from typing import Final

import orjson

from gateway.drivers.durability import JobsUnavailable
from gateway.drivers.redis.link import Link
from gateway.drivers.redis.partitions import JobPartitions, job_script, tenant_token
from gateway.drivers.redis.wire import NoReply, StoreGone, load_script
from gateway.features.runs.rules import RunChange, RunRecord, RunsUnavailable, begun, decode_run, encode_run
from gateway.features.runs.step import (
    Close,
    RunChanged,
    RunPage,
    RunQuery,
    RunToChange,
    StepAbout,
    StoredRun,
    StoredStep,
    changed,
    is_wanted,
    nobody_waits,
    step_change,
)
from gateway.features.runs.store import RunQuota, decode_step, encode_step

KEEP, STEP = job_script("runs_keep", "runs"), job_script("runs_step", "runs")
WRITE, PAGE = job_script("runs_write", "runs"), job_script("runs_page", "runs")
FORGET = job_script("runs_forget", "runs")
ROWS_AT_ONCE: Final = 200
FORGOTTEN_AT_ONCE: Final = 50
MOST_TRIES: Final = 50
"""The most tries of a change that others come before."""


class RedisRuns:
    """Implements `gateway.features.runs.step.Runs`."""

    def __init__(self, partitions: JobPartitions, refuse_if_unfit: Callable[[], None], most_bytes: int) -> None:
        """`refuse_if_unfit` raises JobsUnavailable where the Redis may not keep anything."""
        self._partitions = partitions
        self._refuse_if_unfit = refuse_if_unfit
        self._room = RunQuota(most_bytes)

    @property
    def early(self) -> int:
        return self._room.early

    async def find_step(self, tenant: str, run: str, step: str) -> StoredStep | None:
        self._refuse_if_unfit()  # it could not be kept if it had to be paid for now
        partition, id_ = self._place(tenant, run)
        _, _, is_there, rest, body = await self._partitions.run(STEP, partition, id_, step)
        return StoredStep(decode_step(tenant, run, step, rest), body) if is_there else None

    async def keep_step(self, step: StoredStep, *, replaces: bool = False) -> StoredStep:
        """Keeps a step, as safely as a job is accepted; returns the one that is kept."""
        self._refuse_if_unfit()
        self._room.check(step)

        async def ask(_is_again: bool) -> StoredStep:  # to keep it twice changes nothing
            return await self._keep(step, replaces=replaces)

        return await self._partitions.retry_until_known(ask)

    async def change(self, changes: Sequence[RunToChange]) -> Sequence[RunChanged | None]:
        return await asyncio.gather(*map(self._change, changes))

    async def find(self, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
        partition, id_ = self._place(tenant, run)
        found = await self._partitions.command(b"HGETALL", self._partitions.key(partition, f"rn:{id_}"))
        if not found:
            return None
        fields = dict(zip(found[::2], found[1::2], strict=True))
        steps: list[tuple[int, StepAbout]] = []
        for name, text in fields.items():
            if name.startswith(b"s:"):
                head, _, rest = text.partition(b"\n")
                steps.append((int(head.split()[0]), decode_step(tenant, run, name[2:].decode(), rest)))
        row = [fields[name] for name in (b"r", b"c", b"t", b"b", b"n")]
        return _stored(row), [about for _, about in sorted(steps, key=lambda step: step[0])]

    async def list_runs(self, query: RunQuery) -> RunPage:
        """Returns a page of runs, the newest first, of all partitions that have some."""
        before = "+inf"
        if query.after is not None:
            partition, id_ = self._place(*query.after)
            place = await self._partitions.command(b"HGET", self._partitions.key(partition, f"rn:{id_}"), b"p")
            if place is None:
                return RunPage([], has_more=False)
            before = f"({place.decode()}"
        numbers = range(self._partitions.number)
        whose = ""
        if query.tenant is not None:
            numbers = range(self._partitions.of_tenant(query.tenant), self._partitions.of_tenant(query.tenant) + 1)
            whose = tenant_token(query.tenant)
        found: list[StoredRun] = []
        while True:
            rows: list[tuple[int, StoredRun]] = []
            rest: list[int] = []
            for partition in numbers:
                _, _, last, some = await self._partitions.run(PAGE, partition, whose, before, ROWS_AT_ONCE)
                rows += [(int(row[1]), _stored(row[2:])) for row in some]
                rest += [int(last)] if last else []
            down_to = max(rest, default=0)
            rows = sorted((row for row in rows if row[0] >= down_to), key=lambda row: row[0], reverse=True)
            found += [run for _, run in rows if is_wanted(run.record, query)]
            if len(found) > query.limit or not rest:
                return RunPage(found[: query.limit], len(found) > query.limit)
            before = f"({down_to}"

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets a run and its steps, as safely as a job is accepted."""
        partition, id_ = self._place(tenant, run)

        async def ask(is_again: bool) -> bool:
            mark = self._partitions.mark(partition)
            _, _, gone = await self._partitions.run(FORGET, partition, id_, 0, 0, mark=mark)
            await self._partitions.settle([mark])
            return is_again or gone > 0

        return await self._partitions.retry_until_known(ask)

    async def trim(self, before: float, most: int) -> int:
        """Forgets runs that were last touched before `before`, partition by partition."""
        count = 0
        for partition in range(self._partitions.number):
            while count < most:
                step = min(FORGOTTEN_AT_ONCE, most - count)
                _, _, gone = await self._partitions.run(FORGET, partition, "", repr(float(before)), step)
                count += gone
                if gone < step:
                    break
        return count

    async def _keep(self, step: StoredStep, *, replaces: bool) -> StoredStep:
        about, body = step
        partition, id_ = self._place(about.tenant, about.run)
        record = encode_run(begun(about.tenant, about.run, step_change(about)))
        arguments = (id_, about.step, int(replaces), repr(about.keep_until), about.size, encode_step(about), record)
        mark = self._partitions.mark(partition)
        _, _, is_kept, rest, first, gone = await self._partitions.run(
            KEEP, partition, *arguments, self._room.bytes, body, mark=mark
        )
        await self._partitions.settle([mark])
        self._room.note(gone)
        return step if is_kept else StoredStep(decode_step(about.tenant, about.run, about.step, rest), first)

    async def _change(self, wanted: RunToChange) -> RunChanged | None:
        self._refuse_if_unfit()
        writer = token_hex(8)
        done: list[RunChanged] = []
        return await self._partitions.retry_until_known(
            lambda is_again: self._write(wanted, writer, done, is_again=is_again)
        )

    async def _write(
        self, wanted: RunToChange, writer: str, done: list[RunChanged], *, is_again: bool
    ) -> RunChanged | None:
        """Writes a change over the record that it was made of; `done` are the attempts whose answers did not come."""
        partition, id_ = self._place(wanted.tenant, wanted.run)
        key = self._partitions.key(partition, f"rn:{id_}")
        for _ in range(MOST_TRIES):
            raw, writes, writers = await self._partitions.command(b"HMGET", key, b"r", b"w", b"x")
            mark = self._partitions.mark(partition)
            if is_again and done and raw is not None and writer.encode() in writers:
                # It was written by the try whose answer was lost: wait until it is as safe as a write would be.
                if mark is not None:
                    await self._partitions.run(FORGET, partition, "", "0", 0, mark=mark)
                    await self._partitions.settle([mark])
                return done[-1]
            kept = None if raw is None else decode_run(raw)
            result = changed(kept, wanted)
            if result is None or result.after == kept:
                return result
            done.append(result)
            arguments = (id_, b"" if writes is None else writes, writer, encode_run(result.after), self._room.bytes)
            _, _, is_written, gone = await self._partitions.run(WRITE, partition, *arguments, mark=mark)
            if is_written:
                wanted.written()
                await self._partitions.settle([mark])
                self._room.note(gone)
                return done[-1]
            done.pop()
        raise JobsUnavailable("Runs cannot be changed now: too many write about one of them at once.")

    def _place(self, tenant: str, run: str) -> tuple[int, str]:
        return self._partitions.of_tenant(tenant), f"{tenant_token(tenant)}/{run}"


def _stored(row: Sequence[bytes]) -> StoredRun:
    record, created, touched, size, steps = row
    return StoredRun(decode_run(record), float(created), float(touched), int(size), int(steps))


# --- runs that replicas share: one value a run, changed by compare-and-set, so that all replicas agree ---

SWAP = load_script("runs_swap")
KEEP_S = 7 * 86_400
MOST_PER_TENANT = 20_000
MOST_TENANTS = 1_000
MOST_REPLICAS = 32
"""The replicas of which a run remembers the last change; of more, the first ones are forgotten."""
TRIES = 20
RUNS_AT_ONCE = 500
_TENANT_AGAIN_S = 60.0

Marks = dict[str, int]


class SharedRunRecords:
    """Implements `gateway.features.runs.store.RunStore`.

    A tenant's runs are in one slot, with a list of them by time. Each value says which change of each replica it has last
    taken: a replica that did not learn whether its change was taken finds out, and adds it once. Invariants: a change is added
    once; no step takes longer for more runs.
    """

    def __init__(self, link: Link, replica: str) -> None:
        """`replica` is an id of this process, which no other has or had."""
        self._link = link
        self._replica = replica
        self._numbers = count(1)
        self._tenants = link.slot_key("runs", "tenants")
        self._noted: dict[str, float] = {}
        self._doubts: dict[tuple[str, str], tuple[int, RunChange]] = {}
        """Changes of which it is not known whether they were taken, by run."""

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
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
                except NoReply as trouble:
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
        try:
            return _read(await self._link.command(b"GET", self._key(tenant, run)) or b"")[0]
        except StoreGone as trouble:
            raise RunsUnavailable(f"The store of runs cannot be reached: {trouble}") from None

    async def forget(self, tenant: str, run: str) -> bool:
        self._doubts.pop((tenant, run), None)
        try:
            await self._link.command(b"ZREM", self._list(tenant), run)
            return bool(await self._link.command(b"DEL", self._key(tenant, run)))
        except StoreGone as trouble:
            raise RunsUnavailable(f"The store of runs cannot be reached: {trouble}") from None

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
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
        for at in range(0, len(runs), RUNS_AT_ONCE):
            keys = [self._key(tenant, run.decode()) for run in runs[at : at + RUNS_AT_ONCE]]
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
