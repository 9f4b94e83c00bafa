"""A step of a run as data: the answer that it was given, kept so that nobody pays for it twice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.types.words import Usage
from gateway.features.runs.rules.run import RunChange, RunRecord, begun, merged

KEPT_STEP = "step"
"""The layer of reuse that gives the answers of kept steps."""
RUN_BYTES = 1024
STEP_BYTES = 256
"""What a run, or a step, is reckoned with besides the bytes of its answer."""


@dataclass(frozen=True, slots=True)
class StepAbout:
    """All of a step but its answer's body. Times are wall-clock seconds."""

    tenant: str
    run: str
    step: str
    fingerprint: bytes
    """The digest of all that a repetition must repeat, 32 bytes."""
    status: int
    headers: Sequence[tuple[bytes, bytes]]
    """Those of the answer that belong to it, and not to the one call that it was given to."""
    is_stream: bool
    endpoint: str
    usage: Usage | None
    cost_usd: float | None
    """What the first call has cost; None: it has no price."""
    model: str
    target: str
    source: str
    """The id of the call that it was paid for by."""
    outcome: str
    created_at: float
    keep_until: float
    bytes: int
    """Of the body."""

    @property
    def size(self) -> int:
        """Returns the bytes that it counts with."""
        return STEP_BYTES + self.bytes + sum(len(name) + len(value) for name, value in self.headers)


class StoredStep(NamedTuple):
    """A step with its answer's body, as the first client got it."""

    about: StepAbout
    body: bytes


class StoredRun(NamedTuple):
    """A run in a store."""

    record: RunRecord
    created_at: float
    """When it came into the store, in wall-clock seconds."""
    touched_at: float
    """When something of it was last kept."""
    bytes: int
    steps: int
    """So many steps are kept."""


Close = Callable[[RunRecord], RunRecord | None]
"""Returns the record as counted under its outcome, if it has ended and is not counted so; None: it stays as it is."""


def stays_open(_record: RunRecord) -> None:
    """A run that nobody counts."""


def nobody_waits() -> None:
    """A change behind which nothing is to be written."""


def show_step(about: StepAbout) -> dict[str, object]:
    """Returns a step as its caller sees it."""
    usage = about.usage
    return {
        "step": about.step,
        "status": about.status,
        "model": about.model,
        "target": about.target or None,
        "usage": None if usage is None else {"input_tokens": usage.input, "output_tokens": usage.output},
        "cost_usd": about.cost_usd,
        "bytes": about.bytes,
        "kept_at": about.created_at,
        "kept_until": about.keep_until,
    }


class RunToChange(NamedTuple):
    """What is to be added to a run."""

    tenant: str
    run: str
    change: RunChange | None
    """None: nothing; the run is only looked at, to be closed."""
    close: Close = stays_open
    written: Callable[[], None] = nobody_waits
    """Called as soon as what the same process writes of the run from now on is written behind this change, which need not be
    durable by then; perhaps never, where nothing is changed or the change fails."""


class RunChanged(NamedTuple):
    """A run's record before it was closed, and as it is kept."""

    before: RunRecord
    after: RunRecord


class RunQuery(NamedTuple):
    """Asks for runs, the newest first."""

    tenant: str | None
    """None: everybody's."""
    limit: int
    after: tuple[str, str] | None = None
    """Tenant and id of the last run of the page before."""
    workflow: str | None = None
    matches: Callable[[RunRecord], bool] | None = None
    """Says which are wanted, such as those of an outcome; called in any thread."""


class RunPage(NamedTuple):
    """A page of runs."""

    runs: Sequence[StoredRun]
    has_more: bool


def step_change(about: StepAbout) -> RunChange:
    """Returns what a kept step says of its run by itself: that it was there then. What it cost is told by its call."""
    at_ms = round(about.created_at * 1000)
    return RunChange(at_ms, at_ms)


def changed(kept: RunRecord | None, asked: RunToChange) -> RunChanged | None:
    """Returns what becomes of a run that is kept as `kept`; None: it is not there, and nothing is added that begins it."""
    before = kept
    if asked.change is not None:
        before = begun(asked.tenant, asked.run, asked.change) if kept is None else merged(kept, asked.change)
    return None if before is None else RunChanged(before, asked.close(before) or before)


def is_wanted(record: RunRecord, query: RunQuery) -> bool:
    """Tells whether a run belongs into the list."""
    if query.workflow is not None and record.workflow != query.workflow:
        return False
    return query.matches is None or query.matches(record)
