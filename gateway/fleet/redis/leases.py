"""Limits that replicas share, counted in Redis: one script per limit and request, one round trip for all requests of a moment.

`lua/lease.lua` does the counting; this module calls it and registers this replica along the way. It must not know how a
replica uses its part of a limit. Invariants: no method raises, or takes longer than one operation of the link; amounts cross
the wire as doubles, bit for bit, because running counts must never drift.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from struct import Struct

from gateway.drivers.redis.link import Link, load_script
from gateway.fleet.lease.lease.lease import LeaseAsk, LeaseReply

SILENT_S = 5.0
"""Seconds of silence after which a replica is not counted; `lua/lease.lua` forgets it by then, too."""
RENEW_S = 1.0
"""Seconds between two registrations of this replica."""
LATE_S = 0.5
"""Seconds after which the server ignores a request: the replica lives on its own part by then."""
KNOWN_LIMITS = 4096
"""The number of limits whose keys are cached."""

_NUMBERS = Struct("<17d")
_REPLY = Struct("<8d")

Now = Callable[[], float]


class RedisLeases:
    """Implements `gateway.core.ports.Leases`; `now` replaces the server's clock in tests."""

    def __init__(self, link: Link, replica_id: bytes, at_least: int = 1, now: Now | None = None) -> None:
        self.replicas = max(1, at_least)
        self._link = link
        self._id = replica_id
        self._at_least = self.replicas
        self._now = now
        self._lease = load_script("lease")
        self._members = load_script("lease_members")
        self._members_key = link.key("replicas")
        self._key = lru_cache(KNOWN_LIMITS)(partial(link.key, "limit"))
        self._loop = asyncio.get_running_loop()
        self._renew_at = 0.0
        self._ahead_s: dict[str, float] = {}  # by limit: its server's clock, of the loop's
        self._has_left = False

    def ask(self, asks: Sequence[LeaseAsk]) -> asyncio.Future[Sequence[LeaseReply | None]]:
        """Sends all requests in one round trip; the reply to a request is None where the store gave none. Never raises.

        A grant whose reply was lost is repeated with the next reply.
        """
        now = "" if self._now is None else repr(self._now())
        self._renew(now)
        waiting = _Waiting(self._loop, len(asks))
        for place, ask in enumerate(asks):
            arguments = (now, self._name_of(ask), ask.kind, pack_ask(ask), self._too_late(ask.name))
            answer = self._link.run(self._lease, (self._key(ask.name),), arguments)
            answer.add_done_callback(partial(self._see_clock, ask.name))
            answer.add_done_callback(partial(waiting.hear, place))
        return waiting.replies

    def leave(self) -> asyncio.Future[None]:
        """Removes this replica from the count; it has to give its leases back before. Never raises."""
        self._has_left = True
        left: asyncio.Future[None] = self._loop.create_future()
        self._link.command(b"ZREM", self._members_key, self._id).add_done_callback(partial(_over, left))
        return left

    def _name_of(self, ask: LeaseAsk) -> bytes:
        return b"%b:%d" % (self._id, ask.incarnation) if ask.incarnation else self._id

    def _too_late(self, name: str) -> str:
        """Returns the time after which a request is ignored, by the clock of the limit's server; "0" while that is unknown."""
        ahead_s = self._ahead_s.get(name)
        return "0" if ahead_s is None else repr(self._loop.time() + ahead_s + LATE_S)

    def _see_clock(self, name: str, answer: asyncio.Future[bytes]) -> None:
        if self._now is not None or answer.cancelled() or answer.exception() is not None:
            return
        if told := answer.result():
            if len(self._ahead_s) >= KNOWN_LIMITS:
                self._ahead_s.clear()
            self._ahead_s[name] = clock_of(told) - self._loop.time()
        else:  # it was set, or another server has the limit by now
            self._ahead_s.pop(name, None)

    def _renew(self, now: str) -> None:
        if self._loop.time() < self._renew_at or self._has_left:
            return
        self._renew_at = self._loop.time() + RENEW_S
        self._link.run(self._members, (self._members_key,), (now, self._id, SILENT_S)).add_done_callback(self._count)

    def _count(self, answer: asyncio.Future[int]) -> None:
        if not answer.cancelled() and answer.exception() is None:
            self.replicas = max(self._at_least, answer.result())


class _Waiting:
    """Collects the replies of one moment, and resolves when the last has arrived."""

    __slots__ = ("_heard", "_missing", "replies")

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.replies: asyncio.Future[Sequence[LeaseReply | None]] = loop.create_future()
        self._heard: list[LeaseReply | None] = [None] * count
        self._missing = count
        if not count:
            self.replies.set_result(())

    def hear(self, place: int, answer: asyncio.Future[bytes]) -> None:
        self._missing -= 1
        if not answer.cancelled() and answer.exception() is None and (told := answer.result()):
            self._heard[place] = read_reply(told)
        if not self._missing and not self.replies.done():
            self.replies.set_result(self._heard)


def pack_ask(ask: LeaseAsk) -> bytes:
    """Returns the request's numbers in the order of `lua/lease.lua`."""
    return _NUMBERS.pack(
        ask.rate_per_s,
        ask.capacity,
        ask.window_s,
        ask.granted,
        ask.used,
        ask.given,
        ask.want,
        ask.first,
        ask.keep,
        ask.ceiling,
        ask.window,
        ask.known,
        ask.away_s,
        ask.away_rate_per_s,
        ask.lag_s,
        ask.charged,
        ask.charged_before,
    )


def read_reply(told: bytes) -> LeaseReply:
    granted, level, wanting, retry_s, window, ends_in_s, most, _ = _REPLY.unpack(told)
    return LeaseReply(granted, level, int(wanting), retry_s, int(window), ends_in_s, most)


def clock_of(told: bytes) -> float:
    """Returns the server's time from a reply."""
    clock: float = _REPLY.unpack(told)[-1]
    return clock


def _over(left: asyncio.Future[None], answer: asyncio.Future[object]) -> None:
    if not answer.cancelled():
        answer.exception()
    if not left.done():
        left.set_result(None)
