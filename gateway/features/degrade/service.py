"""Which models are slow now, and calls of these that ask for less.

A model is slow when the 95th percentile of the recent times to first byte of one of its own targets is above what its rules
say, and no longer when all are well below that again. It looks about once a second.
"""

from __future__ import annotations

from collections.abc import Awaitable

import orjson

from gateway.core.admission.gates import Gates
from gateway.core.call import Call, CallFeature, Reply, RouteFacts, Serve
from gateway.core.clock import Clock
from gateway.features.degrade.rules import DEGRADE, LatencyRules, lowered

LOOK_AGAIN_S = 1.0
RECENT_S = 300.0
"""Older times than these tell nothing of now."""
ENDS_BELOW = 0.8
"""The part of the bound below which a model is slow no more: above it, a model that was slow is slow yet, so that calls do not
change back and forth.
"""


class SlowModels(CallFeature):
    """Watches the models whose calls may be degraded, and has these calls ask for less while their model is slow."""

    __slots__ = ("_clock", "_gates", "_seen")

    options: frozenset[bytes] = frozenset()

    def __init__(self, clock: Clock, gates: Gates) -> None:
        self._clock = clock
        self._gates = gates
        self._seen: dict[str, tuple[float, bool]] = {}
        """By model, when to look again, and whether it is slow; as many as the config has."""

    def for_route(self, facts: RouteFacts, asked: frozenset[bytes]) -> CallFeature | None:
        """Returns itself for the calls of models that have rules."""
        return None if DEGRADE.of(facts.model) is None else self

    def serve(self, call: Call, next: Serve) -> Awaitable[Reply]:
        """Returns the reply to the call, which may ask its provider for less."""
        rules = DEGRADE.of(call.model)
        if rules is not None:
            self._degrade(call, rules)
        return next(call)

    def _degrade(self, call: Call, rules: LatencyRules) -> None:
        """Has the call ask its provider for less, if its model is slow; its body stays as its caller sent it."""
        if call.large is not None or call.endpoint.request != "json" or not self._is_slow(call, rules):
            return
        parsed = orjson.loads(call.body) if call.parsed is None else call.parsed
        found = lowered(call.endpoint.name, call.body, parsed, call.max_tokens, rules)
        if found is not None:
            call.lowered = found
            call.max_tokens = found.max_tokens

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
