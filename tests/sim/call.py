"""A simulated call: what admission sees of it, what it will really use, and what became of it."""

from __future__ import annotations

from math import inf

from gateway.core.admission.queue import Held
from gateway.core.call import Call, CallRoute, Request
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import Lane
from gateway.dialects.endpoints import CHAT
from tests.sim.provider import Demand

MODEL = "m"
DEADLINES_S: dict[Lane, float] = {"critical": 30.0, "interactive": 30.0, "batch": 600.0, "background": 21600.0}
_BODY = b"{}"


class SimCall(Call):
    """A call that knows what it will really use, and what became of it."""

    __slots__ = ("checked", "demand", "ended_at", "granted_at", "outcome", "refused_s")

    def __init__(
        self,
        policy: PolicySnapshot,
        now: float,
        lane: Lane,
        tenant: str,
        demand: Demand,
        estimate: int,
        deadline_s: float | None,
        *,
        stream: bool = False,
    ) -> None:
        request = Request(
            id="",
            endpoint=CHAT,
            model_name=MODEL,
            body=_BODY,
            stream=stream,
            stream_options=None,
            model_span=None,
            headers=(),
            credential=None,
            lane=lane,
            received_at=now,
            deadline=now + (DEADLINES_S[lane] if deadline_s is None else deadline_s),
            deadline_is_callers=deadline_s is not None,
            tenant=tenant,
            max_tokens=demand.max_tokens,
        )
        route = CallRoute(policy, policy.anonymous, policy.models[MODEL], CHAT, has_own_credential=False)
        super().__init__(request, route, estimate=estimate)
        self.demand = demand
        self.granted_at = inf
        """When it went to a target for the last time."""
        self.ended_at = inf
        self.outcome = ""
        """`ok`, the code of an error, `failed` for a provider's own, or `gone`."""
        self.refused_s: float | None = None
        """The Retry-After of its refusal."""
        self.checked: object = None
        """The grant that was looked at last."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def held_of(call: SimCall) -> Held:
    """The place of a call that waits."""
    assert isinstance(call.held, Held)
    return call.held
