"""The ends of jobs that no worker makes: cancelled before they began, or past their deadlines. They are counted here.

A store says what follows from an end in any thread, and perhaps more than once: each is counted once, in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from gateway.features.runs.rules.run import told
from gateway.features.runs.rules.workflow import RunOutcome
from gateway.products.jobs.calls.ports.ports import JobMeter, TellRun, tell_nobody
from gateway.products.jobs.dead_letters.replay.replay.replay import CLASS
from gateway.products.jobs.model.job import Following, Job, JobKind, JobState, NewJob

STOPPED: Final = (JobState.CANCELLED, JobState.EXPIRED)
"""Ends that a store may make by itself. Whoever makes them, they are counted here and not by the worker."""
REMEMBERED = 1000


class CountedEnds:
    """A `Following` that counts, and tells of runs of pipelines that they were cancelled, or had too little time."""

    def __init__(self, following: Following, meter: JobMeter, tell_run: TellRun = tell_nobody) -> None:
        self._tell_run = tell_run
        self._following = following
        self._meter = meter
        self._loop: asyncio.AbstractEventLoop | None = None
        self._seen: deque[str] = deque(maxlen=REMEMBERED)

    def start(self) -> None:
        """Counts in the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, ended: Job) -> Sequence[NewJob]:
        """Returns what follows from an end."""
        if ended.state in STOPPED and self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and nobody will read the numbers
                self._loop.call_soon_threadsafe(self._count, ended)
        return self._following(ended)

    def _count(self, ended: Job) -> None:
        if ended.id in self._seen:
            return
        self._seen.append(ended.id)
        ended_at = ended.ended_at or ended.created_at
        self._meter.ended(ended, ended.state, ended_at - (ended.started_at or ended_at))
        if CLASS in ended.about:
            self._meter.replayed(ended.about[CLASS], is_ok=False)
        if ended.kind is JobKind.RUN:
            outcome = RunOutcome.CANCELLED if ended.state is JobState.CANCELLED else RunOutcome.FAILED
            self._tell_run(ended.tenant, ended.id, told(ended_at, workflow=ended.model, outcome=str(outcome)))
