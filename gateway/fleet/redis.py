"""What replicas share over Redis: the counting of limits, the news between them, and the register of names; in this order.

Limits are counted in `lua/lease.lua`. News goes over one channel, which also keeps lasting news for replicas that subscribe
later; a message has the times of its sending and its end, by the server's clock, then its sender, kind, subject and
details. It must not know what listeners do with the news. Invariants of limits and news: no method raises, and no replica's
clock is trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from math import inf
from struct import Struct, error
from typing import Any, cast

from gateway.core.ports import Later, PeerMessage
from gateway.drivers.redis.link import Link, StoreRefused, load_script
from gateway.drivers.redis.lru import WallTime
from gateway.fleet.lease import LeaseAsk, LeaseReply

# --- limits, counted in Redis ---


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
    """Implements `gateway.fleet.leases.Leases`; `now` replaces the server's clock in tests.

    It runs one script per limit and request, in one round trip for all requests of a moment. `lua/lease.lua` does the
    counting; this calls it and registers this replica along the way. Invariants: no method raises, or takes longer than one
    operation of the link; amounts cross the wire as doubles, bit for bit, because running counts must never drift.
    """

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
            answer.add_done_callback(partial(waiting.on_reply, place))
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
        if server_time := answer.result():
            if len(self._ahead_s) >= KNOWN_LIMITS:
                self._ahead_s.clear()
            self._ahead_s[name] = clock_of(server_time) - self._loop.time()
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

    __slots__ = ("_missing", "_replies", "replies")

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.replies: asyncio.Future[Sequence[LeaseReply | None]] = loop.create_future()
        self._replies: list[LeaseReply | None] = [None] * count
        self._missing = count
        if not count:
            self.replies.set_result(())

    def on_reply(self, place: int, answer: asyncio.Future[bytes]) -> None:
        self._missing -= 1
        if not answer.cancelled() and answer.exception() is None and (result := answer.result()):
            self._replies[place] = read_reply(result)
        if not self._missing and not self.replies.done():
            self.replies.set_result(self._replies)


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


def read_reply(reply: bytes) -> LeaseReply:
    granted, level, wanting, retry_s, window, ends_in_s, most, _ = _REPLY.unpack(reply)
    return LeaseReply(granted, level, int(wanting), retry_s, int(window), ends_in_s, most)


def clock_of(reply: bytes) -> float:
    clock: float = _REPLY.unpack(reply)[-1]
    return clock


def _over(left: asyncio.Future[None], answer: asyncio.Future[object]) -> None:
    if not answer.cancelled():
        answer.exception()
    if not left.done():
        left.set_result(None)


log = logging.getLogger("gateway.store")

MOST_KEPT = 4096
"""News that the store keeps, at most; those that end first are dropped first."""
MOST_DELAYED = 1024
"""News that wait for the store to come back, at most."""
MOST_HELD_BACK = 10_000
"""Messages that are held back, at most, while the kept news are read."""
OVER_S = 60.0
"""Seconds for which the news that something is over are kept."""
AGAIN_S = 0.2
"""Seconds until a failed operation is tried again while the store is up."""

_LENGTHS = Struct(">BBH")
About = tuple[str, str]
Listener = Callable[[PeerMessage], None]
MEMORY_S = 30.0
"""Seconds for which a reported server time counts, at least; twice as long at most."""


class ServerTime:
    """The server's clock in seconds, estimated from the local monotonic clock and the times that messages report.

    A reported time is older than its arrival, so of several reports the one that puts the server's clock farthest ahead has
    travelled the shortest time. Invariant: the estimate is never ahead of the server's clock, as long as that runs steadily;
    old reports are dropped, because the two clocks may drift apart.
    """

    __slots__ = ("_ahead_s", "_before_s", "_monotonic", "_turned_at")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.forget()

    def forget(self) -> None:
        """Drops all reports, because the server may be another one now."""
        self._ahead_s = self._before_s = -inf  # of the present span of time, and of the one before
        self._turned_at = self._monotonic()

    def observe(self, server_s: float) -> None:
        """Notes a time that the server reported."""
        here_s = self._monotonic()
        if here_s - self._turned_at >= MEMORY_S:
            is_recent = here_s - self._turned_at < 2 * MEMORY_S
            self._before_s = self._ahead_s if is_recent else -inf
            self._ahead_s, self._turned_at = -inf, here_s
        self._ahead_s = max(self._ahead_s, server_s - here_s)

    def now(self) -> float:
        """Returns the estimated server time; call it only after a report."""
        return max(self._ahead_s, self._before_s) + self._monotonic()


class RedisNews:
    """Implements `gateway.core.ports.PeerBus` for one event loop; `monotonic` is any clock that counts seconds.

    Invariants: no method raises or waits; after each subscription the kept news are delivered first, in the order of their
    sending; lasting news that could not be sent are sent as soon as the store is back.
    """

    def __init__(self, link: Link, replica_id: bytes, monotonic: Callable[[], float] | None = None) -> None:
        self._link = link
        self._id = replica_id
        self._loop = asyncio.get_running_loop()
        self._monotonic = monotonic or self._loop.time
        self._time = ServerTime(self._monotonic)
        self._channel = link.key("news", "channel")
        kept = link.key("news", "kept")
        self._keys = kept, kept + b":ends"
        self._tell_script, self._stored_script = load_script("news_tell"), load_script("news_kept")
        self._take, self._give = load_script("news_slot"), load_script("news_give")
        self._listeners: list[Listener] = []
        self._delayed: dict[About, tuple[float, PeerMessage]] = {}
        self._telling: dict[About, PeerMessage] = {}  # of what lasts, the last that is on its way
        self._held_back: list[bytes] | None = None  # a list while what is kept is read
        self._has_to_read = False
        self._is_closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._subscription: asyncio.Task[None] | None = None
        link.on_change(self._on_change)

    def start(self) -> None:
        """Subscribes, until `aclose`."""
        self._subscription = self._loop.create_task(self._link.subscribe(self._channel, self._on_message, self._joined))

    async def aclose(self) -> None:
        """Ends the subscription."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
        if self._subscription is not None:
            self._subscription.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._subscription

    # Sending.

    def listen(self, listener: Listener) -> None:
        """Has `listener` called in the loop's thread with the news of other replicas, and first with those that still last."""
        is_first = not self._listeners
        self._listeners.append(listener)
        if not is_first and self._subscription is not None:
            self._joined()

    def tell(self, item: PeerMessage, *, lasts: bool = False) -> None:
        """Sends news to all other replicas; `lasts`: also to replicas that subscribe within its `left_s`.

        Of lasting news of the same kind and name the latest end wins; news with `left_s` 0 end them.
        """
        if lasts:
            self._delayed.pop(item[:2], None)
        if self._link.is_up:
            self._send(item, lasts)
        elif lasts:
            self._delay(item)

    def _send(self, item: PeerMessage, lasts: bool) -> None:
        about = item[:2]
        if lasts:
            self._telling[about] = item
        field = blake2b(b"%d:" % len(item.kind) + f"{item.kind}{item.name}".encode(), digest_size=16).digest()
        message = _write(self._id, item)
        args = "", repr(item.left_s), int(lasts), field, message, self._channel, MOST_KEPT, OVER_S
        since = self._monotonic()
        self._link.run(self._tell_script, self._keys, args).add_done_callback(partial(self._sent, item, lasts, since))

    def _sent(self, item: PeerMessage, lasts: bool, since: float, answer: asyncio.Future[bytes]) -> None:
        reply = _reply_of(answer)
        if reply is not None:
            self._time.observe(float(reply))
        if not lasts or self._telling.get(item[:2]) is not item:
            return
        del self._telling[item[:2]]
        if reply is None:  # it may or may not have been sent: sending it twice does no harm
            left_s = item.left_s - (self._monotonic() - since)
            if not item.left_s or left_s > 0:
                self._delay(item._replace(left_s=max(0.0, left_s)))

    def _delay(self, item: PeerMessage) -> None:
        """Keeps the news until the store is back."""
        if len(self._delayed) >= MOST_DELAYED:
            del self._delayed[next(iter(self._delayed))]
        self._delayed[item[:2]] = self._monotonic() + (item.left_s or OVER_S), item
        self._retry_soon()

    def _send_delayed(self) -> None:
        now, delayed, self._delayed = self._monotonic(), self._delayed, {}
        for ends_at, item in delayed.values():
            if ends_at > now:
                self._send(item._replace(left_s=ends_at - now) if item.left_s else item, lasts=True)

    # Receiving.

    def _joined(self) -> None:
        """Reads the kept news after a subscription, because messages may have been missed."""
        self._time.forget()
        self._has_to_read = True
        self._read_stored()

    def _read_stored(self) -> None:
        if self._held_back is None:  # otherwise it follows the read under way
            self._has_to_read, self._held_back = False, []
            self._link.run(self._stored_script, self._keys, ("",)).add_done_callback(self._read)

    def _read(self, answer: asyncio.Future[list[bytes]]) -> None:
        reply, held_back, self._held_back = _reply_of(answer), self._held_back or [], None
        if reply is None:
            self._has_to_read = True
            self._retry_soon()
        else:
            self._time.observe(float(reply[0]))
        for message in (*sorted((reply or ())[1:], key=_sent_at), *held_back):
            self._deliver(message)
        if reply is not None and self._has_to_read:
            self._read_stored()

    def _on_message(self, message: bytes) -> None:
        sent_at, _, _ = message.partition(b" ")
        with contextlib.suppress(ValueError):
            self._time.observe(float(sent_at))
        if self._held_back is None:
            self._deliver(message)
        elif len(self._held_back) < MOST_HELD_BACK:
            self._held_back.append(message)

    def _deliver(self, message: bytes) -> None:
        item = self._read_message(message)
        for listener in self._listeners if item is not None else ():
            try:
                listener(cast("PeerMessage", item))
            except Exception:  # a listener's defect must not end the subscription
                log.exception("news of %r could not be taken", item and item.kind)

    def _read_message(self, message: bytes) -> PeerMessage | None:
        """Returns the news of a message; None for this replica's own, for news that are over, and for unreadable ones."""
        try:
            sent_at, ends_at, body = message.split(b" ", 2)
            published_s = float(ends_at) - float(sent_at)
            sender, item = _parse(body)
        except (ValueError, error):
            return None
        if sender == self._id or not 0.0 <= published_s < inf:
            return None
        left_s = min(published_s, float(ends_at) - self._time.now())
        if published_s > 0 and left_s <= 0:
            return None
        return item._replace(left_s=max(0.0, left_s))

    # Slots.

    def take_slot(self, name: str, for_s: float) -> Later[bool]:
        """Takes the slot for `for_s` seconds, or extends it; returns False while another replica has it.

        Returns True where the store does not answer: then each replica acts for itself.
        """
        if not self._link.is_up:
            return True
        reply: asyncio.Future[bool] = self._loop.create_future()
        args = self._id, max(1, round(for_s * 1000))
        taking = self._link.run(self._take, (self._link.key("slot", name),), args)
        taking.add_done_callback(partial(_pass_on, reply))
        return reply

    def give_slot(self, name: str) -> None:
        """Frees the slot if this replica has it; if that fails, it ends by itself."""
        if self._link.is_up:
            self._link.run(self._give, (self._link.key("slot", name),), (self._id,)).add_done_callback(_reply_of)

    # Retries.

    def _on_change(self, is_up: bool) -> None:
        if is_up:
            self._resume()

    def _retry_soon(self) -> None:
        if self._retry is None and not self._is_closed:
            self._retry = self._loop.call_later(AGAIN_S, self._resume)

    def _resume(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._link.is_up and not self._is_closed:  # a change of health calls this again
            self._send_delayed()
            if self._has_to_read:
                self._read_stored()


def _sent_at(message: bytes) -> float:
    """Returns the time of a message's sending, to sort by; unreadable messages come first."""
    try:
        return float(message.partition(b" ")[0])
    except ValueError:
        return -inf


def _reply_of(answer: asyncio.Future[Any]) -> Any:
    return None if answer.cancelled() or answer.exception() is not None else answer.result()


def _pass_on(reply: asyncio.Future[bool], answer: asyncio.Future[int]) -> None:
    result = _reply_of(answer)
    if not reply.done():
        reply.set_result(result is None or result == 1)


def _write(sender: bytes, item: PeerMessage) -> bytes:
    kind, name = item.kind.encode(), item.name.encode()
    return _LENGTHS.pack(len(sender), len(kind), len(name)) + sender + kind + name + item.detail


def _parse(body: bytes) -> tuple[bytes, PeerMessage]:
    """Returns the sender and the news, without its time. Raises ValueError or struct.error."""
    (*lengths,) = _LENGTHS.unpack_from(body)
    parts, at = [], _LENGTHS.size
    for length in lengths:
        parts.append(body[at : at + length])
        at += length
    if at > len(body):
        raise ValueError("the message is cut off")
    sender, kind, name = parts
    return sender, PeerMessage(kind.decode(), name.decode(), 0.0, body[at:])


# --- the register of names whose entries are in slots of their own ---


REGISTER = load_script("register")

LEAST_S = 3600.0
"""The least number of seconds between two registrations of a name."""
MOST_NOTED = 10_000
"""Names whose registration this process remembers, at most."""
MOST_NAMES = 100_000
"""Registered names, at most; entries of further names are not kept until others expire."""
PAGE = 500
"""About the number of names that one operation reads, in well under a millisecond."""
FIRST = b"0"
"""The cursor at which a scan begins, and which ends it."""


class Registry:
    """One list of names in the store, by which all their entries can be found again.

    Invariants: a name is registered before an entry is kept under it, and for longer than the entry; the number of names is
    bounded, and no operation reads them all.
    """

    __slots__ = ("_cursor", "_has_warned", "_key", "_link", "_noted", "_now", "found")

    def __init__(self, link: Link, key: bytes, now: WallTime) -> None:
        self._link = link
        self._key = key
        self._now = now
        self._noted: dict[bytes, float] = {}
        self._cursor = FIRST
        self.found: list[bytes] = []
        """The names that the last `discover` has found."""
        self._has_warned = False

    async def note(self, name: bytes, left_s: float) -> None:
        """Registers a name whose entries live `left_s` seconds from now. Raises StoreGone; StoreRefused: too many names."""
        loop_s = asyncio.get_running_loop().time()
        if self._noted.get(name, 0.0) > loop_s + left_s:
            return
        for_s = 2 * max(left_s, 0.0) + LEAST_S
        if not await self._link.run(REGISTER, (self._key,), (self._now(), for_s, name, MOST_NAMES)):
            self._warn()
            raise StoreRefused("there are too many names")
        if len(self._noted) >= MOST_NOTED:
            self._noted.clear()
        self._noted[name] = loop_s + for_s

    async def discover(self) -> None:
        """Reads the next of the registered names, and after the last the first again. Raises StoreGone."""
        self._cursor, self.found = await self._page(self._cursor)

    async def _page(self, cursor: bytes) -> tuple[bytes, list[bytes]]:
        """Returns the next cursor and some names; the scan is complete when the cursor is `FIRST`. Raises StoreGone."""
        after, found = await self._link.command(b"ZSCAN", self._key, cursor, b"COUNT", PAGE)
        return after, found[::2]

    async def pages(self) -> AsyncIterator[list[bytes]]:
        """Yields all names, some more than once. Raises StoreGone."""
        cursor, names = await self._page(FIRST)
        yield names
        while cursor != FIRST:
            cursor, names = await self._page(cursor)
            yield names

    def lost(self) -> None:
        """Has all names registered anew, because the store may have lost them."""
        self._noted.clear()

    def _warn(self) -> None:
        """Logs once that entries are not kept."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "A shared cache has answers of %d tenants, models and parameters: those of others are not shared until some "
                "have run out.",
                MOST_NAMES,
            )
