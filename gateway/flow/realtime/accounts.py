"""The accounts of sessions: those of all calls, but for the price of sound."""

from __future__ import annotations

from gateway.call import Call
from gateway.flow.settle import Accounts
from gateway.policy.realtime.price import session_usd
from gateway.policy.route_plan import upstream_model
from gateway.policy.snapshot import Target
from gateway.words import Usage


def session_cost_usd(call: Call, target: Target | None, usage: Usage | None) -> float | None:
    """As `settle.cost_usd`, for a session."""
    if target is None or usage is None:
        return None
    return session_usd(target.find_rates(upstream_model(call, target)), usage)


class SessionAccounts(Accounts):
    """Closes the accounts of sessions."""

    __slots__ = ()

    cost_of = staticmethod(session_cost_usd)
