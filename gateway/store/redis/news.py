"""What replicas tell each other, over one channel of Redis; what lasts is kept there for those who come, or come back, later.

A message says when it was told and when it is over, in the server's time, then who tells, of what kind, about whom, and the
details. It must not know what is done about the news. Invariants: nothing raises or waits; no replica's clock is believed;
after each (re)subscription what is kept is delivered before anything else, in the order in which it was told; what could not
be told and still lasts is told as soon as the store is back.
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

from gateway.ports import Later, NewsItem
from gateway.store.redis_link.link import Link, load_script

log = logging.getLogger("gateway.store")

MOST_KEPT = 4096
"""In the store; what ends first goes first."""
MOST_PUT_OFF = 1024
"""Told when the store is back."""
MOST_HELD_BACK = 10_000
"""While what is kept is read."""
OVER_S = 60.0
"""For so long it is worth telling that something is over."""
AGAIN_S = 0.2
"""After which what failed is tried again, although the store is there."""

_LENGTHS = Struct(">BBH")
About = tuple[str, str]
Heard = Callable[[NewsItem], None]
MEMORY_S = 30.0
"""A saying counts for so long, or twice as long."""


class ServerTime:
    """In seconds. `monotonic` is the local clock; what it shows means nothing, and it never goes back."""

    __slots__ = ("_ahead_s", "_before_s", "_monotonic", "_turned_at")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.forget()

    def forget(self) -> None:
        """It may be another server now."""
        self._ahead_s = self._before_s = -inf  # of the present span of time, and of the one before
        self._turned_at = self._monotonic()

    def heard(self, server_s: float) -> None:
        """The server has said what time it is."""
        here_s = self._monotonic()
        if here_s - self._turned_at >= MEMORY_S:
            is_recent = here_s - self._turned_at < 2 * MEMORY_S
            self._before_s = self._ahead_s if is_recent else -inf
            self._ahead_s, self._turned_at = -inf, here_s
        self._ahead_s = max(self._ahead_s, server_s - here_s)

    def now(self) -> float:
        """To be asked once something was heard."""
        return max(self._ahead_s, self._before_s) + self._monotonic()


class RedisNews:
    """Implements `News`; of one event loop. `monotonic` is any clock that counts seconds."""

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
        self._put_off: dict[About, tuple[float, NewsItem]] = {}
        self._telling: dict[About, NewsItem] = {}  # of what lasts, the last that is on its way
        self._held_back: list[bytes] | None = None  # a list while what is kept is read
        self._has_to_read = False
        self._is_closed = False
        self._again: asyncio.TimerHandle | None = None
        self._hearing: asyncio.Task[None] | None = None
        link.on_change(self._on_change)

    def start(self) -> None:
        """Hear what others tell, from now until `aclose`."""
        self._hearing = self._loop.create_task(self._link.subscribe(self._channel, self._heard, self._joined))

    async def aclose(self) -> None:
        """Nothing is heard any more."""
        self._is_closed = True
        if self._again is not None:
            self._again.cancel()
        if self._hearing is not None:
            self._hearing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._hearing

    # Telling.

    def listen(self, heard: Heard) -> None:
        """From now on `heard` is called in the loop's thread with what others tell, and first with what still holds."""
        is_first = not self._listeners
        self._listeners.append(heard)
        if not is_first and self._hearing is not None:
            self._joined()

    def tell(self, item: NewsItem, *, lasts: bool = False) -> None:
        """Tell all others. `lasts`: also those who come within its `left_s`; of the same kind and name the latest end wins.

        With nothing left, what lasted of this kind and name is over.
        """
        if lasts:
            self._put_off.pop(item[:2], None)
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
        said = _said(answer)
        if said is not None:
            self._time.heard(float(said))
        if not lasts or self._telling.get(item[:2]) is not item:
            return
        del self._telling[item[:2]]
        if said is None:  # told or not, nobody knows: telling it twice does no harm
            left_s = item.left_s - (self._monotonic() - since)
            if not item.left_s or left_s > 0:
                self._delay(item._replace(left_s=max(0.0, left_s)))

    def _delay(self, item: NewsItem) -> None:
        """Until the store is back."""
        if len(self._put_off) >= MOST_PUT_OFF:
            del self._put_off[next(iter(self._put_off))]
        self._put_off[item[:2]] = self._monotonic() + (item.left_s or OVER_S), item
        self._try_again_soon()

    def _tell_put_off(self) -> None:
        now, put_off, self._put_off = self._monotonic(), self._put_off, {}
        for ends_at, item in put_off.values():
            if ends_at > now:
                self._send(item._replace(left_s=ends_at - now) if item.left_s else item, lasts=True)

    # Hearing.

    def _joined(self) -> None:
        """Subscribed, perhaps once more: something may have been missed."""
        self._time.forget()
        self._has_to_read = True
        self._read_kept()

    def _read_kept(self) -> None:
        if self._held_back is None:  # else it is done once more behind what is being read
            self._has_to_read, self._held_back = False, []
            self._link.run(self._kept, self._keys, ("",)).add_done_callback(self._read)

    def _read(self, answer: asyncio.Future[list[bytes]]) -> None:
        said, held_back, self._held_back = _said(answer), self._held_back or [], None
        if said is None:
            self._has_to_read = True
            self._try_again_soon()
        else:
            self._time.heard(float(said[0]))
        for message in (*sorted((said or ())[1:], key=_told_at), *held_back):
            self._deliver(message)
        if said is not None and self._has_to_read:
            self._read_kept()

    def _heard(self, message: bytes) -> None:
        told_at, _, _ = message.partition(b" ")
        with contextlib.suppress(ValueError):
            self._time.heard(float(told_at))
        if self._held_back is None:
            self._deliver(message)
        elif len(self._held_back) < MOST_HELD_BACK:
            self._held_back.append(message)

    def _deliver(self, message: bytes) -> None:
        item = self._read_message(message)
        for heard in self._listeners if item is not None else ():
            try:
                heard(cast("NewsItem", item))
            except Exception:  # a defect there, and no reason to hear nothing more
                log.exception("news of %r could not be taken", item and item.kind)

    def _read_message(self, message: bytes) -> NewsItem | None:
        """None: one's own, over by now, or not to be read."""
        try:
            told_at, ends_at, body = message.split(b" ", 2)
            published_s = float(ends_at) - float(told_at)
            who, item = _parse(body)
        except (ValueError, error):
            return None
        if who == self._id or not 0.0 <= published_s < inf:
            return None
        left_s = min(published_s, float(ends_at) - self._time.now())
        if published_s > 0 and left_s <= 0:
            return None
        return item._replace(left_s=max(0.0, left_s))

    # Slots.

    def take_slot(self, name: str, for_s: float) -> Later[bool]:
        """Whether this replica is now the one of all that has the slot; who has it already keeps it for longer.

        True where the store cannot say: every replica for itself, then.
        """
        if not self._link.is_up:
            return True
        said: asyncio.Future[bool] = self._loop.create_future()
        args = self._id, max(1, round(for_s * 1000))
        asked = self._link.run(self._take, (self._link.key("slot", name),), args)
        asked.add_done_callback(partial(_pass_on, said))
        return said

    def give_slot(self, name: str) -> None:
        """It is free for others, if it was this replica's; in vain, it is free after its time."""
        if self._link.is_up:
            self._link.run(self._give, (self._link.key("slot", name),), (self._id,)).add_done_callback(_said)

    # Trouble.

    def _on_change(self, is_up: bool) -> None:
        if is_up:
            self._resume()

    def _try_again_soon(self) -> None:
        if self._again is None and not self._is_closed:
            self._again = self._loop.call_later(AGAIN_S, self._resume)

    def _resume(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._link.is_up and not self._is_closed:  # else this is called again when it is
            self._tell_put_off()
            if self._has_to_read:
                self._read_kept()


def _told_at(message: bytes) -> float:
    """For an order in which the last word is the last; what cannot be read comes first."""
    try:
        return float(message.partition(b" ")[0])
    except ValueError:
        return -inf


def _said(answer: asyncio.Future[Any]) -> Any:
    """None: nothing."""
    return None if answer.cancelled() or answer.exception() is not None else answer.result()


def _pass_on(said: asyncio.Future[bool], answer: asyncio.Future[int]) -> None:
    result = _said(answer)
    if not said.done():
        said.set_result(result is None or result == 1)


def _write(who: bytes, item: NewsItem) -> bytes:
    kind, name = item.kind.encode(), item.name.encode()
    return _LENGTHS.pack(len(who), len(kind), len(name)) + who + kind + name + item.detail


def _parse(body: bytes) -> tuple[bytes, NewsItem]:
    """Who tells, and what, but for the time. Raises ValueError or struct.error."""
    (*lengths,) = _LENGTHS.unpack_from(body)
    parts, at = [], _LENGTHS.size
    for length in lengths:
        parts.append(body[at : at + length])
        at += length
    if at > len(body):
        raise ValueError("the message is cut off")
    who, kind, name = parts
    return who, NewsItem(cast("Any", kind.decode()), name.decode(), 0.0, body[at:])
