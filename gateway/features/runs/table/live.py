"""One run while it is used: what its calls have added since it was last put together, in plain numbers."""

from __future__ import annotations

import asyncio
import logging
from math import inf
from typing import Protocol

from gateway.core.call import Call
from gateway.features.runs.rules import (
    LastWrite,
    RunChange,
    RunOutcome,
    RunPart,
    RunRecord,
    TaskSum,
    TaskWord,
    begun,
    bounded,
    merged,
    newer_than,
    units,
)
from gateway.features.runs.step import KEPT_STEP


class TaskTally:
    """What calls of one task have added."""

    __slots__ = (
        "at_ms",
        "attempts",
        "bad_attempts",
        "bad_calls",
        "cached",
        "calls",
        "cost",
        "error_class",
        "input_tokens",
        "output_tokens",
        "replayed",
        "saved",
        "wasted",
    )

    def __init__(self) -> None:
        self.calls = self.bad_calls = self.attempts = self.bad_attempts = self.cached = 0
        self.replayed = 0
        self.cost = self.wasted = self.saved = 0
        self.input_tokens = self.output_tokens = 0
        self.at_ms = 0
        self.error_class = ""
        """Of the last call; empty: it was good."""

    def sum(self) -> TaskSum:
        """Returns it as a part of a change."""
        return TaskSum(
            *(self.calls, self.bad_calls, self.attempts, self.bad_attempts, self.cached),
            *(self.cost, self.wasted, self.saved, self.input_tokens, self.output_tokens),
            last=TaskWord(self.at_ms, not self.error_class, self.error_class),
            replayed=self.replayed,
        )


class LiveRun:
    """One run of one tenant. `base` is what is known of it, without what is still `owed` and tallied."""

    __slots__ = (
        "base",
        "calls",
        "first_ms",
        "in_flight",
        "is_durable",
        "is_watched",
        "last_ms",
        "merging",
        "outcome",
        "owed",
        "reserved",
        "run",
        "spent",
        "tallies",
        "tenant",
        "workflow",
    )

    def __init__(self, tenant: str, run: str, base: RunRecord | None = None) -> None:
        self.tenant = tenant
        self.run = run
        self.base = base
        self.owed: RunChange | None = None
        """What was put together, and is not in `base`, because whoever keeps it has not answered."""
        self.tallies: dict[str, TaskTally] = {}
        self.first_ms = self.last_ms = 0
        self.workflow = "" if base is None else base.workflow
        self.outcome: LastWrite[str] | None = None
        """As a header of a call has told."""
        self.is_durable = False
        """It is kept where its steps are."""
        self.is_watched = False
        """Somebody looks whether it has ended."""
        self.merging: asyncio.Lock | None = None
        """Held while its changes are on their way to whoever keeps them."""
        self.in_flight = 0
        self.calls = 0
        """All that have begun, but for those that a kept step has answered: these do nothing that has to end."""
        self.spent = 0
        """In units of money, wasted attempts included."""
        self.reserved = 0
        """Reserved by calls in flight, in units of money."""
        if base is not None:
            self.learn(base)

    def learn(self, base: RunRecord) -> None:
        """Takes a new base; what is tallied since stays on top of it."""
        self.base = base
        self.workflow = base.workflow or self.workflow
        total = base.so_far.total
        self.calls = max(self.calls, total.calls - total.replayed + self.in_flight)
        tallied = sum(tally.cost + tally.wasted for tally in self.tallies.values())
        owed = TaskSum() if self.owed is None else self.owed.total
        known = total.cost + total.wasted + owed.cost + owed.wasted + tallied
        self.spent = max(self.spent, known)  # what is on its way to whoever keeps it is in neither

    def add(
        self, call: Call, part: RunPart, outcome: str, at_ms: int, cost_usd: float | None, wasted_usd: float
    ) -> None:
        """Adds a call that has ended at that time; its reservation ends."""
        tally = self.tallies.get(part.task)
        if tally is None:
            tally = self.tallies[part.task] = TaskTally()
        self.last_ms = tally.at_ms = at_ms
        if part.workflow:
            self.workflow = part.workflow
        tally.calls += 1
        if outcome == "ok":
            tally.error_class = ""
        else:
            tally.bad_calls += 1
            tally.error_class = str(outcome)
        spent = 0
        if cost_usd:
            spent = units(cost_usd)
            tally.cost += spent
        if wasted_usd:
            wasted = units(wasted_usd)
            tally.wasted += wasted
            spent += wasted
        self.spent += spent
        if part.reserved:
            self.reserved = max(
                0, self.reserved - part.reserved
            )  # its run may have been forgotten, and be another one now
            part.reserved = 0
        for attempt in call.attempts:
            tally.attempts += 1
            if attempt.error_class is not None:
                tally.bad_attempts += 1
        usage, replay = call.usage, call.replay
        if replay is not None and replay.layer:
            tally.cached += 1
            tally.replayed += replay.layer == KEPT_STEP
            tally.saved += units(replay.saved_usd)
        elif usage is not None:
            tally.input_tokens += usage.input
            tally.output_tokens += usage.output

    @property
    def changed_ms(self) -> int:
        """Returns when it was last changed, in wall-clock milliseconds, as its record tells; 0: there is none yet."""
        known = (
            part.last_ms for part in (self.owed, None if self.base is None else self.base.so_far) if part is not None
        )
        return max(self.last_ms if self.tallies else 0, *known, 0)

    @property
    def has_more(self) -> bool:
        """Tells whether something is not in `base` yet."""
        return bool(self.tallies) or self.owed is not None or self.outcome is not None

    @property
    def is_on_its_way(self) -> bool:
        """Tells whether changes of it are being brought to whoever keeps them."""
        return self.merging is not None and self.merging.locked()

    def record(self) -> RunRecord | None:
        """Returns all that is known of it here; None: nothing is yet."""
        change = self.take_change()
        if change is None:
            return self.base
        self.owe(change)
        return begun(self.tenant, self.run, change) if self.base is None else merged(self.base, change)

    def take_change(self) -> RunChange | None:
        """Returns all that is owed and tallied, as one change, and forgets it; None: there is nothing."""
        change, self.owed = self.owed, None
        if self.tallies or self.outcome is not None:
            workflow = LastWrite(self.last_ms, self.workflow) if self.workflow else None
            tasks = bounded({task: tally.sum() for task, tally in self.tallies.items()})
            added = RunChange(self.first_ms, self.last_ms, tasks, workflow, self.outcome)
            change = added if change is None else change + added
            self.tallies, self.outcome = {}, None
        return change

    def owe(self, change: RunChange) -> None:
        """Keeps a change for later."""
        self.owed = change if self.owed is None else self.owed + change

    def take_outcome(self, outcome: RunOutcome, at_ms: int) -> None:
        """Takes an outcome that came with a call."""
        known = self.outcome or (None if self.base is None else self.base.so_far.outcome)
        self.outcome = newer_than(known, LastWrite(at_ms, str(outcome)))


# Who counts what becomes of runs.


class RunMeter(Protocol):
    """The sink of what is counted of runs. Every method is cheap and synchronous, and never raises."""

    def run_ended(self, record: RunRecord, workflow: str, outcome: RunOutcome, before: str) -> None:
        """Counts a run under its outcome; `workflow` is a label, `before` the outcome it was counted under; empty: none."""
        ...

    def run_used(self, workflow: str, *, is_usable: bool, is_first: bool) -> None:
        """Counts the word on whether somebody could use what came of a run; `is_first`: there was none before."""
        ...

    def runs_lost(self, number: int) -> None:
        """Counts runs that were forgotten before their time for want of room."""
        ...


class NoMeter:
    """Counts nothing."""

    def run_ended(self, record: RunRecord, workflow: str, outcome: RunOutcome, before: str) -> None: ...

    def run_used(self, workflow: str, *, is_usable: bool, is_first: bool) -> None: ...

    def runs_lost(self, number: int) -> None: ...


# Counts the runs that were forgotten before their time, and says so in the log, once a minute at most.


LOG_EVERY_S = 60.0
log = logging.getLogger("gateway.runs")


class LostRuns:
    """The runs of a process that were forgotten for want of room."""

    __slots__ = ("_are_shared", "_logged_at", "_meter", "_most", "_number")

    def __init__(self, most: int, meter: RunMeter, *, are_shared: bool) -> None:
        """`most` is how many runs there is room for; those that `are_shared` are kept elsewhere, and not lost."""
        self._are_shared = are_shared
        self._meter = meter
        self._most = most
        self._number = 0
        """Of those, how many the log has not been told of."""
        self._logged_at = -inf

    def note(self, number: int) -> None:
        """Adds runs that were forgotten just now."""
        if not self._are_shared:
            self._meter.runs_lost(number)
            self._number += number

    def tell(self, now: float) -> None:
        """Writes the line, if there is something to say and the last one is a minute old; `now` is wall-clock seconds."""
        if not self._number or now - self._logged_at < LOG_EVERY_S:
            return
        log.warning(
            "%d runs were forgotten early: this process has room for %d, and more were begun within a day. What they have "
            "added to the metrics stays; whoever asks for them finds none, and their fuses start anew. A Redis keeps them, "
            "and so does the store of jobs where they have steps.",
            self._number,
            self._most,
        )
        self._logged_at, self._number = now, 0
