"""The runs in the Redis, each beside the jobs of its tenant; steps are kept as safely as jobs are accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from secrets import token_hex
from typing import Final

from gateway.features.runs.rules.codec import decode_run, encode_run
from gateway.features.runs.rules.run import begun
from gateway.features.runs.step.step import (
    RunChanged,
    RunPage,
    RunQuery,
    RunToChange,
    StepAbout,
    StoredRun,
    StoredStep,
    changed,
    is_wanted,
    step_change,
)
from gateway.features.runs.store.bounds import RunRoom
from gateway.features.runs.store.codec import decode_step, encode_step
from gateway.products.jobs.model.errors import JobsUnavailable
from gateway.products.jobs.redis_partitions.partitions import JobPartitions, job_script
from gateway.products.jobs.redis_records.records import tenant_token

KEEP, STEP = job_script("runs_keep", "runs"), job_script("runs_step", "runs")
WRITE, PAGE = job_script("runs_write", "runs"), job_script("runs_page", "runs")
FORGET = job_script("runs_forget", "runs")
ROWS_AT_ONCE: Final = 200
FORGOTTEN_AT_ONCE: Final = 50
MOST_TRIES: Final = 50
"""Of a change that others come before."""


class RedisRuns:
    """Implements `gateway.features.runs.step.runs.Runs`."""

    def __init__(self, partitions: JobPartitions, refuse_if_unfit: Callable[[], None], most_bytes: int) -> None:
        """`refuse_if_unfit` raises JobsUnavailable where the Redis may not keep anything."""
        self._partitions = partitions
        self._refuse_if_unfit = refuse_if_unfit
        self._room = RunRoom(most_bytes)

    @property
    def early(self) -> int:
        """Returns how many runs, and steps of runs that stay, were removed for want of room."""
        return self._room.early

    async def find_step(self, tenant: str, run: str, step: str) -> StoredStep | None:
        """Returns a step that is not past its time."""
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

        return await self._partitions.insist(ask)

    async def change(self, changes: Sequence[RunToChange]) -> Sequence[RunChanged | None]:
        """Adds to the records of runs, and closes those that have ended."""
        return await asyncio.gather(*map(self._change, changes))

    async def find(self, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
        """Returns a run with its steps."""
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
        asked = range(self._partitions.number)
        whose = ""
        if query.tenant is not None:
            asked = range(self._partitions.of_tenant(query.tenant), self._partitions.of_tenant(query.tenant) + 1)
            whose = tenant_token(query.tenant)
        found: list[StoredRun] = []
        while True:
            rows: list[tuple[int, StoredRun]] = []
            rest: list[int] = []
            for partition in asked:
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

        return await self._partitions.insist(ask)

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
        told = (id_, about.step, int(replaces), repr(about.keep_until), about.size, encode_step(about), record)
        mark = self._partitions.mark(partition)
        _, _, is_kept, rest, first, gone = await self._partitions.run(
            KEEP, partition, *told, self._room.bytes, body, mark=mark
        )
        await self._partitions.settle([mark])
        self._room.note(gone)
        return step if is_kept else StoredStep(decode_step(about.tenant, about.run, about.step, rest), first)

    async def _change(self, asked: RunToChange) -> RunChanged | None:
        self._refuse_if_unfit()
        writer = token_hex(8)
        done: list[RunChanged] = []
        return await self._partitions.insist(lambda is_again: self._write(asked, writer, done, is_again=is_again))

    async def _write(
        self, asked: RunToChange, writer: str, done: list[RunChanged], *, is_again: bool
    ) -> RunChanged | None:
        """Writes a change over the record that it was made of; `done` are the attempts whose answers were not heard."""
        partition, id_ = self._place(asked.tenant, asked.run)
        key = self._partitions.key(partition, f"rn:{id_}")
        for _ in range(MOST_TRIES):
            raw, writes, writers = await self._partitions.command(b"HMGET", key, b"r", b"w", b"x")
            mark = self._partitions.mark(partition)
            if is_again and done and raw is not None and writer.encode() in writers:
                await self._settle_read(partition, mark)
                return done[-1]
            kept = None if raw is None else decode_run(raw)
            result = changed(kept, asked)
            if result is None or result.after == kept:
                return result
            done.append(result)
            told = (id_, b"" if writes is None else writes, writer, encode_run(result.after), self._room.bytes)
            _, _, is_written, gone = await self._partitions.run(WRITE, partition, *told, mark=mark)
            if is_written:
                asked.written()
                await self._partitions.settle([mark])
                self._room.note(gone)
                return done[-1]
            done.pop()
        raise JobsUnavailable("Runs cannot be changed now: too many write about one of them at once.")

    async def _settle_read(self, partition: int, mark: bytes | None) -> None:
        """Waits until what is there is as safe as a write would be."""
        if mark is not None:
            await self._partitions.run(FORGET, partition, "", "0", 0, mark=mark)
            await self._partitions.settle([mark])

    def _place(self, tenant: str, run: str) -> tuple[int, str]:
        return self._partitions.of_tenant(tenant), f"{tenant_token(tenant)}/{run}"


def _stored(row: Sequence[bytes]) -> StoredRun:
    record, created, touched, size, steps = row
    return StoredRun(decode_run(record), float(created), float(touched), int(size), int(steps))
