"""What each key may use, whatever target serves it. A key over its own limit is told so: that 429 is the operator's wish.

It must not know targets. Invariant: what a call took is corrected exactly once, when the call has ended.
"""

from __future__ import annotations

from math import inf

from gateway.call import Call, Usage
from gateway.errors import KeyRateLimited
from gateway.policy.limits import Cost, LimitSet
from gateway.policy.snapshot import Limits, PolicySnapshot

FIRST_OUTPUT_TOKENS = 512
"""What is taken for an answer of which nobody knows how long it will be."""


class KeyLimits:
    """The levels of all keys that have limits, by the key's name; they survive a reload."""

    __slots__ = ("sets",)

    def __init__(self) -> None:
        self.sets: dict[str, LimitSet] = {}

    def install(self, policy: PolicySnapshot, now: float) -> None:
        """Puts a policy's numbers in force."""
        limited = {key.name: key.limits for key in policy.keys.values() if key.limits != Limits()}
        for name in [name for name in self.sets if name not in limited]:
            del self.sets[name]
        for name, limits in limited.items():
            known = self.sets.get(name)
            if known is None:
                self.sets[name] = LimitSet(limits, now)
            else:
                known.configure(limits, now)

    def enter(self, call: Call, estimate: int, now: float) -> None:
        """Takes what the call is expected to use. Raises KeyRateLimited."""
        limits = self.sets[call.key.name]
        expected = FIRST_OUTPUT_TOKENS if call.max_tokens is None else min(call.max_tokens, FIRST_OUTPUT_TOKENS)
        output = expected if call.endpoint.tokens == "both" else 0
        cost = limits.shrink(Cost(1, estimate, output), inf)
        wait_s = limits.reserve(cost, now)
        if wait_s == 0.0:
            call.key_cost = cost
            call.key_cost_at = now
            return
        name = limits.which(cost, now)
        raise KeyRateLimited(
            f"The key '{call.key.name}' has reached its own limit, {name}; slow down, or have it raised in the config.",
            retry_after_s=1.0 if wait_s is None else wait_s,
            limit=f"{call.key.name} {name}",
        )

    def settle(self, call: Call, usage: Usage | None, now: float) -> None:
        """Corrects what the call took to what it used."""
        cost, call.key_cost = call.key_cost, None
        limits = self.sets.get(call.key.name)
        if cost is not None and limits is not None:
            actual = Cost(1, 0, 0) if usage is None else Cost(1, usage.input, usage.output)
            limits.settle(cost, actual, now, call.key_cost_at)
