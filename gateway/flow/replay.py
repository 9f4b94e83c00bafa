"""What spares a call its provider: an idempotency record, a call that asks the same at this moment, a kept answer.

    ask -> (nothing: the call goes its way) | serve -> join a flight | a kept answer | a flight of its own -> keep

The layers are asked in that order: record, single flight, exact, semantic, provider, and a stale answer when that fails.
Whatever is in this process's memory is looked at without an await; a store that has to be waited for is asked within the
flight, once for all who follow it. Invariants: a record's holder runs alone; nothing is kept that is not complete; a store
in trouble makes calls dearer, never fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.call import LANES, Call, Kept, Replay, Reply, shown
from gateway.clock import Clock, Timer
from gateway.errors import (
    BudgetExceeded,
    DeadlineExceeded,
    GatewayError,
    InternalError,
    KeyInUse,
    KeyRateLimited,
    KeyReused,
    NotCached,
    QueueDeadlineExceeded,
    ShuttingDown,
    TargetsTimedOut,
    WaitTooLong,
)
from gateway.flow import keeping
from gateway.flow.accounting import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts
from gateway.flow.flight import Flight, Reader, time_is_up
from gateway.flow.rawrelay import INTERNAL_ERROR, StreamBroken, why_stopped
from gateway.flow.trail import trail_headers
from gateway.policy.cachecontrol import Directives, read_directives, serves
from gateway.policy.caching import Caching, applies
from gateway.policy.replaykeys import exact_key, fingerprint, flight_key, record_key
from gateway.policy.sse import split_events
from gateway.ports import Claim, Later, Store

T = TypeVar("T")

STORE_S = 2.0
"""No call waits longer for a store."""
POLL_S = 0.25
"""A call whose key is held elsewhere asks so often what has come of it."""
ABOUT_AS_LONG_S = 1.0
"""Who has hardly more time than the one it followed need not try what that could not do in time."""
LAST_WORDS = (b"data: [DONE]", b"event: response.completed", b"event: response.incomplete", b"event: response.failed")
"""A stream that says this is taken for complete by its client: by then its record has to be."""
OWN_LIMITS = (KeyRateLimited, BudgetExceeded)
OUT_OF_TIME = (DeadlineExceeded, QueueDeadlineExceeded, WaitTooLong, TargetsTimedOut)
NO_BETTER_ANSWER = frozenset((429, 500, 502, 503, 504))
"""With these a stale answer is the better one (RFC 5861, 4)."""


@dataclass(slots=True)
class Asked:
    """What may be kept or shared of a call, and under which keys; an empty key: not there."""

    caching: Caching
    directives: Directives
    record: bytes = b""
    fingerprint: bytes = b""
    exact: bytes = b""
    """Also what it is called where only flights are shared."""
    flight: bytes = b""
    is_kept: bool = False
    """Equal requests get its answer later on."""
    found: Later[Kept | None] | None = None
    """What the store says of the exact key, once it was asked."""
    fence: int = 0
    """Of the claimed record; 0: none."""


class Replays:
    """Serves calls that may be spared. One per process."""

    __slots__ = ("_accounts", "_answer", "_clock", "_flights", "_store", "_tasks")

    def __init__(
        self, clock: Clock, accounts: Accounts, store: Store, answer: Callable[[Call], Awaitable[Reply]]
    ) -> None:
        """`answer` serves a call by a provider, and settles its account."""
        self._clock = clock
        self._accounts = accounts
        self._store = store
        self._answer = answer
        self._flights: dict[bytes, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    async def aclose(self) -> None:
        """Wait for what is being kept. To be called when no reader is left."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STORE_S)

    # --- what is asked ---

    def ask(self, call: Call) -> Asked | None:
        """What may be kept or shared of the call; None: nothing."""
        parsed, caching = call.parsed, call.model.caching
        if call.endpoint.request == "any":
            return None
        is_keyed = call.idempotency_key is not None and caching.keep_s > 0
        is_shared = is_kept = False
        if parsed is not None:
            name = call.endpoint.name
            is_shared = applies(caching.coalesce, name, parsed)
            is_kept = applies(caching.exact.requests, name, parsed)
        directives = read_directives(call.cache_control)
        if not (is_keyed or is_shared or is_kept or directives.only_if_cached):
            return None
        asked = Asked(caching, directives, is_kept=is_kept)
        if parsed is not None and (is_shared or is_kept):
            asked.exact = exact_key(call, parsed, caching)
            if is_shared and not asked.directives.no_cache:
                asked.flight = flight_key(call, parsed, asked.exact)
        if is_keyed and call.idempotency_key is not None:
            asked.record = record_key(call, call.idempotency_key)
            asked.fingerprint = fingerprint(call)
        call.replay = Replay("miss" if is_keyed or is_kept else "bypass", key=asked.exact if is_kept else b"")
        return asked

    def flight(self, key: bytes) -> Flight | None:
        """Who asks this at the moment."""
        return self._flights.get(key)

    def instead(self, call: Call, status: int) -> Reply | None:
        """A stale answer in place of an error with this status, where there is one; its account is not closed."""
        replay = call.replay
        if replay is None or replay.stale is None or status not in NO_BETTER_ANSWER:
            return None
        return self._replayed(call, replay.stale, "exact", "stale")

    def share(self, call: Call, reply: Reply) -> Flight:
        """Make the answer of a call that has begun one for several readers."""
        flight = Flight(call, keeping.LEAST_ROOM)
        call.task = None
        flight.begin(reply)
        flight.task = task = asyncio.get_running_loop().create_task(self._pass_on(flight, reply))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._landed(flight, ended))
        return flight

    async def join(self, call: Call, flight: Flight) -> Reply | None:
        """Read along; None: the call has to be served for itself."""
        return await self._join(call, flight)

    def spared(self, call: Call, leader: Call) -> None:
        """Note on the call that it gets the answer of this one."""
        _note_shared(call, leader)
        _note_saved(call, leader)

    # --- serving ---

    async def serve(self, call: Call, asked: Asked) -> Reply:
        """The answer, from wherever it comes first. Raises as the pipeline does; the account is settled in any case."""
        try:
            while True:
                flight = self._joinable(call, asked)
                if flight is None:
                    reply = self._at_hand(call, asked)
                    if reply is not None:
                        return reply
                    flight = self._start(call, asked)
                joined = await self._join(call, flight)
                if joined is not None:
                    return joined
        except GatewayError as error:
            self._accounts.settle(call, error.status, error.code or error.type)
            raise
        except asyncio.CancelledError:
            raise  # settled by whoever left
        except Exception as defect:
            self._accounts.settle(call, 500, INTERNAL_ERROR)
            raise InternalError("The gateway failed on this request; its log has the details.") from defect

    def _joinable(self, call: Call, asked: Asked) -> Flight | None:
        """The flight that the call can join. Raises KeyReused, or KeyInUse for one that takes nobody any more."""
        if asked.record:
            flight = self._flights.get(asked.record)
            if flight is not None:
                if flight.fingerprint != asked.fingerprint:
                    raise _reused(call)
                if not flight.takes_readers:
                    raise _in_use(call)
                return flight
            return None  # its own record has to be kept, whoever answers
        return self._shared(call, asked)

    def _shared(self, call: Call, asked: Asked) -> Flight | None:
        """A flight that brings the same answer, and no later than the call's own would."""
        flight = self._flights.get(asked.flight) if asked.flight else None
        if flight is None or not flight.takes_readers or flight.call is call:
            return None
        if not flight.has_begun and LANES.index(call.lane) < LANES.index(flight.call.lane):
            return None  # it may wait behind others in a lower lane
        return flight

    def _at_hand(self, call: Call, asked: Asked) -> Reply | None:
        """What this process's own memory has for the call."""
        store = self._store
        if asked.record and store.is_local:
            claim = store.records.claim(asked.record, asked.fingerprint, asked.caching.lease_s)
            if isinstance(claim, Claim):
                kept = self._claimed(call, asked, claim)
                reply = None if kept is None else self._replayed(call, kept, "idempotency", "hit")
                if reply is not None:
                    return self._settled(call, reply)
        if not asked.is_kept or asked.record or asked.directives.no_cache:
            return None
        asked.found = store.answers.get(asked.exact, asked.caching.name)
        if isinstance(asked.found, asyncio.Future):
            return None
        reply = self._exact(call, asked, asked.found)
        return None if reply is None else self._settled(call, reply)

    def _settled(self, call: Call, reply: Reply) -> Reply:
        """A replayed answer, with the call's account closed."""
        self._accounts.settle(call, reply.status, call.outcome)
        return reply

    def _claimed(self, call: Call, asked: Asked, claim: Claim) -> Kept | None:
        """What the record holds; else the claim, if there is one, is noted. Raises KeyReused."""
        if claim.state == "mismatch":
            raise _reused(call)
        if claim.state == "claimed":
            asked.fence = claim.fence
            _note(call, "idempotency", "miss")
        return claim.kept

    def _exact(self, call: Call, asked: Asked, kept: Kept | None) -> Reply | None:
        """The reply that an exact answer makes, if it may be given; a stale one is remembered for worse times."""
        asked.found = None
        if kept is not None:
            wall = self._clock.wall()
            age_s = max(0.0, wall - kept.stored_at)
            if serves(asked.directives, age_s, kept.fresh_until - wall):
                reply = self._replayed(call, kept, "exact", "hit")
                if reply is not None:
                    return reply
            elif call.replay is not None:
                call.replay.stale = kept
        _note(call, "exact", "miss")
        return None

    def _replayed(self, call: Call, kept: Kept, layer: str, result: str) -> Reply | None:
        """A kept answer for this call; None where it cannot be put into the form that the call wants."""
        body = keeping.in_form(call, kept)
        if body is None:  # a layer further on may do better
            return None
        keeping.spare(call, kept, layer, result, self._clock.wall())
        call.outcome = kept.outcome
        shared = keeping.replay_headers(call, kept)
        headers = [*shared, *trail_headers(call, self._clock.monotonic())]
        pace_s = call.model.caching.exact.pace_s
        reply = Reply(kept.status, headers, body, shared=shared)
        if pace_s and call.stream and kept.status < 300:
            reply.chunks, reply.body = self._paced(body, pace_s), b""
        return reply

    async def _paced(self, frames: bytes, pace_s: float) -> AsyncGenerator[bytes, None]:
        for event in split_events(frames):
            await self._clock.sleep(pace_s)
            yield event

    # --- joining ---

    async def _join(self, call: Call, flight: Flight) -> Reply | None:
        """The flight's answer for this call; None: it has to look again, for what stopped the flight need not stop it."""
        is_own = flight.call is call
        reader = flight.enter()
        since = self._clock.monotonic()
        timer = self._alarm(call, reader) if call.deadline_is_callers and not is_own else None
        try:
            await flight.opened(reader)
        except GatewayError as error:
            self._leave(call, flight, reader, CLIENT_GONE)
            if is_own or isinstance(error, ShuttingDown) or not _is_others(error, flight.call, call):
                raise
            return None
        except asyncio.CancelledError as stopped:
            self._left(call, flight, reader, why_stopped(stopped))
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not is_own:
                call.queue_s += self._clock.monotonic() - since
        return self._reply(call, flight, reader)

    def _alarm(self, call: Call, reader: Reader) -> Timer:
        return self._clock.call_at(call.deadline, lambda: time_is_up(reader))

    def _reply(self, call: Call, flight: Flight, reader: Reader) -> Reply:
        made = flight.reply
        assert made is not None  # noqa: S101  # it has opened
        is_own = flight.call is call
        if not is_own:
            _note_shared(call, flight.call)
        if made.chunks is None:
            self._leave(call, flight, reader, CLIENT_GONE)
            if is_own:
                return made
            _note_saved(call, flight.call)
            self._accounts.settle(call, made.status, flight.call.outcome)
        headers = made.headers if is_own else [*made.shared, *trail_headers(call, self._clock.monotonic())]
        if made.chunks is None:
            return Reply(made.status, headers, made.body)
        chunks = flight.chunks(reader)

        async def close() -> None:
            await chunks.aclose()
            self._left(call, flight, reader, reader.outcome)

        return Reply(made.status, headers, chunks=chunks, close=close)

    def _left(self, call: Call, flight: Flight, reader: Reader, why: str) -> None:
        """The call reads no more: its account is closed, unless it is the one that works for others."""
        if self._leave(call, flight, reader, why) and flight.call is call:
            return  # whoever flies settles
        if flight.call is call:
            call.left = not flight.is_ended and why == CLIENT_GONE
            return
        _note_saved(call, flight.call)
        made = flight.reply
        status = made.status if made is not None else CLIENT_GONE_STATUS if why == CLIENT_GONE else ShuttingDown.status
        self._accounts.settle(call, status, why)

    def _leave(self, call: Call, flight: Flight, reader: Reader, why: str) -> bool:
        was_last = flight.leave(reader, why)
        if was_last and not flight.is_ended:
            self._forget(flight)  # it is being cancelled: nobody may join it any more
        return was_last

    # --- flying ---

    def _start(self, call: Call, asked: Asked) -> Flight:
        """A flight of the call's own; it joins another one where only its record is its own."""
        shared = self._shared(call, asked) if asked.record else None
        flight = Flight(call, keeping.room_of(asked.caching, is_keyed=bool(asked.record)))
        flight.fingerprint = asked.fingerprint
        flight.keys = tuple(key for key in (asked.record, b"" if shared else asked.flight) if key)
        for key in flight.keys:
            self._flights[key] = flight
        call.task = None  # the edge's task only reads
        if asked.flight and shared is None:
            _note(call, "single_flight", "miss")
        flight.task = task = asyncio.get_running_loop().create_task(self._fly(flight, asked, shared))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._landed(flight, ended))
        return flight

    def _landed(self, flight: Flight, task: asyncio.Task[None]) -> None:
        """The last resort: a task that was cancelled before it began, or failed where nobody thought it could."""
        self._tasks.discard(task)
        self._forget(flight)
        if not flight.is_ended:
            flight.end(StreamBroken("the answer broke off"))
            if flight.reply is not None:  # cancelled before it had begun to relay: somebody has to close
                closing = asyncio.get_running_loop().create_task(_close(flight.reply))
                self._tasks.add(closing)
                closing.add_done_callback(self._tasks.discard)
                return
        if not flight.call.settled:
            self._accounts.settle(flight.call, CLIENT_GONE_STATUS, CLIENT_GONE)

    def _forget(self, flight: Flight) -> None:
        for key in flight.keys:
            if self._flights.get(key) is flight:
                del self._flights[key]

    async def _fly(self, flight: Flight, asked: Asked, shared: Flight | None) -> None:
        """Everything that may have to be waited for, up to the last byte and what is kept of it."""
        call = flight.call
        lease: Lease | None = None
        try:
            reply = await self._stored(call, asked)
            if reply is not None:
                flight.land(self._settled(call, reply))
                return
            if asked.fence and not self._store.is_local:
                lease = Lease(self._clock, self._store, asked)
            if asked.directives.only_if_cached:
                raise NotCached("Only a cached answer was asked for (only-if-cached), and there is none.")
            await self._carry(flight, asked, await self._origin(call, shared))
        except GatewayError as error:
            self._accounts.settle(call, error.status, error.code or error.type)
            flight.end(error)
        except asyncio.CancelledError as stopped:
            outcome = why_stopped(stopped)
            status = CLIENT_GONE_STATUS if outcome == CLIENT_GONE else ShuttingDown.status
            self._accounts.settle(call, status, outcome)
            flight.end(StreamBroken("the answer broke off"))
        except StreamBroken as broken:
            flight.end(broken)
        except Exception as defect:  # noqa: BLE001  # whoever reads is told, and logs it
            self._accounts.settle(call, 500, INTERNAL_ERROR)
            told = InternalError("The gateway failed on this request; its log has the details.")
            told.__cause__ = defect
            flight.end(told)
        finally:
            if lease is not None:
                lease.end()
            if asked.fence:
                self._store.records.release(asked.record, asked.fence)
            self._forget(flight)

    async def _origin(self, call: Call, shared: Flight | None) -> Reply:
        """The answer of a flight that brings the same, else a provider's."""
        if shared is not None and shared.takes_readers:
            reply = await self._join(call, shared)
            if reply is not None:
                return reply
        return await self._answer(call)

    async def _stored(self, call: Call, asked: Asked) -> Reply | None:
        """What a store has that could not say so at once."""
        if asked.record and not asked.fence:
            kept = await self._claim(call, asked)
            if kept is not None:
                reply = self._replayed(call, kept, "idempotency", "hit")
                if reply is not None:
                    return reply
        if not asked.is_kept or asked.directives.no_cache:
            return None
        if asked.found is None and asked.record:
            asked.found = self._store.answers.get(asked.exact, asked.caching.name)
        if asked.found is None:
            return None
        return self._exact(call, asked, await said(asked.found, None))

    async def _claim(self, call: Call, asked: Asked) -> Kept | None:
        """What the record holds, or None with the claim noted; waits for a holder elsewhere. Raises KeyReused or KeyInUse."""
        unsaid = Claim("claimed")
        while True:
            claim = await said(
                self._store.records.claim(asked.record, asked.fingerprint, asked.caching.lease_s), unsaid
            )
            kept = self._claimed(call, asked, claim)
            if kept is not None or claim.state != "running":
                return kept
            if self._clock.monotonic() >= call.deadline:
                raise _in_use(call)
            await self._clock.sleep(max(0.001, min(claim.lease_left_s, POLL_S)))

    async def _pass_on(self, flight: Flight, reply: Reply) -> None:
        """Relay an answer of which nothing is kept."""
        try:
            await self._carry(flight, None, reply)
        except StreamBroken as broken:
            flight.end(broken)

    async def _carry(self, flight: Flight, asked: Asked | None, reply: Reply) -> None:
        """Pass the answer on to all who read it, and keep it; its end is passed on when it is kept."""
        if reply.chunks is None:
            if asked is not None:
                await self._keep(flight.call, asked, reply, reply.body)
            flight.land(reply)
            return
        flight.begin(reply)
        try:
            await self._pump(flight, asked, reply)
        finally:
            await reply.close()

    async def _pump(self, flight: Flight, asked: Asked | None, reply: Reply) -> None:
        assert reply.chunks is not None  # noqa: S101  # that is why it is carried
        held = b""
        is_recorded = asked is not None and asked.fence > 0
        async for chunk in reply.chunks:
            if held or (is_recorded and is_last_word(chunk)):
                held += chunk
            else:
                await flight.add(chunk)
        await reply.close()
        body = flight.body() if asked is not None else None
        if asked is not None and body is not None:
            await self._keep(flight.call, asked, reply, body + held)
        if held:
            await flight.add(held)
        flight.end()

    async def _keep(self, call: Call, asked: Asked, reply: Reply, body: bytes) -> None:
        """Keep what may be given again, in each layer that the call asks."""
        replay = call.replay
        if replay is not None and replay.result == "stale":
            return
        wall = self._clock.wall()
        if asked.fence and keeping.is_terminal(call, reply.status) and len(body) <= asked.caching.max_record_bytes:
            record = keeping.keep_answer(call, reply, body, wall)
            record.fresh_until = record.stale_until = wall + asked.caching.keep_s
            await said(self._store.records.complete(asked.record, asked.fence, record), False)
            asked.fence = 0
        rule = asked.caching.exact
        if not asked.is_kept or asked.directives.no_store or len(body) > rule.max_entry_bytes:
            return
        if keeping.is_worth_keeping(call, reply, body):
            kept = keeping.keep_answer(call, reply, body, wall)
            until = wall + rule.ttl_s
            kept = replace(kept, group=asked.caching.name, fresh_until=until, stale_until=until + rule.stale_if_error_s)
            self._store.answers.put(asked.exact, kept)


class Lease:
    """The claim of a record, renewed as long as its holder works."""

    __slots__ = ("_asked", "_clock", "_store", "_timer")

    def __init__(self, clock: Clock, store: Store, asked: Asked) -> None:
        self._clock = clock
        self._store = store
        self._asked = asked
        self._timer = self._set()

    def end(self) -> None:
        """It is renewed no more."""
        self._timer.cancel()

    def _set(self) -> Timer:
        return self._clock.call_at(self._clock.monotonic() + self._asked.caching.lease_s / 3, self._renew)

    def _renew(self) -> None:
        asked = self._asked
        if asked.fence:
            self._store.records.renew(asked.record, asked.fence, asked.caching.lease_s)
            self._timer = self._set()


async def said(answer: Later[T], otherwise: T) -> T:
    """What a store says, or what holds when it does not say so in time."""
    if not isinstance(answer, asyncio.Future):
        return answer
    if not answer.done():
        await asyncio.wait((answer,), timeout=STORE_S)
        if not answer.done():
            return otherwise
    return answer.result()


async def _close(reply: Reply) -> None:
    await reply.close()


def is_last_word(chunk: bytes) -> bool:
    """Whether one of these events tells the client that it has everything."""
    return any(chunk.startswith(words) or b"\n" + words in chunk for words in LAST_WORDS)


def _note(call: Call, layer: str, result: str) -> None:
    if call.replay is not None:
        call.replay.tried.append((layer, result))


def _note_shared(call: Call, leader: Call) -> None:
    replay = call.replay = call.replay or Replay()
    replay.result, replay.layer = "coalesced", "single_flight"
    replay.source = leader.id
    replay.target = leader.attempts[-1].target if leader.attempts else leader.replay.target if leader.replay else ""
    replay.attempts = shown(leader.attempts)
    replay.tried.append(("single_flight", "hit"))


def _note_saved(call: Call, leader: Call) -> None:
    """What the one answer would have cost again; known when it has ended."""
    replay = call.replay
    if replay is None or replay.layer != "single_flight":
        return
    spared = leader.replay if leader.replay is not None and leader.replay.saved is not None else None
    last = leader.attempts[-1] if leader.attempts else None
    replay.saved = leader.usage if spared is None else spared.saved
    replay.saved_usd = spared.saved_usd if spared is not None else last.cost_usd if last is not None else None


def _is_others(error: GatewayError, leader: Call, call: Call) -> bool:
    """Whether the call that was followed was stopped by what need not stop this one."""
    if isinstance(error, OWN_LIMITS):
        return leader.key.name != call.key.name
    return isinstance(error, OUT_OF_TIME) and call.deadline > leader.deadline + ABOUT_AS_LONG_S


def _reused(_call: Call) -> KeyReused:
    return KeyReused(
        "This Idempotency-Key was used for another request; use a new key for each request, and the same one to repeat it.",
        param="Idempotency-Key",
    )


def _in_use(_call: Call) -> KeyInUse:
    return KeyInUse(
        "A request with this Idempotency-Key is still running; repeat it later to get its answer.",
        param="Idempotency-Key",
    )
