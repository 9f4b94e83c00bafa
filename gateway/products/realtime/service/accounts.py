"""The accounts of sessions: those of all calls, but for the price of sound."""

from __future__ import annotations

from gateway.core.call import Call
from gateway.core.ledger.settle import Accounts
from gateway.core.snapshot.route_plan import upstream_model
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.words import Usage
from gateway.products.realtime.rules.price import session_usd


def session_cost_usd(call: Call, target: Target | None, usage: Usage | None) -> float | None:
    """As `settle.cost_usd`, for a session."""
    if target is None or usage is None:
        return None
    return session_usd(target.find_rates(upstream_model(call, target)), usage)


class SessionAccounts(Accounts):
    """Closes the accounts of sessions."""

    __slots__ = ()

    cost_of = staticmethod(session_cost_usd)
