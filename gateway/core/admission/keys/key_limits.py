"""What each key may use, whatever target serves it. A key over its own limit is told so: that 429 is the operator's wish.

It must not know targets. Invariant: what a call took is corrected exactly once, when the call has ended.
"""

from __future__ import annotations

from math import inf
from typing import NoReturn

from gateway.core.call import Call
from gateway.core.clock import Clock
from gateway.core.errors import KeyRateLimited
from gateway.core.limits.estimate.cost import Cost
from gateway.core.limits.table.limit_table.limit_set import LimitSet
from gateway.core.limits.table.rules import Limits
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot
from gateway.core.types.words import Usage
from gateway.fleet.leases.leases import Sharing

FETCH_S = 0.05
"""The seconds for which other replicas are asked for more; one round trip in any case."""
FIRST_OUTPUT_TOKENS = 512
"""The tokens that are taken for an answer of which nobody knows how long it will be."""


class KeyLimits:
    """The levels of all keys that have limits, by the key's name; they survive a reload."""

    __slots__ = ("_sharing", "sets")

    def __init__(self, sharing: Sharing | None = None) -> None:
        """With `sharing` replicas share them."""
        self._sharing = sharing
        self.sets: dict[str, LimitSet] = {}

    def install(self, policy: PolicySnapshot, now: float) -> None:
        """Puts a policy's numbers in force."""
        limited = {key.name: key.limits for key in policy.keys.values() if key.limits != Limits()}
        for name in [name for name in self.sets if name not in limited]:
            self.sets.pop(name).table.retire()
        for name, limits in limited.items():
            known = self.sets.get(name)
            if known is None:
                share_out = None if self._sharing is None else self._sharing.of_key(name)
                self.sets[name] = LimitSet(limits, now, share_out=share_out)
            else:
                known.table.configure(limits, now)

    def cost_of(self, call: Call, estimate: int) -> Cost:
        """Returns what the call is expected to use."""
        expected = FIRST_OUTPUT_TOKENS if call.max_tokens is None else min(call.max_tokens, FIRST_OUTPUT_TOKENS)
        output = expected if call.endpoint.tokens == "both" else 0
        return self.sets[call.key.name].shrink(Cost(1, estimate, output), inf)

    def try_enter(self, call: Call, cost: Cost, now: float) -> bool:
        """Takes what the call is expected to use, if it is there."""
        if self.sets[call.key.name].reserve(cost, now) != 0.0:
            return False
        call.key_cost = cost
        call.key_cost_at = now
        return True

    async def fetch(self, call: Call, cost: Cost, clock: Clock) -> bool:
        """Asks the other replicas' store for what the key lacks here, and take that; False: there is no more for it now.

        A part of the limit that is not held here is no reason to refuse anybody.
        """
        sharing, ends_at = self._sharing, clock.monotonic() + FETCH_S
        while sharing is not None and clock.monotonic() < ends_at:
            has_asked = await sharing.fetch(call.key.name, cost, ends_at)
            if call.key.name not in self.sets or self.try_enter(call, cost, clock.monotonic()):
                return True
            if not has_asked:
                break
        return False

    def refuse(self, call: Call, cost: Cost, now: float) -> NoReturn:
        """Raises KeyRateLimited."""
        limits = self.sets[call.key.name]
        wait_s = limits.wait_s(cost, now)
        if wait_s is None:  # a slot, of which nobody knows, or a share
            wait_s = max(limits.ready_at(cost, now) - now, 0.0) or 1.0
        name = limits.which(cost, now)
        raise KeyRateLimited(
            f"The key '{call.key.name}' has reached its own limit, {name}; slow down, or have it raised in the config.",
            retry_after_s=wait_s,
            limit=f"{call.key.name} {name}",
        )

    def settle(self, call: Call, usage: Usage | None, now: float) -> None:
        """Corrects what the call took to what it used."""
        cost, call.key_cost = call.key_cost, None
        limits = self.sets.get(call.key.name)
        if cost is not None and limits is not None:
            actual = Cost(1, 0, 0) if usage is None else Cost(1, usage.input, usage.output)
            limits.settle(cost, actual, now, call.key_cost_at)
