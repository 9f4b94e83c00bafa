"""The calls that are being answered, so that an SDK's own retry of one is known for what it is.

    enter -> (the twin, if it repeats one) -> follow -> the twin's answer, or none: then it is a call like any other -> leave

An SDK whose patience or connection has ended sends its request again, and counts (`x-stainless-retry-count`). Where its
leaving was not seen, behind a proxy for instance, the first one is still at work: asking the provider twice would be paid
twice. Equal requests that nobody calls retries stay apart, and so do those of different callers. It must not know how calls
are served. Invariants: each call is followed by one other at most (the retry of a retry follows that one); whoever follows
is woken exactly once. A call is looked for among those whose bodies are as long, more or less: to hash every body would cost
a microsecond for each KiB.
"""

from __future__ import annotations

import asyncio

from gateway.call import Call, Reply
from gateway.clock import Clock
from gateway.errors import DeadlineExceeded, GatewayError
from gateway.exchange import RawHeaders
from gateway.flow.reuse.shared_answer import Flight
from gateway.flow.settle import CLIENT_GONE

BUCKETS_BY_LENGTH = 256
"""Calls are kept in so many lots, by the length of their bodies."""

Ended = Reply | Flight | GatewayError | None
"""What came of a call: a whole answer, one that is being relayed, an error; None: nothing that another could be given."""


class Running:
    """The calls whose answer has not begun. One per process."""

    __slots__ = ("_clock", "_ends", "_lots")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lots: list[dict[int, Call]] = [{} for _ in range(BUCKETS_BY_LENGTH)]  # by identity, the oldest first
        self._ends: dict[int, asyncio.Future[Ended]] = {}  # of those that are followed; these are in no lot

    def enter(self, call: Call) -> Call | None:
        """Note the call; returns the one that it repeats, if that is running and nobody follows it."""
        lot = self._lots[len(call.body) % BUCKETS_BY_LENGTH]
        twin = next((one for one in lot.values() if _repeats(call, one)), None) if call.sdk_retry else None
        lot[id(call)] = call
        return twin

    def leave(self, call: Call, ended: Ended) -> None:
        """It has ended, or its answer has begun; whoever follows it is told."""
        self._lots[len(call.body) % BUCKETS_BY_LENGTH].pop(id(call), None)
        if self._ends:
            end = self._ends.pop(id(call), None)
            if end is not None and not end.done():
                end.set_result(ended)

    def is_followed(self, call: Call) -> bool:
        """Whether another waits for its answer."""
        return bool(self._ends) and id(call) in self._ends

    async def follow(self, call: Call, twin: Call) -> Reply | Flight | None:
        """The answer of the call that this one repeats, to be joined where it is relayed; None: it has to be served itself.

        Raises the twin's GatewayError, or DeadlineExceeded when the call's own time is up. A call that is served itself after
        all is as old as what it repeats: age tells who goes first among calls that come back.
        """
        call.twin_seq = twin.seq
        call.parsed = None  # its memory is not needed as long as it waits
        ended = await self._end_of(twin, call)
        if isinstance(ended, GatewayError):
            try:
                raise ended.with_traceback(None)
            finally:
                del ended  # it would lead back to itself by this frame
        return ended

    async def _end_of(self, twin: Call, call: Call) -> Ended:
        end: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._ends[id(twin)] = end
        lot = self._lots[len(twin.body) % BUCKETS_BY_LENGTH]
        del lot[id(twin)]
        since = self._clock.monotonic()
        timer = self._clock.call_at(call.deadline, lambda: _time_is_up(end)) if call.deadline_is_callers else None
        twin.followers += 1
        try:
            return await end
        finally:
            twin.followers -= 1
            call.queue_s += self._clock.monotonic() - since
            if timer is not None:
                timer.cancel()
            if self._ends.pop(id(twin), None) is not None:  # it goes on, and may be followed again
                lot[id(twin)] = twin
                if twin.left and not twin.followers and twin.server is not None:  # nobody waits for it any more
                    twin.server.cancel(CLIENT_GONE)


def _repeats(call: Call, earlier: Call) -> bool:
    """Whether the call is the earlier one, sent again by the same caller."""
    return (
        len(call.body) == len(earlier.body)
        and call.key.name == earlier.key.name
        and call.sdk_retry > earlier.sdk_retry
        and call.tenant == earlier.tenant
        and call.credential == earlier.credential
        and call.method == earlier.method
        and call.path == earlier.path
        and call.query == earlier.query
        and call.body == earlier.body
        and _telling(call.headers) == _telling(earlier.headers)
    )


def _telling(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Those that are part of the question; the others tell of the SDK, and count its retries."""
    return [header for header in headers if not header[0].startswith(b"x-stainless-")]


def _time_is_up(end: asyncio.Future[Ended]) -> None:
    if not end.done():
        end.set_result(DeadlineExceeded("The deadline passed before the call that this one repeats was answered."))
