"""Answers and idempotency records in this process's memory: claims, and the answers of completed ones.

In this order: the count of answers that were evicted too early; answers as bytes; the exact cache; the records; and the store
of both.
"""

from __future__ import annotations

import logging
import marshal
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from typing import Any

import orjson

from gateway.core.types import Kept, StoreBounds, Usage
from gateway.drivers.lru import Lru, Name
from gateway.drivers.store import TENANTS_SHARE, Answers, Claim, Records

# --- answers of idempotency records that a store evicts before their time ---

log = logging.getLogger("gateway.store")


class EarlyEvictions:
    """The early evictions of one store; another thread may set the bound.

    A call whose answer was evicted early would be paid for again when it is repeated, so the first is logged: the operator has
    to know that the bound is too low.
    """

    __slots__ = ("_bound", "_has_warned", "count")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._has_warned = False
        self.count = 0
        """The number of answers evicted early since the start."""

    @property
    def bound(self) -> int:
        return self._bound

    @bound.setter
    def bound(self, bound: int) -> None:
        """Sets the bound; a new one that is too low is logged again."""
        if bound != self._bound:
            self._bound, self._has_warned = bound, False

    def note(self, count: int = 1) -> None:
        """Counts evicted answers, and logs the first."""
        self.count += count
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all answers that are to be replayed to those who repeat an Idempotency-Key: the oldest are "
                "dropped early, and such a call would be paid for again. Raise idempotency.max_bytes in cache.yaml (now %d).",
                self._bound,
            )


# --- an answer as bytes: for a file or a wire (`about`, `restored`), or within one process (`pack`, `unpack`) ---

_APART = frozenset(("body", "headers", "usage", "usage_event"))
_NAMES = tuple(one.name for one in fields(Kept) if one.name not in _APART)
_KNOWN = frozenset((*_NAMES, *_APART)) - {"body"}
_VALUES = attrgetter(*_NAMES)
_ALL_NAMES = [one.name for one in fields(Kept)]
_ALL_VALUES = attrgetter(*_ALL_NAMES)
_USAGE = _ALL_NAMES.index("usage")
_COUNTS = attrgetter("input", "output", "cached", "estimated", "cache_written", "cache_written_1h")
"""The fields of a usage that are kept: its parts and its tier only say what it costs, and `cost_usd` is kept beside it."""
CLOCKS_AGREE_S = 0.5
"""A difference in seconds below which two clocks agree: it may be the time of the round trip."""


def about(kept: Kept) -> bytes:
    """Returns all of the answer but its body, as JSON.

    Invariants: an answer is read as it was written, byte by byte; in a file or on a wire, a field that another release added or
    removed does no harm.
    """
    known: dict[str, Any] = dict(zip(_NAMES, _VALUES(kept), strict=True))
    known["headers"] = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in kept.headers]
    if (usage := kept.usage) is not None:
        known["usage"] = _COUNTS(usage)
    if kept.usage_event:
        known["usage_event"] = kept.usage_event.decode("latin-1")
    return orjson.dumps(known)


def restored(about: bytes, body: bytes) -> Kept:
    """Returns the answer of `about` and body."""
    known: dict[str, Any] = orjson.loads(about)
    if not known.keys() <= _KNOWN:
        known = {name: value for name, value in known.items() if name in _KNOWN}
    known["headers"] = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in known["headers"]]
    if "usage" in known:
        known["usage"] = Usage(*known["usage"])
    if "usage_event" in known:
        known["usage_event"] = known["usage_event"].encode("latin-1")
    return Kept(body=body, **known)


def moved(kept: Kept, shift_s: float) -> Kept:
    """Shifts the answer's times to a clock that is `shift_s` ahead of the writer's, and returns it."""
    if abs(shift_s) >= CLOCKS_AGREE_S:
        kept.stored_at += shift_s
        kept.fresh_until += shift_s
        kept.stale_until += shift_s
    return kept


def pack(kept: Kept) -> bytes:
    """Returns the whole answer in the format of `marshal`, which is fast but must not outlive the process."""
    values = [*_ALL_VALUES(kept)]
    if kept.usage is not None:
        values[_USAGE] = _COUNTS(kept.usage)
    return marshal.dumps(values)


def unpack(blob: bytes) -> Kept:
    values = marshal.loads(blob)  # noqa: S302 - this process wrote it, into its own memory
    if values[_USAGE] is not None:
        values[_USAGE] = Usage(*values[_USAGE])
    return Kept(*values)


# --- the exact cache: one LRU per group ---


class MemoryAnswers:
    """Implements `gateway.drivers.store.Answers`.

    Invariants: a group takes no more bytes than its bound; its least recently used answer is evicted first; a forgotten answer
    is not given again, though its memory is freed step by step.
    """

    __slots__ = ("_given_up", "_groups", "_wall")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._groups: dict[str, Lru] = {}
        self._given_up: list[Lru] = []
        """The LRUs of removed groups, which serve no look-up and are emptied step by step."""

    def get(self, key: bytes, group: str) -> Kept | None:
        lru = self._groups.get(group)
        blob = None if lru is None else lru.get(key, self._wall())
        return None if blob is None else unpack(blob)

    def put(self, key: bytes, kept: Kept) -> None:
        """Keeps the answer in place of an earlier one, unless it alone exceeds the bound of its group."""
        if lru := self._groups.get(kept.group):
            lru.put(key, pack(kept), kept.stale_until, (kept.tenant, kept.model))

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Forgets every answer that matches all given arguments and returns their number.

        The time it takes grows with the number of pairs of tenant and model.
        """

        def matches(name: Name) -> bool:
            return tenant in (None, name[0]) and model in (None, name[1])

        if key is None:
            return sum(lru.forget(matches) for lru in self._groups.values())
        return sum(_forget_one(lru, key, matches) for lru in self._groups.values())

    def configure(self, bounds: Mapping[str, int]) -> None:
        for gone in self._groups.keys() - bounds.keys():
            self._given_up.append(self._groups.pop(gone))
            self._given_up[-1].bound = 0
        for group, bound in bounds.items():
            lru = self._groups.setdefault(group, Lru(bound))
            lru.bound = bound

    def tick(self) -> None:
        """Drops some expired answers and some above the bounds."""
        now = self._wall()
        for lru in (*self._groups.values(), *self._given_up):
            lru.sweep(now)
        self._given_up = [lru for lru in self._given_up if not lru.is_empty]

    def stats(self) -> dict[str, int]:
        """Returns the number of live answers, and the bytes of all."""
        bytes_taken = sum(lru.taken for lru in (*self._groups.values(), *self._given_up))
        return {"entries": sum(lru.entries for lru in self._groups.values()), "bytes": bytes_taken}


def _forget_one(lru: Lru, key: bytes, matches: Callable[[Name], bool]) -> int:
    name = lru.name_of(key)
    return int(name is not None and matches(name) and lru.drop(key))


_FINGERPRINT = 32
_ID = 32
"""The length of a record's id; the bytes behind it name the tenant, which the answer names as well."""
_ABANDONED_S = 86_400.0
"""Seconds after the end of its lease in which a holder may still complete its record."""
_LOOKED_AT = 256
"""Claims that one tick examines, at most."""


class RunningRecord:
    """The claim of the caller that runs the request: its fence, the request's fingerprint, and the end of its lease."""

    __slots__ = ("fence", "fingerprint", "until")

    def __init__(self, fence: int, fingerprint: bytes, until: float) -> None:
        self.fence = fence
        self.fingerprint = fingerprint
        self.until = until


class MemoryRecords:
    """Implements `gateway.drivers.store.Records`.

    Invariants: a record has one holder at a time; fences only grow, over all records; a completed record never changes; a
    running one is never dropped; completed ones are evicted in the order of completion, those of a tenant with more than its
    share first.
    """

    __slots__ = ("_done", "_early", "_fence", "_running", "_wall")

    def __init__(self, bound: int, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._running: OrderedDict[bytes, RunningRecord] = OrderedDict()
        self._done = Lru(bound, self._lost, TENANTS_SHARE)
        self._fence = 0
        self._early = EarlyEvictions(bound)

    def claim(self, record: bytes, fingerprint: bytes, lease_s: float) -> Claim:
        now = self._wall()
        lease = self._running.get(record)
        if lease is not None and lease.until > now:
            if lease.fingerprint != fingerprint:
                return Claim("mismatch")
            return Claim("running", lease_left_s=lease.until - now)
        if (blob := self._done.get(record[:_ID], now, is_use=False)) is not None:
            if blob[:_FINGERPRINT] != fingerprint:
                return Claim("mismatch")
            return Claim("done", kept=unpack(blob[_FINGERPRINT:]))
        self._fence += 1
        self._running[record] = RunningRecord(self._fence, fingerprint, now + lease_s)
        return Claim("claimed", fence=self._fence)

    def renew(self, record: bytes, fence: int, lease_s: float) -> bool:
        if (lease := self._held(record, fence)) is None:
            return False
        lease.until = self._wall() + lease_s
        return True

    def complete(self, record: bytes, fence: int, kept: Kept) -> bool:
        """Keeps the answer; returns False as `renew` does, or when there is no room for it, which frees the record."""
        if (lease := self._held(record, fence)) is None:
            return False
        del self._running[record]
        is_kept = self._done.put(record[:_ID], lease.fingerprint + pack(kept), kept.fresh_until, (kept.tenant, ""))
        if not is_kept:
            self._lost(kept.fresh_until)
        return is_kept

    def release(self, record: bytes, fence: int) -> None:
        if self._held(record, fence) is not None:
            del self._running[record]

    def configure(self, bound: int) -> None:
        """Bounds the answers to so many bytes; a new bound that is too low is logged again."""
        self._done.bound = self._early.bound = bound

    def tick(self) -> None:
        """Drops some expired answers and leases, and some answers above the bound."""
        now = self._wall()
        self._done.sweep(now)
        for record in [*islice(self._running, _LOOKED_AT)]:
            if self._running[record].until + _ABANDONED_S < now:
                del self._running[record]
            else:
                self._running.move_to_end(record)

    def stats(self) -> dict[str, int]:
        """Returns the number of records, running and completed, the bytes of the completed ones, and the early evictions."""
        return {
            "entries": len(self._running) + self._done.entries,
            "bytes": self._done.taken,
            "early": self._early.count,
        }

    def _held(self, record: bytes, fence: int) -> RunningRecord | None:
        lease = self._running.get(record)
        return lease if lease is not None and lease.fence == fence else None

    def _lost(self, fresh_until: float) -> None:
        if fresh_until >= self._wall():
            self._early.note()


# --- the default store, in this process's memory: it answers at once, and ends with the process ---


class MemoryStore:
    """Implements `Store`; `wall` returns seconds since the epoch.

    Each of its parts has a bound of its own.
    """

    __slots__ = ("_answers", "_records", "answers", "is_local", "records")

    def __init__(self, bounds: StoreBounds, wall: Callable[[], float]) -> None:
        self._records = MemoryRecords(bounds.records, wall)
        self._answers = MemoryAnswers(wall)
        self._answers.configure(bounds.answers)
        self.records: Records = self._records
        self.answers: Answers = self._answers
        self.is_local = True

    def configure(self, bounds: StoreBounds) -> None:
        """Sets new bounds; entries above a lowered bound are evicted step by step, with every `tick` and every new entry."""
        self._answers.configure(bounds.answers)
        self._records.configure(bounds.records)

    def tick(self) -> None:
        """Is called about once a second: drops some expired entries, in bounded time."""
        self._answers.tick()
        self._records.tick()

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns, for each part, its entries and the bytes of memory that they take."""
        return {
            "answers": self._answers.stats(),
            "records": self._records.stats(),
            "vectors": {"entries": 0, "bytes": 0},
        }

    async def aclose(self) -> None:
        """Does nothing: the store ends with the process."""
