"""Limits that replicas share: asks the store for what this one will need, ahead of need, and reports what was used.

    share out -> (calls take from shares) -> a round of asks -> replies -> those who wait go

Nothing here is on the way of a call that finds something held. It must not know Redis, nor how the store divides. Invariants:
a share is in one round at a time; whoever waits for a share is looked at again after every answer; when the store goes out
of reach or comes back, every share is switched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Protocol, TypeAlias
from weakref import WeakSet

from gateway.core.admission.queue import DelayQueue
from gateway.core.clock import Clock, Timer
from gateway.core.limits.bucket import NOTHING, Cost, parts_of
from gateway.core.limits.limit_table import LimitKind, LimitShape, ShareOut
from gateway.core.ports import Later
from gateway.core.types import LANES
from gateway.fleet.lease import LeaseAsk, LeaseReply
from gateway.fleet.leased_part import FleetSum, Share

TICK_S = 0.25
"""Seconds between two looks for what has to be reported although nothing is needed."""
TRY_AGAIN_S = 0.25
"""Seconds for which shares live alone after a round of theirs was not answered."""
BACK_WITHIN_S = 0.2
"""Seconds over which the return of shares to the store is spread."""
_EARLY_S = 0.001  # timers are as exact as that
_LEAST = 1e-9  # somebody waits, though not for this target alone
_Part: TypeAlias = Share | FleetSum


class Leases(Protocol):
    """Limits that replicas share: the store counts them, and each replica holds a part that it may use without asking."""

    @property
    def replicas(self) -> int:
        """The number of replicas, as last known; at least 1."""
        ...

    def ask(self, asks: Sequence[LeaseAsk]) -> asyncio.Future[Sequence[LeaseReply | None]]:
        """Asks for all leases in one round trip; None in the result: there was no answer to that one. Never raises."""
        ...

    def leave(self) -> Later[None]:
        """Ends this replica's membership: it no longer counts. It must have given back what it holds."""
        ...


class ReportedSum(FleetSum):
    """A sum that all replicas add to, and that they can be asked for. Implements `gateway.core.ports.SharedSum`."""

    __slots__ = ("_sharing",)

    def __init__(self, owner: str, name: str, now: float, wake: Callable[[FleetSum], None], sharing: Sharing) -> None:
        super().__init__(owner, name, now, wake)
        self._sharing = sharing

    async def learn(self, until: float, *, afresh: bool = False) -> None:
        """Waits for what was added elsewhere, `afresh` or if nothing is known yet, no longer than until then (monotonic)."""
        await self._sharing.learn(self, until, afresh=afresh)

    async def report(self, until: float) -> bool:
        """Reports to the store what was added here, and gets what was elsewhere; returns False if not `until` (monotonic)."""
        return await self._sharing.report(self, until)

    def forget(self) -> None:
        """Drops the sum: it is not counted any more."""
        self._sharing.forget(self)


class Sharing:
    """The shares of this replica, by the names of their limits. Implements `gateway.core.ports.LimitSource`."""

    __slots__ = (
        "_active",
        "_clock",
        "_draw",
        "_has_met",
        "_incarnations",
        "_is_over",
        "_is_up",
        "_leases",
        "_needs_refill",
        "_of_keys",
        "_queue",
        "_rounds",
        "_shares",
        "_tick_at",
        "_timer",
        "_timer_at",
        "_wanted",
    )

    def __init__(self, clock: Clock, leases: Leases, queue: DelayQueue, draw: Callable[[], float]) -> None:
        """The store counts as out of reach until `changed` says otherwise; `draw` gives uniform numbers from [0, 1)."""
        self._clock = clock
        self._leases = leases
        self._queue = queue
        self._draw = draw
        self._is_up = self._has_met = self._is_over = False
        self._shares: WeakSet[_Part] = WeakSet()
        self._incarnations = 0
        self._of_keys: dict[str, WeakSet[Share]] = {}
        self._active: dict[int, _Part] = {}
        """The parts that the store knows of, by identity; they are kept alive here."""
        self._needs_refill: list[_Part] = []
        self._rounds: set[asyncio.Future[Sequence[LeaseReply | None]]] = set()
        self._wanted: dict[str, Cost] = {}
        """The cost that waiting calls of a key lack, by owner."""
        self._timer: Timer | None = None
        self._timer_at = inf
        self._tick_at = clock.monotonic()

    @property
    def replicas(self) -> int:
        return self._leases.replicas

    @property
    def is_up(self) -> bool:
        return self._is_up

    def of_target(self, gate: str) -> ShareOut:
        """Makes the shares of a target's limits."""
        return partial(self._share, f"target|{gate}")

    def of_key(self, key: str) -> ShareOut:
        """Makes the shares of a key's own limits."""
        self._of_keys.setdefault(f"key|{key}", WeakSet())
        return partial(self._share, f"key|{key}")

    def sum_of(self, key: str, what: str) -> ReportedSum:
        """Makes the sum of what all replicas have used up of something of this key's; to be called once for each."""
        owner, now = f"tally|{key}", self._clock.monotonic()
        tally = ReportedSum(owner, what, now, self._refill, self)
        self._shares.add(tally)
        if not self._is_up:
            tally.go_local(self.replicas, now)
        tally.look()
        return tally

    def forget(self, tally: FleetSum) -> None:
        """Drops a sum that is not counted any more."""
        self._active.pop(id(tally), None)

    def changed(self, is_up: bool) -> None:
        """Puts the shares on this replica's part when the store is out of reach, and joins it again when that is back."""
        if is_up == self._is_up:
            return
        self._is_up = is_up
        now = self._clock.monotonic()
        if is_up and self._has_met:  # not all replicas at once
            self._clock.call_at(now + self._draw() * BACK_WITHIN_S, lambda: self._rejoin([*self._shares]))
            return
        if is_up:
            self._has_met = True
            self._rejoin([*self._shares])
            return
        replicas = self.replicas
        for share in [*self._shares]:
            share.go_local(replicas, now)
        self._needs_refill.clear()
        self._queue.freed_all()

    async def fetch(self, key: str, cost: Cost, until: float) -> bool:
        """Asks for what a call of this key lacks; returns False if there is no more now, or no reply until then (monotonic)."""
        owner = f"key|{key}"
        with _waiting_for(self._wanted, owner, cost):
            shares = self._of_keys.get(owner, ())
            self._round([share for share in shares if share.needs_refill and self._is_due(share)])
            if not any(share.is_pending for share in shares):
                return False
            return await self._rounds_end(until)

    async def learn(self, tally: FleetSum, until: float, *, afresh: bool = False) -> None:
        """Waits for what was added elsewhere, `afresh` or if nothing is known yet, no longer than until then (monotonic)."""
        if (afresh or not tally.is_known) and not tally.is_alone:
            tally.look()
            self._round([tally] if tally.needs_refill else [])
            await self._rounds_end(until)

    async def report(self, tally: FleetSum, until: float) -> bool:
        """Reports to the store what was added here, and gets what was elsewhere; returns False if not `until` (monotonic)."""
        while tally.unreported and not tally.is_alone and self._clock.monotonic() < until:
            if not tally.is_pending:
                self._round([tally])
            if not await self._rounds_end(until):
                break
        return not tally.unreported

    async def _rounds_end(self, until: float) -> bool:
        """Waits for the rounds under way; returns whether they have been answered by then."""
        if not self._rounds:
            return False
        left_s = max(0.0, until - self._clock.monotonic())
        _, late = await asyncio.wait([*self._rounds], timeout=left_s)
        return not late

    async def aclose(self) -> None:
        """Gives back all that is held, so that others can use it."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        if self._rounds:
            await asyncio.wait([*self._rounds])
        shares = [share for share in self._active.values() if not share.is_alone]
        for share in shares:
            share.leave()
        if self._is_up and shares:
            await asyncio.wait([self._leases.ask([share.ask(self._clock.monotonic(), 0.0) for share in shares])])
        leaving = self._leases.leave()
        if isinstance(leaving, asyncio.Future):
            await asyncio.wait([leaving])

    # --- by itself ---

    def _share(self, owner: str, limit: LimitShape, now: float) -> Share:
        self._incarnations += 1
        share = _share_of(owner, limit, now, self._refill, self._incarnations)
        self._shares.add(share)
        if not self._is_up:
            share.go_local(self.replicas, now)
        if owner in self._of_keys:
            self._of_keys[owner].add(share)
        return share

    def _rejoin(self, shares: Iterable[_Part]) -> None:
        if self._is_up:
            now = self._clock.monotonic()
            for share in shares:
                if share.is_alone:
                    share.rejoin(now)
            self._queue.freed_all()

    def _refill(self, share: _Part) -> None:
        self._needs_refill.append(share)
        self._active[id(share)] = share
        self._arm(share.retry_at)

    def _is_due(self, share: _Part) -> bool:
        return share.retry_at <= self._clock.monotonic() + _EARLY_S

    def _arm(self, when: float) -> None:
        """Sets the timer to the next round; one that is due is a moment away, so that several go together."""
        if when < self._timer_at and not self._is_over:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = max(when, self._clock.monotonic())
            self._timer = self._clock.call_at(self._timer_at, self._on_time)

    def _on_time(self) -> None:
        self._timer, self._timer_at = None, inf
        now = self._clock.monotonic()
        shares = [share for share in self._needs_refill if self._is_due(share)]
        if now >= self._tick_at:
            self._tick_at = now + TICK_S
            shares.extend(self._overdue(now))
        self._round(shares)
        if self._active:
            self._arm(min([self._tick_at, *(share.retry_at for share in self._needs_refill)]))

    def _overdue(self, now: float) -> list[_Part]:
        for key in [key for key, share in self._active.items() if share.is_idle(now)]:
            del self._active[key]
        return [share for share in self._active.values() if not share.needs_refill and share.is_due(now)]

    def _round(self, shares: list[_Part]) -> None:
        shares = [share for share in shares if not share.is_alone]
        self._needs_refill = [share for share in self._needs_refill if share.needs_refill]
        if not shares or self._is_over:
            return
        now = self._clock.monotonic()
        asks = [share.ask(now, self._waiting(share)) for share in shares]
        self._needs_refill = [share for share in self._needs_refill if share.needs_refill]
        future = self._leases.ask(asks)
        self._rounds.add(future)
        future.add_done_callback(partial(self._answered, shares))

    def _waiting(self, share: _Part) -> float:
        kind, _, name = share.owner.partition("|")
        if kind == "key":
            return parts_of(self._wanted.get(share.owner, NOTHING))[share.part]
        line = self._queue.lines.get(name)
        if line is None or not line.waiters.is_busy:
            return 0.0
        return max(_LEAST, parts_of(line.waiters.above(len(LANES)))[share.part])

    def _answered(self, shares: Sequence[_Part], future: asyncio.Future[Sequence[LeaseReply | None]]) -> None:
        self._rounds.discard(future)
        now = self._clock.monotonic()
        replies = [None] * len(shares) if future.cancelled() else future.result()
        unanswered = []
        for share, reply in zip(shares, replies, strict=True):
            if reply is None:
                unanswered.append(share)
            else:
                share.take_reply(reply, now)
        if unanswered:
            self._unanswered(unanswered, now)
        self._free({share.owner for share in shares})
        self._arm(self._tick_at)

    def _unanswered(self, shares: Sequence[_Part], now: float) -> None:
        """Puts shares on their own part because the store did not answer; in a moment it is asked again.

        Whether it has counted the ask nobody knows, and it does not matter.
        """
        for share in shares:
            share.go_local(self.replicas, now)
        self._clock.call_at(now + TRY_AGAIN_S, lambda: self._rejoin(shares))

    def _free(self, owners: Iterable[str]) -> None:
        for owner in owners:
            kind, _, name = owner.partition("|")
            line = self._queue.lines.get(name) if kind == "target" else None
            if line is not None:
                self._queue.freed(line)


@contextmanager
def _waiting_for(wanted: dict[str, Cost], owner: str, cost: Cost) -> Iterator[None]:
    """Counts what a call of this owner waits for, for as long as it does."""
    before = wanted.get(owner, NOTHING)
    wanted[owner] = Cost(*map(sum, zip(before, cost, strict=True)))
    try:
        yield
    finally:
        left = Cost(*[most - part for most, part in zip(wanted[owner], cost, strict=True)])
        if left.requests > 0:
            wanted[owner] = left
        else:
            del wanted[owner]


def _share_of(owner: str, limit: LimitShape, now: float, refill: Callable[[Share], None], incarnation: int) -> Share:
    is_slots = limit.name == "concurrency"
    kind: LimitKind = "slots" if is_slots else "window" if limit.window_s else "bucket"
    return Share(
        owner,
        f"{limit.name}|{kind}{limit.window_s or ''}",
        limit.part,
        kind,
        limit.rate_per_s,
        limit.capacity,
        now,
        window_s=limit.window_s,
        lag_s=limit.lag_s,
        is_whole=is_slots or limit.name.startswith("requests"),
        wake=refill,
        fails_closed=limit.fails_closed,
        incarnation=incarnation,
    )
