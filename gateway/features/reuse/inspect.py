"""The operators' view of the caches: purging answers, and explaining how a request would be answered; then the savings,
and the metrics of both.

Off the hot path. The view asks the same layers by the same keys as a call would, and changes nothing but what it is ordered
to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import orjson

from gateway.core.call import Call, CallRecord, CallRoute, Request
from gateway.core.clock import Clock
from gateway.core.errors import InvalidRequest, NotFound
from gateway.core.metrics import Counts, Levels, MetricTable
from gateway.core.ports import result_or_default
from gateway.core.snapshot import Model, PolicySnapshot
from gateway.core.types import Endpoint, Kept
from gateway.drivers.store import Store
from gateway.features.outcome import OUTCOME, CacheOutcome
from gateway.features.reuse.layers import ReusePlan, in_form, mark_served_from, plan_reuse
from gateway.features.reuse.rules import CACHING, ExactRule
from gateway.features.reuse.service import Replays
from gateway.features.reuse.similar import Explained, Neighbour

SAME = "taken for the same"


class CacheInspector:
    """Inspects and purges everything that stores answers."""

    def __init__(self, clock: Clock, policy: Callable[[], PolicySnapshot], store: Store, replays: Replays) -> None:
        self._clock = clock
        self._policy = policy
        self._store = store
        self._replays = replays

    def stats(self) -> Mapping[str, Mapping[str, int]]:
        """Returns entries and bytes by kind."""
        return self._store.stats()

    async def purge(self, key: bytes | None, model: str | None, tenant: str | None) -> int:
        """Removes the answers that match every argument given; idempotency records stay, for they are promised."""
        if self._replays.layers.semantic is not None:
            await self._replays.layers.semantic.forget(key=key, model=model, tenant=tenant)
        return await result_or_default(self._store.answers.forget(key=key, model=model, tenant=tenant), 0)

    async def explain(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> CacheOutcome:
        """Returns what each layer would have for this request now; may cost an embedding of its question.

        Raises NotFound for an unknown model.

        Calls with a credential of their own, or with headers that change the question, have other keys.
        """
        call = self._call(endpoint, body, tenant)
        plan = plan_reuse(call, self._replays.layers.semantic)
        replay = OUTCOME.find(call) or CacheOutcome("bypass")
        if plan is None:
            replay.why.append(f"nothing is kept of such a request, nor shared: {_why_not(call)}")
            return replay
        self._explain_flight(plan, replay)
        if plan.is_kept:
            found = await result_or_default(self._store.answers.get(plan.exact, plan.caching.name), None)
            self._explain_exact(call, found, replay, plan.caching.exact)
        else:
            replay.why.append("exact: no answer is kept of such a request (exact.requests in cache.yaml)")
        if plan.semantic is not None and self._replays.layers.semantic is not None:
            self._explain_meaning(await self._replays.layers.semantic.explain(call, plan.semantic), replay)
        return replay

    def _explain_meaning(self, found: Explained, replay: CacheOutcome) -> None:
        if found.problem is not None:
            replay.why.append(f"semantic: {found.problem}")
            return
        replay.why.append(f"semantic: {found.rows} questions are in its partition {found.partition}")
        for near in found.nearest:
            verdict = _verdict(near, found.threshold)
            replay.why.append(f"semantic: similarity {near.similarity:.4f} to that of {near.key}: {verdict}")
        match = next((one for one in found.nearest if _verdict(one, found.threshold) == SAME), None)
        replay.tried.append(("semantic", "miss" if match is None else "hit"))
        if match is not None and not replay.layer:
            replay.result, replay.layer, replay.similarity = "semantic", "semantic", match.similarity

    def _explain_flight(self, plan: ReusePlan, replay: CacheOutcome) -> None:
        if not plan.flight:
            replay.why.append("single_flight: such a request is not shared (coalesce in cache.yaml)")
            return
        flight = self._replays.single_flight.get(plan.flight)
        replay.tried.append(("single_flight", "miss" if flight is None else "hit"))
        if flight is None:
            replay.why.append("single_flight: nobody asks the same at this moment")
        else:
            replay.result, replay.layer, replay.source = "coalesced", "single_flight", flight.call.request.id
            replay.why.append(f"single_flight: {flight.call.request.id} asks the same at this moment")

    def _explain_exact(self, call: Call, kept: Kept | None, replay: CacheOutcome, rule: ExactRule) -> None:
        wall = self._clock.wall()
        if kept is None:
            replay.tried.append(("exact", "miss"))
            replay.why.append(
                "exact: no answer is kept under this key; it was never asked so, or it has expired or made room"
            )
            return
        age_s = wall - kept.stored_at
        about = f"the answer of {kept.source}, {age_s:.0f} s old"
        if in_form(call, kept) is None:
            replay.tried.append(("exact", "miss"))
            replay.why.append(f"exact: {about}, cannot be put into the form that is asked for")
        elif kept.fresh_until <= wall:
            replay.tried.append(("exact", "stale"))
            replay.why.append(
                f"exact: {about}, is no longer fresh (ttl {rule.ttl_s:g} s); given when nobody can answer"
            )
        else:
            if not replay.layer:
                mark_served_from(call, kept, "exact", "hit", wall)
            replay.why.append(f"exact: {about}, fresh for {kept.fresh_until - wall:.0f} s")

    def _call(self, endpoint: Endpoint, body: dict[str, Any], tenant: str) -> Call:
        policy, name = self._policy(), str(body.get("model", ""))
        now = self._clock.monotonic()
        key = next((key for key in policy.keys.values() if key.tenant == tenant), policy.anonymous)
        request = Request(
            id="explained",
            endpoint=endpoint,
            model_name=name,
            body=_written(body),
            stream=bool(body.get("stream")),
            stream_options=body.get("stream_options"),
            model_span=None,
            headers=[],
            credential=None,
            lane="interactive",
            received_at=now,
            deadline=now,
            deadline_is_callers=False,
            path=endpoint.path,
            tenant=tenant,
        )
        route = CallRoute(policy, key, _model(policy, name), endpoint, has_own_credential=False, is_internal=True)
        return Call(request, route, body)


def _written(body: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        raise InvalidRequest("The request is nested too deeply to be explained.", param="body") from None


def _verdict(near: Neighbour, threshold: float) -> str:
    if near.similarity < threshold:
        return f"below the threshold of {threshold:g}"
    return SAME if near.objection is None else f"they differ in their {near.objection}"


def _model(policy: PolicySnapshot, name: str) -> Model:
    model = policy.find_model(name)
    if model is None:
        raise NotFound(f"The model '{name}' does not exist.", param="model", code="model_not_found")
    return model


def _why_not(call: Call) -> str:
    caching = CACHING.of(call.route.model)
    return f"the set {caching.name!r} of cache.yaml has coalesce: {caching.coalesce}, exact.requests: {caching.exact.requests}"


# --- the savings of reuse: totals since the start, and the results of the last calls that could have been reused ---

PROVIDER = "provider"
"""The layer name for calls that no layer answered, so that the provider was asked."""
MOST_REMEMBERED = 1_000
SHOWN_CHARACTERS = 100
"""The characters kept of a model's name, which the client chooses where the config has a pattern."""

_SHOWN = (
    "result",
    "layer",
    "key",
    "source",
    "target",
    "attempts",
    "age_s",
    "similarity",
    "saved",
    "saved_usd",
    "tried",
    "why",
)
"""The fields kept of a replay: all but the answer that it may hold, which would take much memory a thousand times."""
_STORY_OF = attrgetter(*_SHOWN)


@dataclass(slots=True)
class SavingsRow:
    """The results of one layer for the calls of one model and one key."""

    calls: int = 0
    """The calls that the layer looked up; calls whose caller bypassed it do not count."""
    answered: int = 0
    input: int = 0
    output: int = 0
    usd: float = 0.0
    unpriced: int = 0
    """The answers whose tokens were saved at an unknown price."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """The result of one call that could have been answered without its provider."""

    replay: CacheOutcome
    endpoint: str
    model: str
    key: str
    tenant: str


class Savings:
    """Counts and remembers results. Every method is for the loop's thread.

    It counts what the layers have said of a call and decides nothing. Memory is bounded: totals by the names of the config,
    recollections by `MOST_REMEMBERED`, and no answer is among them. Invariant: every call that was answered is counted once, at
    the layer that did it or at `PROVIDER`.
    """

    __slots__ = ("_last", "_rows")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, SavingsRow]] = {}
        self._last: dict[str, tuple[tuple[Any, ...], str, str, str, str]] = {}

    def note(self, call: Call) -> None:
        """Counts a call that has ended; to be called once, and without effect if nothing of it may be stored or shared."""
        replay = OUTCOME.find(call)
        if replay is None:
            return
        self._remember(call, replay)
        names = call.route.model.name, call.route.key.name
        rows = self._rows.get(names)
        if rows is None:
            rows = self._rows[names] = {}
        layers = set()
        for layer, result in replay.tried:
            if result != "bypass":
                layers.add(layer)
        if replay.layer:
            layers.add(replay.layer)  # a stale answer may come from where nobody was to look at first
        elif call.attempts:
            _row(rows, PROVIDER).answered += 1
        for layer in layers:
            _row(rows, layer).calls += 1
        if replay.layer:
            _add(rows[replay.layer], replay)

    def totals(self) -> Mapping[tuple[str, str, str], SavingsRow]:
        """Returns the rows by layer (or `PROVIDER`), model and key, all named as in the config."""
        return {
            (layer, model, key): tally
            for (model, key), rows in self._rows.items()
            for layer, tally in sorted(rows.items())
        }

    def recall(self, request_id: str) -> Recollection | None:
        """Returns the result of the last call with this id, if it is still remembered."""
        found = self._last.get(request_id)
        if found is None:
            return None
        story, *whose = found
        return Recollection(CacheOutcome(**dict(zip(_SHOWN, story, strict=True))), *whose)

    def _remember(self, call: Call, replay: CacheOutcome) -> None:
        last = self._last
        last.pop(call.request.id, None)
        last[call.request.id] = (
            _STORY_OF(replay),
            call.request.endpoint.name,
            call.request.model_name[:SHOWN_CHARACTERS],
            call.route.key.name,
            call.request.tenant,
        )
        if len(last) > MOST_REMEMBERED:
            del last[next(iter(last))]


def _row(rows: dict[str, SavingsRow], layer: str) -> SavingsRow:
    row = rows.get(layer)
    if row is None:
        row = rows[layer] = SavingsRow()
    return row


def _add(row: SavingsRow, replay: CacheOutcome) -> None:
    row.answered += 1
    saved = replay.saved
    if saved is None:
        return
    row.input += saved.input
    row.output += saved.output
    if replay.saved_usd is None:
        row.unpriced += 1
    else:
        row.usd += replay.saved_usd


class CacheMetrics(MetricTable):
    """The metrics of what layers have said and spared, and of what the store keeps."""

    after = "estimated_usage_total"

    def __init__(self) -> None:
        self.cache = Counts(
            "cache_requests_total",
            "Calls that a layer was asked to spare a provider, by what it said.",
            "layer",
            "result",
        )
        self.saved_tokens = Counts(
            "cache_saved_tokens_total", "Tokens that no provider had to be asked for.", "layer", "model", "kind"
        )
        self.saved_usd = Counts(
            "cache_saved_usd_total", "US dollars that were not spent a second time.", "layer", "model", "key"
        )
        self.cache_entries = Levels("cache_entries", "What the store keeps now.", "kind")
        self.cache_bytes = Levels("cache_bytes", "What that takes, in bytes.", "kind")
        self.records_lost = Counts(
            "records_forgotten_early_total",
            "Answers of calls with an Idempotency-Key that were forgotten before their time for want of room.",
        )

    def count(self, record: CallRecord) -> None:
        """Counts what the layers have said of a call, and what it was spared."""
        replay = OUTCOME.find(record.call)
        if replay is None:
            return
        for outcome in replay.tried:
            self.cache.totals[outcome] += 1
        saved, model = replay.saved, record.call.route.model.name
        if saved is None:
            return
        self.saved_tokens.totals[replay.layer, model, "input"] += saved.input
        self.saved_tokens.totals[replay.layer, model, "output"] += saved.output
        if replay.saved_usd is not None:
            self.saved_usd.totals[replay.layer, model, record.call.route.key.name] += replay.saved_usd

    def set_store(self, stats: Mapping[str, Mapping[str, int]]) -> None:
        """Sets what the store keeps now: entries and bytes of answers, records and vectors."""
        self.cache_entries.values = {(kind,): sizes["entries"] for kind, sizes in stats.items()}
        self.cache_bytes.values = {(kind,): sizes["bytes"] for kind, sizes in stats.items()}
        self.records_lost.totals[()] = stats.get("records", {}).get("early", 0)
