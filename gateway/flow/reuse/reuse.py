"""What spares a call its provider: an idempotency record, a call that asks the same at this moment, a kept answer.

    plan_reuse -> (nothing: the call goes its way) | serve -> join a flight | a kept answer | a flight of its own -> keep

The layers are asked in that order: record, single flight, exact, semantic, provider, and a stale answer when that fails.
Whatever is in this process's memory is looked at without an await; a store that has to be waited for is asked by the flight,
which others join when its answer will be a new one. Invariants: a record's holder runs alone; what a layer allows one call is
never given to another; nothing is kept that is not complete; a store in trouble makes calls dearer, never fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from gateway.call import Call, Reply
from gateway.clock import Clock
from gateway.errors import (
    GatewayError,
    InternalError,
    KeyInUse,
    KeyReused,
    NotCached,
    ShuttingDown,
)
from gateway.flow.answer_headers import answer_headers
from gateway.flow.raw_relay import INTERNAL_ERROR, StreamBroken, why_stopped
from gateway.flow.reuse import entries
from gateway.flow.reuse.eligibility import ReusePlan
from gateway.flow.reuse.forms import Forms
from gateway.flow.reuse.records import RecordClaim, claimed, result_or_default
from gateway.flow.reuse.shared_answer import Flight
from gateway.flow.reuse.single_flight import Flights
from gateway.flow.settle import CLIENT_GONE, CLIENT_GONE_STATUS, Accounts
from gateway.policy.openai.sse import split_events
from gateway.policy.reuse.cache_control import serves
from gateway.ports import Claim, Store
from gateway.semantic.question import SemanticQuery
from gateway.words import LANES, Kept

if TYPE_CHECKING:
    from gateway.semantic.lookup import Semantic

POLL_S, LONGEST_POLL_S = 0.05, 1.0
"""A call whose key is held elsewhere asks what has come of it so soon, and again after half as long as it has waited."""
NO_BETTER_ANSWER = frozenset((408, 429, *range(500, 600)))
"""With these a stale answer is the better one (RFC 5861, 4, and what providers answer besides)."""
CLOCK_S = 60.0
"""So far a clock may be set back without anybody minding."""


class Replays:
    """Serves calls that may be spared. One per process."""

    __slots__ = ("_accounts", "_answer", "_clock", "_forms", "_store", "flights", "semantic")

    def __init__(
        self, clock: Clock, accounts: Accounts, store: Store, answer: Callable[[Call], Awaitable[Reply]]
    ) -> None:
        """`answer` serves a call by a provider, and settles its account."""
        self._clock = clock
        self._accounts = accounts
        self._store = store
        self._answer = answer
        self._forms = Forms()
        self.flights = Flights(clock, accounts)
        self.semantic: Semantic | None = None
        """Who recognises questions; set by whoever has one."""

    async def aclose(self) -> None:
        """Wait for what is being kept. To be called when no reader is left."""
        await self.flights.aclose()

    def stale_reply_for(self, call: Call, status: int) -> Reply | None:
        """A stale answer in place of an error with this status, where there is one; its account is not closed."""
        replay = call.replay
        if replay is None or replay.stale is None or status not in NO_BETTER_ANSWER:
            return None
        return self._replayed(call, replay.stale, "exact", "stale")

    # --- serving ---

    async def serve(self, call: Call, asked: ReusePlan) -> Reply:
        """The answer, from wherever it comes first. Raises as the pipeline does; the account is settled in any case."""
        try:
            while True:
                flight = self._joinable(call, asked)
                if flight is None:
                    reply = self._known_already(call, asked)
                    if reply is not None:
                        return reply
                    flight = self._start(call, asked)
                joined = await self.flights.join(call, flight)
                if joined is not None:
                    return joined
        except GatewayError as error:
            self._accounts.settle(call, error.status, error.code or error.type)
            raise
        except asyncio.CancelledError:
            raise  # settled by whoever left
        except Exception as defect:
            self._accounts.settle(call, 500, INTERNAL_ERROR)
            raise InternalError() from defect

    def _joinable(self, call: Call, asked: ReusePlan) -> Flight | None:
        """The flight that the call can join. Raises KeyReused, or KeyInUse for one that takes nobody any more."""
        if asked.record:
            flight = self.flights.get(asked.record)
            if flight is not None:
                if flight.fingerprint != asked.fingerprint:
                    raise _reused(call)
                if not flight.takes_readers:
                    raise _in_use()
                return flight
            return None  # its own record has to be kept, whoever answers
        return self._shared(call, asked)

    def _shared(self, call: Call, asked: ReusePlan) -> Flight | None:
        """A flight that brings the same answer, and no later than the call's own would."""
        flight = self.flights.get(asked.flight) if asked.flight else None
        if flight is None or not flight.takes_readers or flight.call is call:
            return None
        if not flight.has_begun and LANES.index(call.lane) < LANES.index(flight.call.lane):
            return None  # it may wait behind others in a lower lane
        return flight

    def _known_already(self, call: Call, asked: ReusePlan) -> Reply | None:
        """What this process's own memory has for the call."""
        store = self._store
        if asked.record and store.is_local:
            claim = store.records.claim(asked.record, asked.fingerprint, asked.caching.lease_s)
            if isinstance(claim, Claim):
                kept = self._claimed(call, asked, claim)
                reply = None if kept is None else self._replayed(call, kept, "idempotency", "hit")
                if reply is not None:
                    return self._close_account(call, reply)
        if not asked.is_kept or asked.record or asked.directives.no_cache:
            return None
        asked.found = store.answers.get(asked.exact, asked.caching.name)
        if isinstance(asked.found, asyncio.Future):
            return None
        reply = self._exact(call, asked, asked.found)
        return None if reply is None else self._close_account(call, reply)

    def _close_account(self, call: Call, reply: Reply) -> Reply:
        """A replayed answer, with the call's account closed."""
        self._accounts.settle(call, reply.status, call.outcome)
        return reply

    def _claimed(self, call: Call, asked: ReusePlan, claim: Claim) -> Kept | None:
        """What the record holds; else the claim, if there is one, is noted. Raises KeyReused."""
        if claim.state == "mismatch":
            raise _reused(call)
        if claim.state == "claimed":
            asked.fence = claim.fence
            _note(call, "idempotency", "miss")
        return claim.kept

    def _exact(self, call: Call, asked: ReusePlan, kept: Kept | None) -> Reply | None:
        """The reply that an exact answer makes, if it may be given; a stale one is remembered for worse times."""
        asked.found = None
        if kept is not None:
            rule, age_s = asked.caching.exact, self._clock.wall() - kept.stored_at
            fresh_s = min(kept.fresh_until - kept.stored_at, rule.ttl_s) - age_s
            if age_s < -CLOCK_S:
                pass  # kept by a clock that was ahead: nobody knows how old it is
            elif serves(asked.directives, max(0.0, age_s), fresh_s):
                reply = self._replayed(call, kept, "exact", "hit")
                if reply is not None:
                    return reply
            elif call.replay is not None and fresh_s + rule.stale_if_error_s > 0:
                call.replay.stale = kept
        _note(call, "exact", "miss")
        return None

    def _replayed(self, call: Call, kept: Kept, layer: str, result: str) -> Reply | None:
        """A kept answer for this call; None where it cannot be put into the form that the call wants."""
        body = self._forms.body(call, kept)
        if body is None:  # a layer further on may do better
            return None
        entries.mark_served_from(call, kept, layer, result, self._clock.wall())
        call.outcome = kept.outcome
        shared = entries.replay_headers(call, kept)
        headers = [*shared, *answer_headers(call, self._clock.monotonic())]
        pace_s = call.model.caching.exact.pace_s
        reply = Reply(kept.status, headers, body, shared=shared)
        if pace_s and call.stream and entries.is_stream(shared):
            reply.chunks, reply.body = self._paced(body, pace_s), b""
        return reply

    async def _paced(self, frames: bytes, pace_s: float) -> AsyncGenerator[bytes, None]:
        for event in split_events(frames):
            await self._clock.sleep(pace_s)
            yield event

    # --- flying ---

    def _start(self, call: Call, asked: ReusePlan) -> Flight:
        """A flight of the call's own."""
        flight = Flight(call, entries.room_of(asked.caching, is_keyed=bool(asked.record)))
        flight.fingerprint = asked.fingerprint
        flight.keys = (asked.record,) if asked.record else ()
        if asked.record:  # others have been looked for already
            asked.concurrent_leader = self._shared(call, asked)
        if asked.flight and not asked.waits and asked.concurrent_leader is None:
            self._offer(flight, asked)
        self.flights.start(flight, self._run_leader(flight, asked))
        return flight

    def _offer(self, flight: Flight, asked: ReusePlan) -> None:
        """From here on the call's answer is a new one: whoever asks the same may have it."""
        self.flights.offer(flight, asked.flight)
        _note(flight.call, "single_flight", "miss")

    async def _run_leader(self, flight: Flight, asked: ReusePlan) -> None:
        """Everything that may have to be waited for, up to the last byte and what is kept of it."""
        call = flight.call
        lease: RecordClaim | None = None
        try:
            reply = await self._stored(call, asked)
            if reply is not None:
                self._close_account(call, reply)
                await self._carry(flight, asked, reply)
                return
            if asked.fence and not self._store.is_local:
                lease = RecordClaim(self._clock, self._store, asked)
            if asked.directives.only_if_cached:
                raise NotCached("Only a cached answer was asked for (only-if-cached), and there is none.")
            await self._carry(flight, asked, await self._origin(flight, asked))
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
            told = InternalError()
            told.__cause__ = defect
            flight.end(told)
        finally:
            if lease is not None:
                lease.end()
            if asked.fence:
                self._store.records.release(asked.record, asked.fence)
            self.flights.forget(flight)

    async def _origin(self, flight: Flight, asked: ReusePlan) -> Reply:
        """The answer of a flight that brings the same, else a provider's."""
        call, beside = flight.call, asked.concurrent_leader
        asked.concurrent_leader = None
        while asked.flight and asked.flight not in flight.keys:
            shared = self._shared(call, asked) or beside
            if shared is None or not shared.takes_readers or shared.error is not None:
                self._offer(flight, asked)
                break
            beside = None
            reply = await self.flights.join(call, shared)
            if reply is not None:
                return reply
        return await self._answer(call)

    async def _stored(self, call: Call, asked: ReusePlan) -> Reply | None:
        """What a store has that could not say so at once."""
        if asked.record and not asked.fence:
            kept = await self._claim(call, asked)
            if kept is not None:
                reply = self._replayed(call, kept, "idempotency", "hit")
                if reply is not None:
                    return reply
        if asked.directives.no_cache:
            return None
        if asked.found is None and asked.record and asked.is_kept:
            asked.found = self._store.answers.get(asked.exact, asked.caching.name)
        if asked.found is not None:
            reply = self._exact(call, asked, await result_or_default(asked.found, None))
            if reply is not None:
                return reply
        return None if asked.semantic is None else await self._similar(call, asked, asked.semantic)

    async def _similar(self, call: Call, asked: ReusePlan, ask: SemanticQuery) -> Reply | None:
        """The answer to a question that means the same."""
        match = None if self.semantic is None else await self.semantic.find(call, ask)
        if match is not None and self.semantic is not None and call.replay is not None:
            kept = await result_or_default(self._store.answers.get(match.key, asked.caching.name), None)
            if kept is None:
                self.semantic.lost(match)
            elif self._is_young(asked, kept, ask.rule.ttl_s):
                call.replay.similarity, call.replay.key = match.similarity, match.key
                reply = self._replayed(call, kept, "semantic", "semantic")
                if reply is not None:
                    return reply
                call.replay.similarity, call.replay.key = None, asked.exact
        _note(call, "semantic", "miss")
        return None

    def _is_young(self, asked: ReusePlan, kept: Kept, ttl_s: float) -> bool:
        age_s = self._clock.wall() - kept.stored_at
        return age_s >= -CLOCK_S and serves(asked.directives, max(0.0, age_s), ttl_s - age_s)

    async def _claim(self, call: Call, asked: ReusePlan) -> Kept | None:
        """What the record holds, or None with the claim noted; waits for a holder elsewhere. Raises KeyReused or KeyInUse."""
        began_at = self._clock.monotonic()
        while True:
            claim = await claimed(self._store, asked)
            kept = self._claimed(call, asked, claim)
            if kept is not None or claim.state != "running":
                return kept
            now = self._clock.monotonic()
            if now >= call.deadline:
                raise _in_use()
            pause_s = min(max(POLL_S, (now - began_at) / 2), LONGEST_POLL_S, claim.lease_left_s)
            await self._clock.sleep(max(0.001, pause_s))

    async def _carry(self, flight: Flight, asked: ReusePlan, reply: Reply) -> None:
        """Pass the answer on, and keep it."""

        async def keep(reply: Reply, body: bytes) -> None:
            await self._keep(flight.call, asked, reply, body)

        await self.flights.carry(flight, reply, keep, is_recorded=asked.fence > 0)

    async def _keep(self, call: Call, asked: ReusePlan, reply: Reply, body: bytes) -> None:
        """Keep what may be given again, in each layer that the call asks."""
        replay = call.replay
        if replay is not None and replay.result == "stale":
            return
        wall = self._clock.wall()
        if asked.fence and entries.is_terminal(call, reply.status) and len(body) <= asked.caching.max_record_bytes:
            record = entries.keep_answer(call, reply, body, wall)
            record.fresh_until = record.stale_until = wall + asked.caching.keep_s
            await result_or_default(self._store.records.complete(asked.record, asked.fence, record), False)
            asked.fence = 0
        is_new = replay is None or not replay.layer  # else whoever it comes from has kept it
        if is_new and not asked.directives.no_store and len(body) <= asked.caching.exact.max_entry_bytes:
            self._keep_answer(call, asked, reply, body)

    def _keep_answer(self, call: Call, asked: ReusePlan, reply: Reply, body: bytes) -> None:
        """Keep it for those who ask the same, or what means the same."""
        query = asked.semantic
        if not (asked.is_kept or query is not None) or not entries.is_worth_keeping(call, reply, body):
            return
        wall, rule = self._clock.wall(), asked.caching.exact
        kept = entries.keep_answer(call, reply, body, wall)
        kept.group = asked.caching.name
        kept.fresh_until = wall + (rule.ttl_s if asked.is_kept or query is None else query.rule.ttl_s)
        kept.stale_until = kept.fresh_until + rule.stale_if_error_s
        if query is not None:
            kept.stale_until = max(kept.stale_until, wall + query.rule.ttl_s)
        self._store.answers.put(asked.exact, kept)
        if query is not None and self.semantic is not None:
            self.semantic.keep(call, query, asked.exact)


def _note(call: Call, layer: str, result: str) -> None:
    if call.replay is not None:
        call.replay.tried.append((layer, result))


def _reused(call: Call) -> KeyReused:
    _note(call, "idempotency", "mismatch")
    return KeyReused(
        "This Idempotency-Key was used for another request; use a new key for each request, and the same one to repeat it.",
        param="Idempotency-Key",
    )


def _in_use() -> KeyInUse:
    return KeyInUse(
        "A request with this Idempotency-Key is still running; repeat it later to get its answer.",
        param="Idempotency-Key",
    )
