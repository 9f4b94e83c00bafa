"""Which models are slow now, and calls of these that ask for less.

A model is slow when the 95th percentile of the recent times to first byte of one of its own targets is above what its rules
say, and no longer when all are well below that again. It looks about once a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import orjson

from gateway.core.admission.gates import Gates
from gateway.core.call import Call, CallFeature, CallRecord, CallRoute, Headers, Reply, Serve, Slot
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


class SlowModels:
    """The product: watches the models whose calls may be degraded."""

    name = "degrade"
    options: frozenset[bytes] = frozenset()
    absent_headers: tuple[tuple[bytes, bytes], ...] = ()

    def __init__(self, clock: Clock, gates: Gates) -> None:
        self._clock = clock
        self._gates = gates
        self.metrics = DegradeMetrics()
        self._seen: dict[str, _Seen] = {}
        """By model; as many as the config has had."""

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns its feature for the calls of models that have rules."""
        rules = DEGRADE.of(route.model)
        if rules is None or route.endpoint.request != "json":
            return None
        seen = self._seen.setdefault(route.model.name, _Seen())
        return CallsOfModel(rules, seen, self._clock, self._gates, self.metrics)


@dataclass(slots=True)
class _Seen:
    """What was last seen of a model."""

    is_slow: bool = False
    until: float = 0.0
    """When to look again."""


class CallsOfModel(CallFeature):
    """Has the calls of one model ask for less while the model is slow."""

    __slots__ = ("_clock", "_gates", "_metrics", "_rules", "_seen")

    def __init__(self, rules: LatencyRules, seen: _Seen, clock: Clock, gates: Gates, metrics: DegradeMetrics) -> None:
        self._rules = rules
        self._seen = seen
        self._clock = clock
        self._gates = gates
        self._metrics = metrics

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call, which asks its provider for less while its model is slow."""
        seen, now = self._seen, self._clock.monotonic()
        if now >= seen.until:
            seen.is_slow, seen.until = self._look(call, now), now + LOOK_AGAIN_S
        if not seen.is_slow or call.request.large is not None:
            return next(call)
        return self._serve_for_less(call, next)

    async def _serve_for_less(self, call: Call, next: Serve) -> Reply:
        parsed = orjson.loads(call.request.body) if call.parsed is None else call.parsed
        degraded = degraded_request(
            call.request.endpoint.name, call.request.body, parsed, call.request.max_tokens, self._rules
        )
        if degraded is None:  # it asks for no more than that
            return await next(call)
        DEGRADED.put(call, degraded)
        as_it_came = call.request, call.parsed
        call.replace_request(replace(call.request, body=degraded.body, max_tokens=degraded.max_tokens))
        try:
            reply = await next(call)
        except GatewayError:
            call.replace_request(*as_it_came)  # it may become a job, which asks for all of it
            raise
        reply.shared.append(_header(degraded))  # whoever shares the answer has asked for more, too
        return reply

    def headers(self, call: Call, headers: Headers) -> None:
        """Appends the fields that were lowered."""
        if call.slots is not None and (degraded := DEGRADED.find(call)) is not None:
            headers.append(_header(degraded))

    def closed(self, record: CallRecord) -> Mapping[str, object] | None:
        """Counts a call that asked for less; returns the fields that were lowered."""
        if record.call.slots is None or (degraded := DEGRADED.find(record.call)) is None:
            return None
        self._metrics.degraded.totals[(record.call.route.model.name,)] += 1
        return {"degraded": list(degraded.fields)}

    def _look(self, call: Call, now: float) -> bool:
        """Returns whether the model is slow now."""
        above_s = self._rules.first_byte_p95_above_s * (ENDS_BELOW if self._seen.is_slow else 1.0)
        return any(self._p95_s(call, at, now) > above_s for at in range(len(call.route.model.targets)))

    def _p95_s(self, call: Call, at: int, now: float) -> float:
        """Returns the percentile of one of the model's own targets; 0.0: too few, or none of late."""
        latency = self._gates.line(call.route.model.targets[at], call).gate.health.latency
        if now - latency.last_seen_at > RECENT_S:
            return 0.0
        return latency.quantile(0.95) or 0.0


def _header(degraded: DegradedRequest) -> tuple[bytes, bytes]:
    return b"x-gateway-degraded", ", ".join(degraded.fields).encode()
