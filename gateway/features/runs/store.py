"""What the stores of runs have in common: their port, the room that runs have, and steps as JSON."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import orjson

from gateway.core.types import Usage
from gateway.features.runs.rules import RunChange, RunRecord
from gateway.features.runs.step import Close, StepAbout, StepTooLarge, StoredStep, nobody_waits

# --- the port of runs beyond this process ---


class RunStore(Protocol):
    """Runs beyond this process. Every method raises RunsUnavailable where nobody answers in time."""

    async def merge(
        self,
        tenant: str,
        run: str,
        change: RunChange | None,
        close: Close,
        written: Callable[[], None] = nobody_waits,
    ) -> tuple[RunRecord, RunRecord] | None:
        """Adds a change, and closes the run if it has ended, in one step; returns the record before closing it, and after.

        None: there is no such run, and no change that could begin one. `written` is as in `RunToChange`.
        """
        ...

    async def get(self, tenant: str, run: str) -> RunRecord | None:
        """Returns the run; None: there is none."""
        ...

    async def forget(self, tenant: str, run: str) -> bool:
        """Forgets the run; returns whether there was one."""
        ...

    async def last(self, tenant: str | None, most: int) -> Sequence[RunRecord]:
        """Returns the runs of a tenant, or of all, that were changed last, in any order."""
        ...


# --- the room that the runs of each tenant have, and the count of those that went early for want of it ---

log = logging.getLogger("gateway.runs")


class RunQuota:
    """The room in one store."""

    __slots__ = ("_has_warned", "bytes", "early")

    def __init__(self, most_bytes: int) -> None:
        self.bytes = most_bytes
        self.early = 0
        """The number of runs, and steps of runs that stay, that were removed early since the start."""
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


# --- steps as JSON, without the bodies of their answers ---


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
