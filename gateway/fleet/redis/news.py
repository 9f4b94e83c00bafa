"""News between replicas over one channel of Redis, which also keeps lasting news for replicas that subscribe later.

A message has the times of its sending and its end, by the server's clock, then its sender, kind, subject and details. It must
not know what listeners do with the news. Invariants: no method raises or waits; no replica's clock is trusted; after each
subscription the kept news are delivered first, in the order of their sending; lasting news that could not be sent are sent
as soon as the store is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from math import inf
from struct import Struct, error
from typing import Any, cast

from gateway.core.ports import Later, NewsItem
from gateway.drivers.redis.link import Link, load_script

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
Heard = Callable[[NewsItem], None]
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

    def heard(self, server_s: float) -> None:
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
    """Implements `gateway.core.ports.News` for one event loop; `monotonic` is any clock that counts seconds."""

    def __init__(self, link: Link, replica_id: bytes, monotonic: Callable[[], float] | None = None) -> None:
        self._link = link
        self._id = replica_id
        self._loop = asyncio.get_running_loop()
        self._monotonic = monotonic or self._loop.time
        self._time = ServerTime(self._monotonic)
        self._channel = link.key("news", "channel")
        kept = link.key("news", "kept")
        self._keys = kept, kept + b":ends"
        self._tell, self._kept = load_script("news_tell"), load_script("news_kept")
        self._take, self._give = load_script("news_slot"), load_script("news_give")
        self._listeners: list[Heard] = []
        self._delayed: dict[About, tuple[float, NewsItem]] = {}
        self._telling: dict[About, NewsItem] = {}  # of what lasts, the last that is on its way
        self._held_back: list[bytes] | None = None  # a list while what is kept is read
        self._has_to_read = False
        self._is_closed = False
        self._retry: asyncio.TimerHandle | None = None
        self._subscription: asyncio.Task[None] | None = None
        link.on_change(self._on_change)

    def start(self) -> None:
        """Subscribes, until `aclose`."""
        self._subscription = self._loop.create_task(self._link.subscribe(self._channel, self._heard, self._joined))

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

    def listen(self, heard: Heard) -> None:
        """Has `heard` called in the loop's thread with the news of other replicas, and first with those that still last."""
        is_first = not self._listeners
        self._listeners.append(heard)
        if not is_first and self._subscription is not None:
            self._joined()

    def tell(self, item: NewsItem, *, lasts: bool = False) -> None:
        """Sends news to all other replicas; `lasts`: also to replicas that subscribe within its `left_s`.

        Of lasting news of the same kind and name the latest end wins; news with `left_s` 0 end them.
        """
        if lasts:
            self._delayed.pop(item[:2], None)
        if self._link.is_up:
            self._send(item, lasts)
        elif lasts:
            self._delay(item)

    def _send(self, item: NewsItem, lasts: bool) -> None:
        about = item[:2]
        if lasts:
            self._telling[about] = item
        field = blake2b(b"%d:" % len(item.kind) + f"{item.kind}{item.name}".encode(), digest_size=16).digest()
        message = _write(self._id, item)
        args = "", repr(item.left_s), int(lasts), field, message, self._channel, MOST_KEPT, OVER_S
        since = self._monotonic()
        self._link.run(self._tell, self._keys, args).add_done_callback(partial(self._sent, item, lasts, since))

    def _sent(self, item: NewsItem, lasts: bool, since: float, answer: asyncio.Future[bytes]) -> None:
        reply = _reply_of(answer)
        if reply is not None:
            self._time.heard(float(reply))
        if not lasts or self._telling.get(item[:2]) is not item:
            return
        del self._telling[item[:2]]
        if reply is None:  # it may or may not have been sent: sending it twice does no harm
            left_s = item.left_s - (self._monotonic() - since)
            if not item.left_s or left_s > 0:
                self._delay(item._replace(left_s=max(0.0, left_s)))

    def _delay(self, item: NewsItem) -> None:
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
        self._read_kept()

    def _read_kept(self) -> None:
        if self._held_back is None:  # otherwise it follows the read under way
            self._has_to_read, self._held_back = False, []
            self._link.run(self._kept, self._keys, ("",)).add_done_callback(self._read)

    def _read(self, answer: asyncio.Future[list[bytes]]) -> None:
        reply, held_back, self._held_back = _reply_of(answer), self._held_back or [], None
        if reply is None:
            self._has_to_read = True
            self._retry_soon()
        else:
            self._time.heard(float(reply[0]))
        for message in (*sorted((reply or ())[1:], key=_sent_at), *held_back):
            self._deliver(message)
        if reply is not None and self._has_to_read:
            self._read_kept()

    def _heard(self, message: bytes) -> None:
        sent_at, _, _ = message.partition(b" ")
        with contextlib.suppress(ValueError):
            self._time.heard(float(sent_at))
        if self._held_back is None:
            self._deliver(message)
        elif len(self._held_back) < MOST_HELD_BACK:
            self._held_back.append(message)

    def _deliver(self, message: bytes) -> None:
        item = self._read_message(message)
        for heard in self._listeners if item is not None else ():
            try:
                heard(cast("NewsItem", item))
            except Exception:  # a listener's defect must not end the subscription
                log.exception("news of %r could not be taken", item and item.kind)

    def _read_message(self, message: bytes) -> NewsItem | None:
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
        asked = self._link.run(self._take, (self._link.key("slot", name),), args)
        asked.add_done_callback(partial(_pass_on, reply))
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
                self._read_kept()


def _sent_at(message: bytes) -> float:
    """Returns the time of a message's sending, to sort by; unreadable messages come first."""
    try:
        return float(message.partition(b" ")[0])
    except ValueError:
        return -inf


def _reply_of(answer: asyncio.Future[Any]) -> Any:
    """Returns the reply of the store, None for none."""
    return None if answer.cancelled() or answer.exception() is not None else answer.result()


def _pass_on(reply: asyncio.Future[bool], answer: asyncio.Future[int]) -> None:
    result = _reply_of(answer)
    if not reply.done():
        reply.set_result(result is None or result == 1)


def _write(sender: bytes, item: NewsItem) -> bytes:
    kind, name = item.kind.encode(), item.name.encode()
    return _LENGTHS.pack(len(sender), len(kind), len(name)) + sender + kind + name + item.detail


def _parse(body: bytes) -> tuple[bytes, NewsItem]:
    """Returns the sender and the news, without its time. Raises ValueError or struct.error."""
    (*lengths,) = _LENGTHS.unpack_from(body)
    parts, at = [], _LENGTHS.size
    for length in lengths:
        parts.append(body[at : at + length])
        at += length
    if at > len(body):
        raise ValueError("the message is cut off")
    sender, kind, name = parts
    return sender, NewsItem(cast("Any", kind.decode()), name.decode(), 0.0, body[at:])
