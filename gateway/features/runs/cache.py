"""The runs of this process in memory: what calls add to one, then where all of them are, bounded.

A run in use is an object with plain numbers, to which each call that ends adds; one that is over is packed into bytes. It must
not know how runs end. Invariants: a run is active or packed, never both; at most `most` are there, but for those that have
calls in flight.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from collections.abc import Container, Iterator
from math import inf
from typing import NamedTuple

from gateway.core.call import Call
from gateway.features.outcome import OUTCOME
from gateway.features.runs.metrics import RunCounter
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
    decode_run,
    encode_run,
    merged,
    newer_than,
    units,
)
from gateway.features.runs.step import KEPT_STEP


class TaskTally:
    """What calls of one task have added."""

    __slots__ = (
        "at_ms", "attempts", "bad_attempts", "bad_calls", "cached", "calls", "cost", "error_class", "input_tokens",
        "output_tokens", "replayed", "saved", "wasted",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls = self.bad_calls = self.attempts = self.bad_attempts = self.cached = 0
        self.replayed = 0
        self.cost = self.wasted = self.saved = 0
        self.input_tokens = self.output_tokens = 0
        self.at_ms = 0
        self.error_class = ""
        """The error class of the last call; empty: it was good."""

    def sum(self) -> TaskSum:
        return TaskSum(
            *(self.calls, self.bad_calls, self.attempts, self.bad_attempts, self.cached),
            *(self.cost, self.wasted, self.saved, self.input_tokens, self.output_tokens),
            last=TaskWord(self.at_ms, not self.error_class, self.error_class),
            replayed=self.replayed,
        )


class ActiveRun:
    """One run of one tenant. `base` is what is known of it, without what is still `owed` and tallied."""

    __slots__ = (
        "base", "calls", "first_ms", "in_flight", "is_durable", "is_watched", "last_ms", "merging", "outcome", "owed",
        "reserved", "run", "spent", "tallies", "tenant", "workflow",
    )  # fmt: skip

    def __init__(self, tenant: str, run: str, base: RunRecord | None = None) -> None:
        self.tenant = tenant
        self.run = run
        self.base = base
        self.owed: RunChange | None = None
        """The change that was put together, and is not in `base`, because whoever keeps it has not answered."""
        self.tallies: dict[str, TaskTally] = {}
        self.first_ms = self.last_ms = 0
        self.workflow = "" if base is None else base.workflow
        self.outcome: LastWrite[str] | None = None
        """The outcome that a header of a call has given."""
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
        """The money spent, in its units, wasted attempts included."""
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
            # Not below zero: the run that reserved it may have been forgotten, and this be another one of its name.
            self.reserved = max(0, self.reserved - part.reserved)
            part.reserved = 0
        for attempt in call.attempts:
            tally.attempts += 1
            if attempt.error_class is not None:
                tally.bad_attempts += 1
        usage, replay = call.usage, OUTCOME.find(call)
        if replay is not None and replay.layer:
            tally.cached += 1
            tally.replayed += replay.layer == KEPT_STEP
            tally.saved += units(replay.saved_usd)
        elif usage is not None:
            tally.input_tokens += usage.input
            tally.output_tokens += usage.output

    @property
    def changed_ms(self) -> int:
        """Returns when it was last changed, in wall-clock milliseconds, as its record says; 0: there is none yet."""
        known = (
            part.last_ms for part in (self.owed, None if self.base is None else self.base.so_far) if part is not None
        )
        return max(self.last_ms if self.tallies else 0, *known, 0)

    @property
    def has_more(self) -> bool:
        """Returns whether something is not in `base` yet."""
        return bool(self.tallies) or self.owed is not None or self.outcome is not None

    @property
    def is_on_its_way(self) -> bool:
        """Returns whether changes of it are being brought to whoever keeps them."""
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
        self.owed = change if self.owed is None else self.owed + change

    def take_outcome(self, outcome: RunOutcome, at_ms: int) -> None:
        """Takes an outcome that came with a call."""
        known = self.outcome or (None if self.base is None else self.base.so_far.outcome)
        self.outcome = newer_than(known, LastWrite(at_ms, str(outcome)))


LOG_EVERY_S = 60.0
log = logging.getLogger("gateway.runs")


class LostRuns:
    """Counts the runs of a process that were forgotten for want of room, and logs them once a minute at most."""

    __slots__ = ("_are_shared", "_logged_at", "_metrics", "_most", "_number")

    def __init__(self, most: int, metrics: RunCounter, *, are_shared: bool) -> None:
        """`most` is how many runs there is room for; those that `are_shared` are kept elsewhere, and not lost."""
        self._are_shared = are_shared
        self._metrics = metrics
        self._most = most
        self._number = 0
        """The number of those that the log has not named."""
        self._logged_at = -inf

    def note(self, number: int) -> None:
        """Adds runs that were forgotten just now."""
        if not self._are_shared:
            self._metrics.runs_lost(number)
            self._number += number

    def log_if_due(self, now: float) -> None:
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


MOST_RUNS = 20_000
KEEP_S = 86_400.0

RunKey = tuple[str, str]
"""Tenant and id."""
RunRank = tuple[int, str]
"""When a run was last changed, in wall-clock milliseconds, and its id: the greater one is listed first."""


class ArchivedRun(NamedTuple):
    """A run that is over."""

    at: float
    """When it was packed, in wall-clock seconds."""
    raw: bytes
    is_durable: bool
    """It is kept where its steps are: what is here is a copy."""
    changed_ms: int
    workflow: str


class RunCache:
    """The runs, the least recently used ones first to go."""

    def __init__(self, most: int, lost: LostRuns) -> None:
        """`lost` gets how many runs went before their time, those left out that are kept where their steps are."""
        self._most = most
        self._lost = lost
        self._live: OrderedDict[RunKey, ActiveRun] = OrderedDict()
        self._packed: OrderedDict[RunKey, ArchivedRun] = OrderedDict()
        self._due: list[tuple[float, RunKey]] = []
        """When somebody has to look whether a run is over; once per watched run."""

    def __len__(self) -> int:
        return len(self._live) + len(self._packed)

    def live(self, key: RunKey) -> ActiveRun:
        """Returns the run, made or unpacked where it has to be."""
        live = self._live.get(key)
        if live is None:
            packed = self._packed.pop(key, None)
            live = self._live[key] = ActiveRun(*key, None if packed is None else decode_run(packed.raw))
            live.is_durable = packed is not None and packed.is_durable
            self._make_room()
        return live

    def find(self, key: RunKey) -> ActiveRun | None:
        return self._live.get(key)

    def used(self, key: RunKey, live: ActiveRun) -> None:
        self._live.setdefault(key, live)
        self._live.move_to_end(key)

    def record(self, key: RunKey) -> RunRecord | None:
        """Returns the run as it is known here; None: it is not."""
        packed = self._packed.get(key)
        if packed is not None:
            return decode_run(packed.raw)
        live = self._live.get(key)
        return None if live is None else live.record()

    def newest(
        self,
        tenant: str | None,
        most: int,
        below: RunRank | None,
        workflow: str | None,
        besides: Container[RunKey],
    ) -> Iterator[RunRecord]:
        """Yields the runs of a tenant, or of all, that were changed last, the last first; no others are unpacked.

        `besides` are those that are known already.
        """
        ranks: list[tuple[int, str, RunKey]] = []
        for runs in (self._live, self._packed):
            for key, one in runs.items():
                if (tenant is None or key[0] == tenant) and (workflow is None or one.workflow == workflow):
                    changed_ms = one.changed_ms
                    if changed_ms and (below is None or (changed_ms, key[1]) < below) and key not in besides:
                        ranks.append((changed_ms, key[1], key))
        for _, _, key in heapq.nlargest(most, ranks):
            record = self.record(key)
            if record is not None:
                yield record

    def pack(self, live: ActiveRun, record: RunRecord, now: float) -> None:
        """Packs a run that is over, of which this is all; `now` is wall-clock seconds."""
        key = live.tenant, live.run
        if self._live.pop(key, None) is not None:
            self._packed[key] = ArchivedRun(
                now, encode_run(record), live.is_durable, record.so_far.last_ms, record.workflow
            )

    def forget(self, key: RunKey) -> bool:
        was_live = self._live.pop(key, None) is not None
        return self._packed.pop(key, None) is not None or was_live

    def forget_old(self, now: float) -> None:
        """Forgets what was packed a day ago, and reports what went before; `now` is wall-clock seconds."""
        while self._packed and next(iter(self._packed.values())).at < now - KEEP_S:
            self._packed.popitem(last=False)
        self._lost.log_if_due(now)

    def watch(self, live: ActiveRun, until: float) -> None:
        """Has the run looked at again at that time, in wall-clock seconds, unless it is to be already."""
        if not live.is_watched:
            live.is_watched = True
            heapq.heappush(self._due, (until, (live.tenant, live.run)))

    def take_due(self, now: float) -> Iterator[ActiveRun]:
        """Yields the live runs that have to be looked at by now; they are watched no longer."""
        while self._due and self._due[0][0] <= now:
            live = self._live.get(heapq.heappop(self._due)[1])
            if live is not None:
                live.is_watched = False
                yield live

    def _make_room(self) -> None:
        while len(self) > self._most:
            if self._packed:
                is_durable = self._packed.popitem(last=False)[1].is_durable
            else:
                key = next((key for key, live in self._live.items() if not live.in_flight), None)
                if key is None:
                    return
                is_durable = self._live.pop(key).is_durable
            if not is_durable:
                self._lost.note(1)
