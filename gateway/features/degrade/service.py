"""Which models are slow now, and calls of these that ask for less.

A model is slow when the 95th percentile of the recent times to first byte of one of its own targets is above what its rules
say, and no longer when all are well below that again. It looks about once a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson

from gateway.core.admission.gates import Gates
from gateway.core.call import Call, CallFeature, CallRecord, Headers, Reply, RouteFacts, Serve, Slot
from gateway.core.clock import Clock
from gateway.core.errors import GatewayError
from gateway.core.metrics import Counts, MetricTable
from gateway.features.degrade.rules import DEGRADE, DegradedRequest, LatencyRules, degraded_request

DEGRADED: Final[Slot[DegradedRequest]] = Slot("degraded")
LOOK_AGAIN_S = 1.0
RECENT_S = 300.0
"""Older times than these tell nothing of now."""
ENDS_BELOW = 0.8
"""The part of the bound below which a model is slow no more: above it, a model that was slow is slow yet, so that calls do not
change back and forth.
"""


class DegradeMetrics(MetricTable):
    """The metric of degraded calls."""

    after = "lossy_fields_total"

    def __init__(self) -> None:
        self.degraded = Counts(
            "degraded_calls_total", "Calls that asked for less because their model was slow.", "model"
        )


class SlowModels(CallFeature):
    """Watches the models whose calls may be degraded, and has these calls ask for less while their model is slow."""

    __slots__ = ("_clock", "_gates", "_metrics", "_seen")

    name = "degrade"
    options: frozenset[bytes] = frozenset()

    def __init__(self, clock: Clock, gates: Gates, metrics: DegradeMetrics) -> None:
        self._clock = clock
        self._gates = gates
        self._metrics = metrics
        self._seen: dict[str, tuple[float, bool]] = {}
        """By model, when to look again, and whether it is slow; as many as the config has."""

    def for_route(self, facts: RouteFacts, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for the calls of models that have rules."""
        return None if DEGRADE.of(facts.model) is None else self

    async def serve(self, call: Call, next: Serve) -> Reply:
        """Returns the reply to the call, which asks its provider for less while its model is slow."""
        rules = DEGRADE.of(call.model)
        degraded = None if rules is None else self._degraded(call, rules)
        if degraded is None:
            return await next(call)
        DEGRADED.put(call, degraded)
        as_it_came = call.body, call.parsed, call.max_tokens
        call.body, call.parsed, call.max_tokens = degraded.body, None, degraded.max_tokens
        try:
            reply = await next(call)
        except GatewayError:
            call.body, call.parsed, call.max_tokens = as_it_came  # it may become a job, which asks for all of it
            raise
        reply.shared.append(_header(degraded))  # whoever shares the answer has asked for more, too
        return reply

    def headers(self, call: Call, headers: Headers) -> None:
        """Appends the fields that were lowered."""
        degraded = DEGRADED.find(call)
        if degraded is not None:
            headers.append(_header(degraded))

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        """Counts a call that asked for less; returns the fields that were lowered."""
        degraded = DEGRADED.find(record.call)
        if degraded is None:
            return None
        self._metrics.degraded.totals[(record.call.model.name,)] += 1
        return {"degraded": list(degraded.fields)}

    def _degraded(self, call: Call, rules: LatencyRules) -> DegradedRequest | None:
        """Returns the request with its fields lowered; None: its model is fast enough, or it asks for no more than that."""
        if call.large is not None or call.endpoint.request != "json" or not self._is_slow(call, rules):
            return None
        parsed = orjson.loads(call.body) if call.parsed is None else call.parsed
        return degraded_request(call.endpoint.name, call.body, parsed, call.max_tokens, rules)

    def _is_slow(self, call: Call, rules: LatencyRules) -> bool:
        now = self._clock.monotonic()
        name = call.model.name
        look_at, was_slow = self._seen.get(name, (0.0, False))
        if now < look_at:
            return was_slow
        above_s = rules.first_byte_p95_above_s * (ENDS_BELOW if was_slow else 1.0)
        is_slow = any(self._p95_s(call, at, now) > above_s for at in range(len(call.model.targets)))
        self._seen[name] = now + LOOK_AGAIN_S, is_slow
        return is_slow

    def _p95_s(self, call: Call, at: int, now: float) -> float:
        """Returns the percentile of one of the model's own targets; 0.0: too few, or none of late."""
        latency = self._gates.line(call.model.targets[at], call).gate.health.latency
        if now - latency.last_seen_at > RECENT_S:
            return 0.0
        return latency.quantile(0.95) or 0.0


def _header(degraded: DegradedRequest) -> tuple[bytes, bytes]:
    return b"x-gateway-degraded", ", ".join(degraded.fields).encode()
