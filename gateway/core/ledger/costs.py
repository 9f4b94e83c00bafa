"""What a call is estimated to use and to cost, by what its targets have answered to calls before it.

It must not know budgets. A cost is in US dollars; where a target has no price it is None, which is not 0.
"""

from __future__ import annotations

from gateway.core.admission.admission.candidates import estimate_of
from gateway.core.admission.gates.gates import Gates
from gateway.core.call import Call
from gateway.core.retry_budgets import FREE, SEEN_ANSWERS, Price, cost_usd, price_of
from gateway.core.snapshot.route_plan import upstream_model
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.words import Usage


class CostEstimates:
    """Estimates what attempts cost. Holds no state of any call."""

    __slots__ = ("_gates",)

    def __init__(self, gates: Gates) -> None:
        self._gates = gates

    def usage(self, call: Call, target: Target) -> Usage:
        """Returns what an attempt at the target is estimated to use."""
        learned = self._gates.line(target, call).gate.calibration
        output = learned.output_estimate(call.max_tokens) if call.endpoint.tokens == "both" else 0
        return Usage(learned.input_estimate(estimate_of(call)), output, estimated=True)

    def usd(self, call: Call, target: Target) -> float | None:
        """Returns what an attempt at the target is estimated to cost; None: not priced."""
        usage = self.usage(call, target)
        return cost_usd(target.find_rates(upstream_model(call, target)), usage.input, usage.output)

    def price(self, call: Call, budget_usd: float) -> Price:
        """Returns what the call may cost its key: at the dearest of the model's own targets, where some are priced."""
        prices = []
        for target in call.model.targets if call.endpoint.request != "any" and call.endpoint.tokens != "none" else ():
            rates = target.find_rates(upstream_model(call, target))
            if rates is not None:
                learned = self._gates.line(target, call).gate.calibration
                price = price_of(
                    learned.input_bound(estimate_of(call)) * rates.input_usd,
                    rates.output_usd if call.endpoint.tokens == "both" else 0.0,
                    learned.output_estimate(None),
                    call.max_tokens,
                    budget_usd,
                    is_known=learned.answers_seen >= SEEN_ANSWERS,
                )
                prices.append(price)
        return max(prices, key=lambda price: price.most, default=FREE)

    def price_unfinished(self, call: Call) -> None:
        """Prices the attempt in flight of a call that is given up: a provider works on it, and wants to be paid."""
        last = call.attempts[-1] if call.attempts else None
        if last is None or last.ended_at is not None or last.cost_usd is not None:
            return
        target = next((one for one in (*call.model.plan, *call.model.context_plan) if one.name == last.target), None)
        if target is not None:
            last.cost_usd = self.usd(call, target)
