"""The layers that may answer a call in place of a provider, from top to bottom in the order in which they are asked.

    record    the answer that the call's `Idempotency-Key` has already got; else the call claims the key
    exact     a stored answer to an equal request; one past its time is set aside, in case the provider fails
    semantic  a stored answer to a question that means the same

And, in `keep`, what each layer stores of a new answer. In order: the plan of a call, the layers, and stored entries as
replies. How calls share an answer that is in the making is `single_flight`'s.
Invariants: nothing incomplete is stored; a store in trouble makes calls dearer, and never fails one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from hashlib import sha256

from gateway.core.answers import wants_usage
from gateway.core.call import FALLBACK_ANSWER, INVALID_ANSWER, VARIANT, Call, Reply, deciding_attempt
from gateway.core.clock import Clock
from gateway.core.ledger import answer_headers, note_outcome
from gateway.core.openai.sse import split_events
from gateway.core.ports import Later, result_or_default
from gateway.core.types import Kept
from gateway.dialects.conversion import as_stream, as_whole, ends_well, with_usage, without_usage
from gateway.drivers.store import LONGEST_POLL_S, POLL_S, Claim, RecordToClaim, Store, claimed
from gateway.features.identity import IDEMPOTENT, SENT_KEY, KeyInUse, KeyReused, digest, fingerprint, record_key
from gateway.features.outcome import OF_THE_ANSWER, OUTCOME, CacheOutcome, is_stream, is_success, is_terminal
from gateway.features.reuse.keys import (
    ANYTHING,
    CACHE_CONTROL,
    Directives,
    age_headers,
    exact_key,
    flight_key,
    read_directives,
    serves,
)
from gateway.features.reuse.rules import CACHING, CONVERTIBLE, Caching, applies, is_deterministic
from gateway.features.reuse.similar import SemanticLayer, SemanticQuery
from gateway.features.single_flight import SharedAnswer

# --- the plan of a call: what of it may be stored or shared, and under which keys ---


@dataclass(slots=True)
class ReusePlan(RecordToClaim):
    """The parts of a call that may be stored or shared, each with its key; an empty key: that layer is not used."""

    caching: Caching
    directives: Directives
    body: bytes = b""
    """The body of which the keys are made."""
    exact: bytes = b""
    """The key of an exact answer; it also names the call where only answers in the making are shared."""
    flight: bytes = b""
    is_kept: bool = False
    """The answer may be given to equal requests later."""
    found: Later[Kept | None] | None = None
    """The store's answer for the exact key, once it has been asked."""
    semantic: SemanticQuery | None = None
    """The question, if answers to questions that mean the same may be given."""
    concurrent_leader: SharedAnswer | None = None
    """The equal call's answer in the making when the call came in; it may be complete when the stores have answered."""

    @property
    def waits(self) -> bool:
        """Returns whether a layer may still give an old answer, or none, which equal calls need not accept."""
        is_open = bool(self.record) and (not self.fence or self.is_kept)
        return is_open or self.found is not None or self.semantic is not None or self.directives.only_if_cached


def plan_reuse(call: Call, semantic: SemanticLayer | None) -> ReusePlan | None:
    """Returns what may be stored or shared of the call; None: nothing. `semantic`: None: there is no semantic cache.

    This is decided once, when the call comes in, from the policy, the headers and the body. Most calls have nothing to reuse,
    and that is found out in a microsecond.
    """
    parsed, caching = call.parsed, CACHING.of(call.route.model)
    if call.request.endpoint.request == "any":
        return None
    key = control = None
    if call.slots is not None:
        key, control = SENT_KEY.find(call), CACHE_CONTROL.find(call)
    asks_for_nothing = key is None and control is None
    if asks_for_nothing and caching.exact.requests == "off" and (semantic is None or caching.semantic is None):
        # Only single flight is left, which the policy may exclude for this call, too.
        if parsed is None or caching.coalesce == "off":
            return None
        if caching.coalesce == "deterministic" and not is_deterministic(call.request.endpoint.name, parsed):
            return None
    is_keyed = key is not None and caching.keep_s > 0
    is_shared = is_kept = means = False
    if parsed is not None:
        name = call.request.endpoint.name
        is_shared = applies(caching.coalesce, name, parsed)
        is_kept = applies(caching.exact.requests, name, parsed)
        means = semantic is not None and caching.semantic is not None and applies("always", name, parsed)
    directives = ANYTHING if control is None else read_directives(control)
    if not (is_keyed or is_shared or is_kept or means or directives.only_if_cached):
        return None
    plan = ReusePlan(caching, directives, call.request.body, is_kept=is_kept, lease_s=caching.lease_s)
    if parsed is not None and (is_shared or is_kept or means):
        plan.exact = exact_key(call, parsed, caching)
        variant = VARIANT.find(call)
        if variant is not None:
            plan.exact = digest(plan.exact, variant)
        if means and variant is None and semantic is not None:
            plan.semantic = semantic.query_of(call, parsed)
        if is_shared and not plan.directives.no_cache:
            plan.flight = flight_key(call, parsed, plan.exact)
    if is_keyed and key is not None:
        plan.record = record_key(call, key)
        plan.fingerprint = fingerprint(call)
    is_looked_up = is_kept or plan.semantic is not None
    result = "miss" if is_keyed or is_looked_up else "bypass"
    OUTCOME.put(call, CacheOutcome(result, key=plan.exact if is_looked_up else b""))
    return plan


# --- the layers ---

NO_BETTER_ANSWER = frozenset((408, 429, *range(500, 600)))
"""The statuses in place of which a stale answer is given (RFC 5861, 4, and the other temporary errors of providers)."""
CLOCK_S = 60.0
"""An answer that seems to be stored this far in the future, in seconds, is still taken for a new one."""


class ReuseLayers:
    """Looks calls up in the layers, and stores their answers. One per process; holds no state of any call."""

    __slots__ = ("_clock", "_forms", "_store", "semantic")

    def __init__(self, clock: Clock, store: Store) -> None:
        """`clock` is the one by which stored answers grow old."""
        self._clock = clock
        self._store = store
        self._forms = Forms()
        self.semantic: SemanticLayer | None = None
        """The semantic cache; None: there is none."""

    def in_memory(self, call: Call, plan: ReusePlan) -> Reply | None:
        """Returns the answer that a layer has in this process's own memory, without an await. Raises KeyReused."""
        store = self._store
        if plan.record and store.is_local:
            claim = store.records.claim(plan.record, plan.fingerprint, plan.lease_s)
            if isinstance(claim, Claim):
                reply = self._record(call, self._claimed(call, plan, claim))
                if reply is not None:
                    return reply
        # A call with a record goes on in a task of its own, which looks further: it has to complete the record.
        if not plan.is_kept or plan.record or plan.directives.no_cache:
            return None
        plan.found = store.answers.get(plan.exact, plan.caching.name)
        return None if isinstance(plan.found, asyncio.Future) else self._exact(call, plan, plan.found)

    async def stored(self, call: Call, plan: ReusePlan) -> Reply | None:
        """Returns the answer of the first layer that has one, from those that have to be waited for.

        Raises KeyReused, or KeyInUse for a record whose holder has no answer before the call's deadline.
        """
        if plan.record and not plan.fence:
            reply = self._record(call, await self._claim(call, plan))
            if reply is not None:
                return reply
        if plan.directives.no_cache:
            return None
        if plan.found is None and plan.record and plan.is_kept:
            plan.found = self._store.answers.get(plan.exact, plan.caching.name)
        if plan.found is not None:
            reply = self._exact(call, plan, await result_or_default(plan.found, None))
            if reply is not None:
                return reply
        return None if plan.semantic is None else await self._similar(call, plan, plan.semantic)

    def is_stale_better(self, call: Call, status: int) -> bool:
        """Returns whether a stale answer was set aside for the call that is better than an error with this status."""
        return FALLBACK_ANSWER.find(call) is not None and status in NO_BETTER_ANSWER

    def stale_reply(self, call: Call, status: int) -> Reply | None:
        """Returns the stale answer that was set aside for the call, if it is better than an error with this status."""
        replay = OUTCOME.find(call)
        if replay is None or replay.stale is None or status not in NO_BETTER_ANSWER:
            return None
        return self._replayed(call, replay.stale, "exact", "stale")

    # --- record ---

    async def _claim(self, call: Call, plan: ReusePlan) -> Kept | None:
        """Returns the record's answer, or None with the claim noted; waits while another process holds the record."""
        began_at = self._clock.monotonic()
        while True:
            claim = await claimed(self._store.records, plan)
            kept = self._claimed(call, plan, claim)
            if kept is not None or claim.state != "running":
                return kept
            now = self._clock.monotonic()
            if now >= call.request.deadline:
                raise key_in_use()
            pause_s = min(max(POLL_S, (now - began_at) / 2), LONGEST_POLL_S, claim.lease_left_s)
            await self._clock.sleep(max(0.001, pause_s))

    def _claimed(self, call: Call, plan: ReusePlan, claim: Claim) -> Kept | None:
        """Returns the record's answer; without one, notes the claim, if it was granted. Raises KeyReused."""
        if claim.state == "mismatch":
            raise key_reused(call)
        if claim.state == "claimed":
            plan.fence = claim.fence
            note(call, "idempotency", "miss")
        return claim.kept

    def _record(self, call: Call, kept: Kept | None) -> Reply | None:
        return None if kept is None else self._replayed(call, kept, "idempotency", "hit")

    # --- exact ---

    def _exact(self, call: Call, plan: ReusePlan, kept: Kept | None) -> Reply | None:
        """Returns the reply made of an exact answer, if it is fresh enough; a stale one is set aside on the call."""
        plan.found = None
        if kept is not None:
            rule, age_s = plan.caching.exact, self._clock.wall() - kept.stored_at
            fresh_s = min(kept.fresh_until - kept.stored_at, rule.ttl_s) - age_s
            if age_s < -CLOCK_S:
                pass  # it was stored by a clock that was ahead, so its age is unknown
            elif serves(plan.directives, max(0.0, age_s), fresh_s):
                reply = self._replayed(call, kept, "exact", "hit")
                if reply is not None:
                    return reply
            elif (replay := OUTCOME.find(call)) is not None and fresh_s + rule.stale_if_error_s > 0:
                replay.stale = kept
                FALLBACK_ANSWER.put(call, True)
        note(call, "exact", "miss")
        return None

    # --- semantic ---

    async def _similar(self, call: Call, plan: ReusePlan, query: SemanticQuery) -> Reply | None:
        """Returns the answer to a question that means the same."""
        match = None if self.semantic is None else await self.semantic.find(call, query)
        replay = OUTCOME.find(call)
        if match is not None and self.semantic is not None and replay is not None:
            kept = await result_or_default(self._store.answers.get(match.key, plan.caching.name), None)
            if kept is None:
                self.semantic.lost(match)
            elif self._is_young(plan, kept, query.rule.ttl_s):
                replay.similarity, replay.key = match.similarity, match.key
                reply = self._replayed(call, kept, "semantic", "semantic")
                if reply is not None:
                    return reply
                replay.similarity, replay.key = None, plan.exact
        note(call, "semantic", "miss")
        return None

    def _is_young(self, plan: ReusePlan, kept: Kept, ttl_s: float) -> bool:
        age_s = self._clock.wall() - kept.stored_at
        return age_s >= -CLOCK_S and serves(plan.directives, max(0.0, age_s), ttl_s - age_s)

    # --- the reply ---

    def _replayed(self, call: Call, kept: Kept, layer: str, result: str) -> Reply | None:
        """Returns the stored answer as a reply; None if it cannot be converted to the form that the call asks for."""
        body = self._forms.body(call, kept)
        if body is None:  # a lower layer may have it in another form
            return None
        mark_served_from(call, kept, layer, result, self._clock.wall())
        note_outcome(call, kept.outcome)
        shared = replay_headers(call, kept)
        headers = [*shared, *answer_headers(call, self._clock.monotonic())]
        pace_s = CACHING.of(call.route.model).exact.pace_s
        reply = Reply(kept.status, headers, body, shared=shared)
        if pace_s and call.request.stream and is_stream(shared):
            reply.chunks, reply.body = self._paced(body, pace_s), b""
        return reply

    async def _paced(self, frames: bytes, pace_s: float) -> AsyncGenerator[bytes, None]:
        for event in split_events(frames):
            await self._clock.sleep(pace_s)
            yield event

    # --- storing ---

    async def keep(self, call: Call, plan: ReusePlan, reply: Reply, body: bytes) -> None:
        """Stores a complete answer in each layer that may give it again."""
        replay = OUTCOME.find(call)
        if replay is not None and replay.result == "stale":
            return
        if INVALID_ANSWER.find(call):
            return
        wall = self._clock.wall()
        if plan.fence and is_terminal(call, reply.status) and len(body) <= plan.caching.max_record_bytes:
            record = keep_answer(call, reply, body, wall)
            record.fresh_until = record.stale_until = wall + plan.caching.keep_s
            await result_or_default(self._store.records.complete(plan.record, plan.fence, record), False)
            plan.fence = 0
        is_new = replay is None or not replay.layer  # an answer that came from a layer is stored already
        if is_new and not plan.directives.no_store and len(body) <= plan.caching.exact.max_entry_bytes:
            self._keep_answer(call, plan, reply, body)

    def _keep_answer(self, call: Call, plan: ReusePlan, reply: Reply, body: bytes) -> None:
        """Stores an answer for equal requests, and for questions that mean the same."""
        query = plan.semantic
        if not (plan.is_kept or query is not None) or not is_worth_keeping(call, plan, reply, body):
            return
        wall, rule = self._clock.wall(), plan.caching.exact
        kept = keep_answer(call, reply, body, wall)
        kept.group = plan.caching.name
        kept.fresh_until = wall + (rule.ttl_s if plan.is_kept or query is None else query.rule.ttl_s)
        kept.stale_until = kept.fresh_until + rule.stale_if_error_s
        if query is not None:
            kept.stale_until = max(kept.stale_until, wall + query.rule.ttl_s)
        self._store.answers.put(plan.exact, kept)
        if query is not None and self.semantic is not None:
            self.semantic.keep(call, query, plan.exact)


def note(call: Call, layer: str, result: str) -> None:
    """Notes on the call what a layer had for it."""
    replay = OUTCOME.find(call)
    if replay is not None:
        replay.tried.append((layer, result))


def key_reused(call: Call) -> KeyReused:
    """Returns the error for a key that another request has used, and notes it on the call."""
    note(call, "idempotency", "mismatch")
    return KeyReused(
        "This Idempotency-Key was used for another request; use a new key for each request, and the same one to repeat it.",
        param="Idempotency-Key",
    )


def key_in_use() -> KeyInUse:
    """Returns the error for a key whose request is still running."""
    return KeyInUse(
        "A request with this Idempotency-Key is still running; repeat it later to get its answer.",
        param="Idempotency-Key",
    )


# --- stored entries made of answers, and replies of stored entries, in the form that a call asks for ---

EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
JSON = (b"content-type", b"application/json")
MOST_BYTES = 16 * 1024 * 1024
OVERHEAD_BYTES = 300
SMALL_BYTES = 2048
"""A body below this size is converted anew, because that is faster than to look it up."""

Form = tuple[bytes, str, bool, bool]


def is_worth_keeping(call: Call, plan: ReusePlan, reply: Reply, body: bytes) -> bool:
    """Returns whether other calls may get the answer: a complete one that is marked as complete itself."""
    if call.request.body is not plan.body:  # a feature has changed what was asked for: it is no answer to the question
        return False
    return is_success(call, reply.status) and ends_well(call.request.endpoint.name, is_stream(reply.shared), body)


def keep_answer(call: Call, reply: Reply, body: bytes, wall: float) -> Kept:
    """Returns the stored form of an answer; the caller sets for how long.

    Invariant: only complete answers are stored, an error only if it would be the same again.
    """
    last = deciding_attempt(call)
    replay = OUTCOME.find(call) or CacheOutcome()
    return Kept(
        status=reply.status,
        headers=[header for header in reply.shared if header[0] in OF_THE_ANSWER],
        body=body,
        is_stream=is_stream(reply.shared),
        endpoint=call.request.endpoint.name,
        model=call.request.model_name,
        tenant=call.request.tenant,
        group="",
        source=call.request.id,
        target=last.target.name if last is not None else replay.target,
        stored_at=wall,
        fresh_until=wall,
        stale_until=wall,
        outcome=str(call.outcome),
        usage=call.usage or replay.saved,
        cost_usd=last.cost_usd if last is not None else replay.saved_usd,
        includes_usage=wants_usage(call),
        usage_event=last.usage_event if last is not None else b"",
    )


def in_form(call: Call, kept: Kept) -> bytes | None:
    """Returns the stored body in the form that the call asks for; None: it cannot be converted.

    A body is given byte for byte as the first client got it, unless the call asks for another form of it.
    """
    if _has_one_form(kept):
        return kept.body
    if not call.request.stream:
        return as_whole(kept.endpoint, kept.body, kept.usage_event) if kept.is_stream else kept.body
    wants = wants_usage(call)
    if not kept.is_stream:
        return as_stream(kept.endpoint, kept.body, include_usage=wants)
    if wants == kept.includes_usage:
        return kept.body
    if not wants:
        return without_usage(kept.body)
    return with_usage(kept.body, kept.usage_event) if kept.usage_event else kept.body


class Forms:
    """The forms of stored answers that were converted lately: to convert a long stream takes milliseconds.

    Two bodies share a form only if they are equal byte for byte; the least recently used forms go first.

    Invariant: the converted forms held in memory are bounded by bytes.
    """

    __slots__ = ("_bytes", "_made", "_most")

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._made: OrderedDict[Form, bytes | None] = OrderedDict()
        self._bytes = 0

    def body(self, call: Call, kept: Kept) -> bytes | None:
        """Returns the stored body in the form that the call asks for; None: it cannot be converted."""
        if not (call.request.stream or kept.is_stream):
            return kept.body  # the usual case
        if len(kept.body) < SMALL_BYTES or (
            kept.is_stream == call.request.stream and kept.includes_usage == wants_usage(call)
        ):
            return in_form(call, kept)
        form = sha256(kept.body + kept.usage_event).digest(), kept.endpoint, call.request.stream, wants_usage(call)
        if form in self._made:
            self._made.move_to_end(form)
            return self._made[form]
        made = in_form(call, kept)
        if made is not kept.body:
            self._hold(form, made)
        return made

    def _hold(self, form: Form, made: bytes | None) -> None:
        """Holds the form; also None, because to find out that a body cannot be converted takes as long."""
        self._made[form] = made
        self._bytes += _size(made)
        while self._bytes > self._most:
            _, gone = self._made.popitem(last=False)
            self._bytes -= _size(gone)


def _size(made: bytes | None) -> int:
    return OVERHEAD_BYTES + len(made or b"")


def replay_headers(call: Call, kept: Kept) -> list[tuple[bytes, bytes]]:
    """Returns those headers of a stored answer that are not about this one call."""
    if kept.is_stream == call.request.stream or _has_one_form(kept):
        headers = list(kept.headers)
    else:
        headers = [header for header in kept.headers if header[0] != b"content-type"]
        headers.append(EVENT_STREAM if call.request.stream else JSON)
    replay = OUTCOME.find(call)
    if replay is not None and replay.layer == "idempotency":
        headers.append(IDEMPOTENT)
    elif replay is not None and replay.age_s is not None:
        headers += age_headers(replay.age_s, replay.fresh_s or 0.0)
    return headers


def mark_served_from(call: Call, kept: Kept, layer: str, result: str, wall: float) -> None:
    """Notes on the call that it gets this stored answer."""
    replay = OUTCOME.find(call) or OUTCOME.put(call, CacheOutcome())
    replay.layer, replay.result = layer, result
    replay.source, replay.target = kept.source, kept.target
    replay.age_s = max(0.0, wall - kept.stored_at)
    replay.fresh_s = kept.fresh_until - wall
    replay.saved, replay.saved_usd = kept.usage, kept.cost_usd
    replay.tried.append((layer, result if result == "stale" else "hit"))


def _has_one_form(kept: Kept) -> bool:
    """Returns whether only calls for this very form find the answer: those with its key, or at endpoints with one form."""
    return not kept.group or kept.endpoint not in CONVERTIBLE
