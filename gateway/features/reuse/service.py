"""Answers a call without its provider where that is possible, or shares one provider's answer between equal calls.

    serve ── an equal call is being answered ────────── share its answer
          ── a layer has the answer in memory ───────── give that
          ── else lead: stores that have to be waited for, another leader, the provider ── store and share the answer

The order is: record, single flight, exact, semantic, provider, and a stale answer if the provider fails. `layers.py` looks up
and stores. A store that has to be waited for is asked by the leader, and equal calls share its answer once it is sure to be
a new one. Invariants: a record's holder runs alone; an answer that the rules of one call allow is given to no other call;
a store in trouble makes calls dearer, and never fails one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from gateway.core.call import (
    Call,
    CallFeature,
    CallRecord,
    CallRoute,
    ErrorAnswer,
    Headers,
    Open,
    Opened,
    Reply,
    Serve,
)
from gateway.core.clock import Clock
from gateway.core.errors import (
    GatewayError,
)
from gateway.core.ledger import Accounts
from gateway.core.types import LANES
from gateway.drivers.store import RecordClaim, Store
from gateway.features.identity import SENT_KEY, read_idempotency_key
from gateway.features.outcome import OUTCOME, CacheOutcome
from gateway.features.reuse.keys import CACHE_CONTROL, NotCached
from gateway.features.reuse.layers import ReuseLayers, ReusePlan, key_in_use, key_reused, note, plan_reuse
from gateway.features.reuse.rules import CACHING, Caching, Which, applies
from gateway.features.reuse.savings import CacheMetrics, Savings
from gateway.features.single_flight import LEAST_ROOM, SharedAnswer, SingleFlight

BYPASS: Final = (b"x-gateway-cache", b"bypass")


class StaleIsBetter(GatewayError):
    """The provider has answered with an error, and a stale answer is at hand; no client sees this."""

    def __init__(self, status: int) -> None:
        super().__init__(f"The provider has answered with status {status}.")
        self.status = status


class OutcomeTrail(CallFeature):
    """Shows in headers and call log how a call was spared its provider, or not."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[[Call], None]) -> None:
        """`note` is called with each call that has ended and may have been spared its provider."""
        self._note = note

    def headers(self, call: Call, headers: Headers) -> None:
        """Appends what came of the look for a stored answer, and whose answer it is."""
        # Of most calls nothing is stored or shared, and no feature has put anything on them.
        outcome = None if call.slots is None else OUTCOME.find(call)
        if outcome is None:
            headers.append(BYPASS)
        else:
            headers += outcome_headers(outcome, is_served=bool(call.attempts))

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        """Counts what the call was spared; returns that for the call log."""
        if record.call.slots is None:
            return None
        outcome = OUTCOME.find(record.call)
        if outcome is None:
            return None
        self._note(record.call)
        return log_fields(outcome)


class Replays(OutcomeTrail):
    """Serves calls whose answer may be reused. One per process."""

    __slots__ = (
        "_accounts",
        "_clock",
        "_requested",
        "_store",
        "_trail",
        "layers",
        "metrics",
        "savings",
        "single_flight",
    )

    name = "reuse"
    options: frozenset[bytes] = frozenset((b"idempotency-key", b"cache-control"))
    absent_headers: tuple[tuple[bytes, bytes], ...] = (BYPASS,)

    def __init__(self, clock: Clock, accounts: Accounts, store: Store, single_flight: SingleFlight) -> None:
        self.metrics: CacheMetrics = CacheMetrics()
        self.savings = Savings()
        super().__init__(note_savings := self.savings.note)
        self._clock = clock
        self._accounts = accounts
        self._store = store
        self._trail = OutcomeTrail(note_savings)
        self._requested = RequestedReplays(self, note_savings)
        self.layers = ReuseLayers(clock, store)
        self.single_flight = single_flight

    async def aclose(self) -> None:
        """Waits for answers that are being stored. To be called when no reader is left."""
        await self.single_flight.aclose()

    def stale_reply_for(self, call: Call, status: int) -> Reply | None:
        """Returns a stale answer in place of an error with this status, with the account closed; None: there is none."""
        reply = self.layers.stale_reply(call, status)
        if reply is not None:
            self._accounts.settle(call, reply.status, "ok")
        return reply

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself where the cache rules of the model, or the call, have answers reused."""
        if route.endpoint.request != "any":
            if not requested.isdisjoint(self.options):
                return self._requested
            caching = CACHING.of(route.model)
            if caching.exact.requests != "off" or caching.semantic is not None:
                return self
            if caching.coalesce != "off":
                # By what it asks for, another product may spare a call its provider.
                kind = EqualCalls if requested else UnrequestedEqualCalls
                return kind(self, self._note, caching.coalesce, route.endpoint.name)
        # Another product that the call asks for may spare it its provider.
        return self._trail if requested else None

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call, from its provider or not."""
        plan = plan_reuse(call, self.layers.semantic)
        return next(call) if plan is None else self._serve(call, plan, next)

    async def open(self, call: Call, next: Open) -> Opened:
        """Returns the provider's answer. Raises StaleIsBetter in place of an error that a stale answer replaces."""
        opened = await next(call)
        if isinstance(opened, ErrorAnswer) and self.layers.is_stale_better(call, opened.status):
            raise StaleIsBetter(opened.status)
        return opened

    async def _answer(self, call: Call, next: Serve) -> Reply:
        """Returns the provider's answer, or a stale one in place of an error."""
        try:
            return await next(call)
        except GatewayError as error:
            stale = self.stale_reply_for(call, error.status)
            if stale is None:
                raise
            return stale

    async def _serve(self, call: Call, plan: ReusePlan, next: Serve) -> Reply:
        """Returns the first answer that a layer, an equal call or the provider has; the account is settled in any case.

        Raises as the pipeline does.
        """
        try:
            while True:
                shared = self._joinable(call, plan) if plan.record or plan.flight else None
                if shared is None:
                    reply = self.layers.in_memory(call, plan)
                    if reply is not None:
                        self._accounts.settle(call, reply.status, call.outcome)
                        return reply
                    shared = self._lead(call, plan, next)
                joined = await self.single_flight.join(call, shared)
                if joined is not None:
                    return joined
                # None: its leader failed for a reason of its own, so this call looks again, and may lead then.
        except GatewayError as error:  # a cancelled call is settled by `join`
            self._accounts.settle_failed(call, error)
            raise
        except Exception as defect:
            raise self._accounts.settle_failed(call, defect) from defect

    def _joinable(self, call: Call, plan: ReusePlan) -> SharedAnswer | None:
        """Returns the answer in the making that the call can join. Raises KeyReused, or KeyInUse for one that is closed."""
        if not plan.record:
            return self._shared(call, plan)
        # A call with a record joins only the holder of that record: else its own record would never be completed.
        shared = self.single_flight.get(plan.record)
        if shared is None:
            return None
        if shared.fingerprint != plan.fingerprint:
            raise key_reused(call)
        if not shared.takes_readers:
            raise key_in_use()
        return shared

    def _shared(self, call: Call, plan: ReusePlan) -> SharedAnswer | None:
        """Returns an equal call's answer in the making that comes no later than the call's own would."""
        shared = self.single_flight.get(plan.flight) if plan.flight else None
        if shared is None or not shared.takes_readers or shared.call is call:
            return None
        # A leader in a lower lane may still have to wait behind other calls of that lane.
        if not shared.has_begun and LANES.index(call.request.lane) < LANES.index(shared.call.request.lane):
            return None
        return shared

    # --- leading ---

    def _lead(self, call: Call, plan: ReusePlan, next: Serve) -> SharedAnswer:
        """Starts the call's own answer, in a task of its own."""
        own = SharedAnswer(call, room_of(plan.caching, is_keyed=bool(plan.record)))
        own.fingerprint = plan.fingerprint
        own.keys = (plan.record,) if plan.record else ()
        if plan.record:  # without a record, `_joinable` has looked for an equal call already
            plan.concurrent_leader = self._shared(call, plan)
        if plan.flight and not plan.waits and plan.concurrent_leader is None:
            self._offer(own, plan)
        self.single_flight.start(own, self._run_leader(own, plan, next))
        return own

    def _offer(self, own: SharedAnswer, plan: ReusePlan) -> None:
        """Lets equal calls join: from here on the answer is sure to be a new one."""
        self.single_flight.offer(own, plan.flight)
        note(own.call, "single_flight", "miss")

    async def _run_leader(self, own: SharedAnswer, plan: ReusePlan, next: Serve) -> None:
        """Gets the answer, from a store or the provider, up to its last byte and what is stored of it."""
        call = own.call
        lease: RecordClaim | None = None
        with self.single_flight.leading(own):
            try:
                reply = await self.layers.stored(call, plan)
                if reply is not None:
                    self._accounts.settle(call, reply.status, call.outcome)
                    await self._carry(own, plan, reply)
                    return
                if plan.fence and not self._store.is_local:
                    lease = RecordClaim(self._clock, self._store.records, plan)
                if plan.directives.only_if_cached:
                    raise NotCached("Only a cached answer was asked for (only-if-cached), and there is none.")
                await self._carry(own, plan, await self._origin(own, plan, next))
            finally:
                if lease is not None:
                    lease.end()
                if plan.fence:  # still claimed: nothing was stored under the key, so the next call with it runs
                    self._store.records.release(plan.record, plan.fence)

    async def _origin(self, own: SharedAnswer, plan: ReusePlan, next: Serve) -> Reply:
        """Returns the answer of an equal call that is being answered, else the provider's."""
        call, leader = own.call, plan.concurrent_leader
        plan.concurrent_leader = None
        while plan.flight and plan.flight not in own.keys:
            shared = self._shared(call, plan) or leader
            if shared is None or not shared.takes_readers or shared.error is not None:
                self._offer(own, plan)  # nobody else is asking, so the provider is, and equal calls may join
                break
            leader = None  # the one that was there when this call came in is tried at most once
            reply = await self.single_flight.join(call, shared)
            if reply is not None:
                return reply
        return await self._answer(call, next)

    async def _carry(self, own: SharedAnswer, plan: ReusePlan, reply: Reply) -> None:
        """Passes the answer on to all readers, and stores it."""

        async def keep(reply: Reply, body: bytes) -> None:
            await self.layers.keep(own.call, plan, reply, body)

        await self.single_flight.carry(own, reply, keep, is_recorded=plan.fence > 0)


def room_of(caching: Caching, *, is_keyed: bool) -> int:
    """Returns the bytes of an answer that are worth buffering for late readers, and for the stores."""
    rules = [caching.max_record_bytes] if is_keyed else []
    if caching.exact.requests != "off" or caching.semantic is not None:
        rules.append(caching.exact.max_entry_bytes)
    return max([LEAST_ROOM, *rules])


class RequestedReplays(OutcomeTrail):
    """`Replays` for calls that say by their headers what may be reused."""

    __slots__ = ("_replays",)

    def __init__(self, replays: Replays, note: Callable[[Call], None]) -> None:
        super().__init__(note)
        self._replays = replays

    def read(self, call: Call, headers: Mapping[bytes, bytes]) -> None:
        """Notes what the headers say. Raises InvalidRequest for an `Idempotency-Key` that is none."""
        key, control = read_idempotency_key(headers, call.request.endpoint), headers.get(b"cache-control")
        if key is not None:
            SENT_KEY.put(call, key)
        if control is not None:
            CACHE_CONTROL.put(call, control)

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        return self._replays.serve(call, next)

    def open(self, call: Call, next: Open) -> Awaitable[Opened]:
        return self._replays.open(call, next)


class EqualCalls(OutcomeTrail):
    """`Replays` on routes where nothing is stored: only equal calls that are under way at the same time share an answer."""

    __slots__ = ("_coalesce", "_endpoint", "_replays")

    def __init__(self, replays: Replays, note: Callable[[Call], None], coalesce: Which, endpoint: str) -> None:
        """`coalesce` and the name of the `endpoint` are those of the route."""
        super().__init__(note)
        self._replays = replays
        self._coalesce: Which = coalesce
        self._endpoint = endpoint

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call, which may be that to an equal one."""
        parsed = call.parsed
        if parsed is None or not applies(self._coalesce, self._endpoint, parsed):
            return next(call)
        return self._replays.serve(call, next)


class UnrequestedEqualCalls(EqualCalls):
    """`EqualCalls` for calls that ask for no product: what spares these their provider is known here.

    Most calls of a gateway come by, and are like no other: these have a fixed header instead of the hooks of the trail.
    """

    __slots__ = ("_with_trail",)

    fixed_headers: tuple[tuple[bytes, bytes], ...] = (BYPASS,)
    headers = CallFeature.headers
    closed = CallFeature.closed

    def __init__(self, replays: Replays, note: Callable[[Call], None], coalesce: Which, endpoint: str) -> None:
        super().__init__(replays, note, coalesce, endpoint)
        self._with_trail: tuple[CallRoute, CallRoute] | None = None
        """The route, and the same one with the hooks of the trail."""

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call, which may be that to an equal one."""
        parsed = call.parsed
        if parsed is None or not applies(self._coalesce, self._endpoint, parsed):
            return next(call)
        route = call.route
        if self._with_trail is None or self._with_trail[0] is not route:
            hooks, trail = route.hooks, OutcomeTrail(self._note)
            assert hooks is not None  # noqa: S101  # one of them has called this
            hooks = replace(
                hooks,
                fixed_headers=tuple(header for header in hooks.fixed_headers if header is not BYPASS),
                headers=(*hooks.headers, trail.headers),
                closed=(*hooks.closed, trail.closed),
            )
            self._with_trail = route, replace(route, hooks=hooks)
        call.change_route(self._with_trail[1])
        return self._replays.serve(call, next)


# --- what clients and the call log see of it ---


def outcome_headers(outcome: CacheOutcome, *, is_served: bool) -> Iterator[tuple[bytes, bytes]]:
    """Yields what came of the look for a stored answer, and whose answer it is; `is_served`: a provider was asked."""
    yield b"x-gateway-cache", outcome.result.encode()
    if outcome.key:
        yield b"x-gateway-cache-key", outcome.key.hex().encode()
    if outcome.layer:
        yield b"x-gateway-cache-source", outcome.source.encode()
        # Where an attempt was made, the core itself names its target.
        if outcome.target and not is_served:
            yield b"x-gateway-target", outcome.target.encode()
        if outcome.attempts and not is_served:
            yield b"x-gateway-attempts", outcome.attempts.encode()
    if outcome.similarity is not None:
        yield b"x-gateway-cache-similarity", b"%.4f" % outcome.similarity


def log_fields(outcome: CacheOutcome) -> dict[str, object]:
    """Returns how a call was spared its provider, or not; neither the caller's idempotency key nor that of the answer."""
    saved = outcome.saved
    fields = {
        "cache": outcome.result,
        "cache_layer": outcome.layer or None,
        "saved_tokens": saved.input + saved.output if saved else None,
        "saved_usd": outcome.saved_usd,
        "age_s": _rounded(outcome.age_s, 3),
        "similarity": _rounded(outcome.similarity, 4),
        "source": outcome.source or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _rounded(value: float | None, places: int) -> float | None:
    return None if value is None else round(value, places)
