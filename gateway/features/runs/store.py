"""What the stores of runs have in common: the room that runs have, and steps as JSON."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.core.types import Usage
from gateway.features.runs.step import (
    StepAbout,
    StepTooLarge,
    StoredStep,
)

# The room that the runs of each tenant have, and the count of those that went before their time for want of it.


log = logging.getLogger("gateway.runs")


class RunQuota:
    """The room in one store."""

    __slots__ = ("_has_warned", "bytes", "early")

    def __init__(self, most_bytes: int) -> None:
        self.bytes = most_bytes
        self.early = 0
        """So many runs, and steps of runs that stay, were removed early since the start."""
        self._has_warned = False

    def check(self, step: StoredStep) -> None:
        """Raises StepTooLarge for a step that would not fit if it were alone."""
        if step.about.size > self.bytes:
            raise StepTooLarge(
                f"The answer of step '{step.about.step}' has {step.about.bytes} bytes; all runs of one tenant together have "
                f"room for {self.bytes}."
            )

    def note(self, count: int) -> None:
        """Counts what was removed, and logs the first."""
        self.early += count
        if count and not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all steps that are to be replayed: a tenant's oldest runs are forgotten early, and their steps "
                "would be paid for again. Raise jobs.max_run_bytes_per_tenant (now %d); DELETE /v1/runs/{id} forgets a run "
                "that is done with.",
                self.bytes,
            )


# Steps as JSON, without the bodies of their answers.


def encode_step(about: StepAbout) -> bytes:
    """Returns what is kept of a step beside its ids, when it came and its body."""
    usage = about.usage
    return orjson.dumps(
        [
            about.fingerprint.hex(),
            about.status,
            [[name.decode("latin-1"), value.decode("latin-1")] for name, value in about.headers],
            about.is_stream,
            about.endpoint,
            None if usage is None else _counts(usage),
            about.cost_usd,
            about.model,
            about.target,
            about.source,
            about.outcome,
            about.created_at,
            about.keep_until,
            about.bytes,
        ]
    )


def _counts(usage: Usage) -> list[int]:
    written = usage.cache_written, usage.cache_written_1h
    return [usage.input, usage.output, usage.cached, usage.estimated, *written]


def decode_step(tenant: str, run: str, step: str, raw: bytes) -> StepAbout:
    """Returns the step that was written so."""
    fields: Sequence[Any] = orjson.loads(raw)
    fingerprint, status, headers, is_stream, endpoint, usage, *rest = fields
    return StepAbout(
        tenant,
        run,
        step,
        bytes.fromhex(fingerprint),
        status,
        [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        is_stream,
        endpoint,
        None if usage is None else Usage(*usage),
        *rest,
    )


RunId = tuple[str, str]


@dataclass(slots=True)
class MemoryRun:
    """A run."""

    record: RunRecord
    created_at: float
    touched_at: float
    steps: dict[str, StoredStep] = field(default_factory=dict)
    """In the order in which they were kept."""

    @property
    def bytes(self) -> int:
        """Returns what it counts with."""
        return RUN_BYTES + sum(step.about.size for step in self.steps.values())


class MemoryRuns:
    """Implements `gateway.features.runs.step.Runs`."""

    def __init__(self, wall: Callable[[], float], most_bytes: int) -> None:
        self._wall = wall
        self._room = RunQuota(most_bytes)
        self._runs: dict[RunId, MemoryRun] = {}
        """In the order in which they came."""

    @property
    def early(self) -> int:
        return self._room.early

    async def find_step(self, tenant: str, run: str, step: str) -> StoredStep | None:
        kept = self._runs.get((tenant, run))
        return None if kept is None else self._valid(kept, step)

    async def keep_step(self, step: StoredStep, *, replaces: bool = False) -> StoredStep:
        self._room.check(step)
        about = step.about
        id_ = about.tenant, about.run
        kept = self._runs.get(id_)
        if kept is not None and not replaces:
            first = self._valid(kept, about.step)
            if first is not None:
                return first
        kept = self._touched(begun(*id_, step_change(about)))
        kept.steps.pop(about.step, None)
        kept.steps[about.step] = step
        self._make_room(id_, about.step)
        return step

    async def change(self, changes: Sequence[RunToChange]) -> Sequence[RunChanged | None]:
        return [self._change(wanted) for wanted in changes]

    async def find(self, tenant: str, run: str) -> tuple[StoredRun, Sequence[StepAbout]] | None:
        kept = self._runs.get((tenant, run))
        return None if kept is None else (_stored(kept), [step.about for step in kept.steps.values()])

    async def list_runs(self, query: RunQuery) -> RunPage:
        ids = [id_ for id_ in reversed(self._runs) if query.tenant in (None, id_[0])]
        if query.after is not None:
            ids = ids[ids.index(query.after) + 1 :] if query.after in ids else []
        found = [_stored(self._runs[id_]) for id_ in ids if is_wanted(self._runs[id_].record, query)]
        return RunPage(found[: query.limit], len(found) > query.limit)

    async def forget(self, tenant: str, run: str) -> bool:
        return self._runs.pop((tenant, run), None) is not None

    async def trim(self, before: float, most: int) -> int:
        old = sorted((kept.touched_at, id_) for id_, kept in self._runs.items() if kept.touched_at < before)[:most]
        for _, id_ in old:
            del self._runs[id_]
        return len(old)

    def _valid(self, kept: MemoryRun, step: str) -> StoredStep | None:
        found = kept.steps.get(step)
        return found if found is not None and found.about.keep_until > self._wall() else None

    def _change(self, wanted: RunToChange) -> RunChanged | None:
        id_ = wanted.tenant, wanted.run
        kept = self._runs.get(id_)
        result = changed(None if kept is None else kept.record, wanted)
        wanted.written()
        if result is not None and (kept is None or result.after != kept.record):
            self._touched(result.after).record = result.after
            self._make_room(id_)
        return result

    def _touched(self, record: RunRecord) -> MemoryRun:
        """Returns the run, begun with this record if need be."""
        now = self._wall()
        kept = self._runs.setdefault((record.tenant, record.run), MemoryRun(record, now, now))
        kept.touched_at = now
        return kept

    def _make_room(self, id_: RunId, step: str = "") -> None:
        """Removes other runs of the tenant, then other steps of the run, the oldest first, until the rest fits."""
        tenant = id_[0]
        theirs = [
            (kept.touched_at, place, one) for place, (one, kept) in enumerate(self._runs.items()) if one[0] == tenant
        ]
        over = sum(self._runs[one].bytes for _, _, one in theirs) - self._room.bytes
        gone = 0
        for _, _, one in sorted(theirs):
            if over > 0 and one != id_:
                over -= self._runs.pop(one).bytes
                gone += 1
        steps = self._runs[id_].steps
        for name in [name for name in steps if name != step]:
            if over > 0:
                over -= steps.pop(name).about.size
                gone += 1
        self._room.note(gone)


def _stored(kept: MemoryRun) -> StoredRun:
    return StoredRun(kept.record, kept.created_at, kept.touched_at, kept.bytes, len(kept.steps))
