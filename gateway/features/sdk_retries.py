"""Recognises an SDK's own retry of a call that is still being answered, so that it shares the original's answer.

    enter -> (the original, if the call repeats one) -> follow -> the original's answer, or none: then it is served itself
          -> leave

An SDK whose patience or connection has ended sends its request again, and counts (`x-stainless-retry-count`). If the gateway
has not seen it leave, for instance behind a proxy, the original is still at work: a second request to the provider would be
paid twice. Equal requests without that count stay apart, and so do those of different callers. This must not know how calls
are served. Invariants: each call is followed by at most one other (the retry of a retry follows that one); a follower is woken
exactly once. A call is looked for only among those with a similar body length, because to hash every body would cost a
microsecond for each KiB.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeAlias

from gateway.core.admission.admission import take_age
from gateway.core.call import AWAITED, EARLIER_TRIES, LED, Call, CallFeature, CallRoute, Reply, Serve, earlier_tries_of
from gateway.core.clock import Clock
from gateway.core.errors import DeadlineExceeded, GatewayError, InternalError
from gateway.core.ledger import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts, answer_headers
from gateway.core.types import RawHeaders
from gateway.features.reuse.service import StaleIsBetter
from gateway.features.single_flight import SharedAnswer, SingleFlight, count_saved, follow

RETRY_COUNT = b"x-stainless-retry-count"
BUCKETS_BY_LENGTH = 256
"""The running calls are kept in this number of buckets, by the length of their bodies."""

Entered: TypeAlias = tuple[Call, bytes]
"""A running call, by its identity the oldest first, and the body that it came with: another feature may change it."""
Ended = Reply | SharedAnswer | GatewayError | None
"""The result of a call: a whole answer, one that is being relayed, or an error; None: nothing that another call could share."""


class RepeatedCalls(CallFeature):
    """Lets an SDK's retry share the answer of the call that it repeats. One per process."""

    __slots__ = ("_accounts", "_buckets", "_clock", "_ends", "_flights")

    name = "sdk_retries"
    options: frozenset[bytes] = frozenset((RETRY_COUNT,))

    def __init__(self, clock: Clock, accounts: Accounts, flights: SingleFlight) -> None:
        self._clock = clock
        self._accounts = accounts
        self._flights = flights
        self._buckets: list[dict[int, Entered]] = [{} for _ in range(BUCKETS_BY_LENGTH)]
        self._ends: dict[int, asyncio.Future[Ended]] = {}  # of those that are followed; these are in no bucket

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for the calls of SDKs that count their retries."""
        return None if requested.isdisjoint(self.options) else self

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Notes how often the SDK has sent the call before; what makes no sense says nothing."""
        count = headers.get(RETRY_COUNT, b"0")
        if count != b"0" and count.isdigit() and len(count) < 4:
            EARLIER_TRIES.put(call, int(count))

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to the call, or that of the call that it repeats."""
        original, length = self.enter(call), len(call.request.body)
        ended: Ended = None
        try:
            if original is not None:
                reply = await self._repeated(call, original)
                if reply is not None:
                    ended = reply if reply.chunks is None else None
                    return reply
            reply = await next(call)
            if reply.chunks is None:
                ended = reply
                return reply
            if not self.is_followed(call):
                return reply
            # An SDK retry waits for this answer, so both read a shared one. A call that a feature leads has readers already,
            # and still has to pass the answer on to them after its own client has left.
            is_at_the_edge = LED.find(call) is None
            ended = self._flights.share(call, reply)
            if call.left and is_at_the_edge:
                return Reply(CLIENT_GONE_STATUS, [])
            return await self._flights.join(call, ended) or reply
        except StaleIsBetter:  # this call has a stale answer; one that repeats it looks for its own
            raise
        except GatewayError as error:
            ended = error
            raise
        except Exception as defect:
            ended = InternalError()
            ended.__cause__ = defect
            raise
        finally:
            self.leave(call, length, ended)
            ended = None  # this frame is part of the error's traceback: together they would be a reference cycle

    async def _repeated(self, call: Call, original: Call) -> Reply | None:
        """Returns the answer of the original call; None: the repeated call has to be served itself."""
        followed = await self.follow(call, original)
        if isinstance(followed, SharedAnswer):
            return await self._flights.join(call, followed)
        if followed is None:
            return None
        follow(call, original)
        count_saved(call, original)
        self._accounts.settle(call, followed.status, original.outcome)
        headers = followed.shared + answer_headers(call, self._clock.monotonic())
        return Reply(followed.status, headers, followed.body, shared=followed.shared)

    def enter(self, call: Call) -> Call | None:
        """Notes the call; returns the original that it repeats, if that is running and has no follower."""
        sent, original = call.request.body, None
        bucket = self._buckets[len(sent) % BUCKETS_BY_LENGTH]
        # Most calls have no slots at all, and are not asked for more.
        if call.slots is not None and EARLIER_TRIES.find(call):
            original = next((one for one, body in bucket.values() if body == sent and _repeats(call, one)), None)
        bucket[id(call)] = call, sent
        return original

    def leave(self, call: Call, length: int, ended: Ended) -> None:
        """Removes a call that came with a body of `length` bytes, as it has ended, or its answer has begun; its follower
        gets the result."""
        self._buckets[length % BUCKETS_BY_LENGTH].pop(id(call), None)
        if self._ends:
            end = self._ends.pop(id(call), None)
            if end is not None and not end.done():
                end.set_result(ended)

    def is_followed(self, call: Call) -> bool:
        return bool(self._ends) and id(call) in self._ends

    async def follow(self, call: Call, original: Call) -> Reply | SharedAnswer | None:
        """Returns the original's answer, to be joined where it is relayed; None: the call has to be served itself.

        Raises the original's GatewayError, or DeadlineExceeded when the call's own time is up. A call that is served itself
        after all takes on the age of its original: age decides the order among calls that are queued again.
        """
        take_age(call, original)
        call.drop_parsed()  # its memory is not needed as long as it waits
        ended = await self._end_of(original, call)
        if isinstance(ended, GatewayError):
            try:
                raise ended.with_traceback(None)
            finally:
                del ended  # it would lead back to itself by this frame
        return ended

    async def _end_of(self, original: Call, call: Call) -> Ended:
        request = call.request
        end: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._ends[id(original)] = end
        # The original's own body may have been changed meanwhile, by a feature behind this one.
        bucket = self._buckets[len(request.body) % BUCKETS_BY_LENGTH]
        entered = bucket.pop(id(original))
        since = self._clock.monotonic()
        timer = self._clock.call_at(request.deadline, lambda: _time_is_up(end)) if request.deadline_is_callers else None
        AWAITED.put(original, True)
        try:
            return await end
        finally:
            AWAITED.drop(original)
            call.own_setbacks().wait(self._clock.monotonic() - since)
            if timer is not None:
                timer.cancel()
            if self._ends.pop(id(original), None) is not None:  # it goes on, and may be followed again
                bucket[id(original)] = entered
                # Its own client has left, and this was the last call that waited for its answer.
                if original.left and original.server is not None:
                    original.server.cancel(CLIENT_GONE)


def _repeats(call: Call, earlier: Call) -> bool:
    """Returns whether the call is the earlier one, sent again by the same caller."""
    return (
        call.route.key.name == earlier.route.key.name
        and earlier_tries_of(call) > earlier_tries_of(earlier)
        and call.request.tenant == earlier.request.tenant
        and call.request.credential == earlier.request.credential
        and call.route.model.on_loss == earlier.route.model.on_loss
        and call.request.method == earlier.request.method
        and call.request.path == earlier.request.path
        and call.request.query == earlier.request.query
        and _telling(call.request.headers) == _telling(earlier.request.headers)
    )


def _telling(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Returns the headers that are part of the question; the others describe the SDK, and count its retries."""
    return [header for header in headers if not header[0].startswith(b"x-stainless-")]


def _time_is_up(end: asyncio.Future[Ended]) -> None:
    if not end.done():
        end.set_result(DeadlineExceeded("The deadline passed before the call that this one repeats was answered."))
