"""Opens sessions as calls are opened: admission, one attempt after the other, the account; and keeps the open ones.

One concurrency slot is held for a whole session; its tokens are charged response by response, to the target's limits, the key's
and the key's budget. Invariant: every call that is opened here is settled exactly once.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.admission.admission.admission import Admission
from gateway.core.answers import FirstAnswer
from gateway.core.attempts.attempt import Attempts
from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.ledger.answer_headers import answer_headers
from gateway.core.limits.estimate.cost import Cost
from gateway.core.openai.headers import response_headers
from gateway.core.relay.raw_relay import RawRelay
from gateway.core.snapshot.snapshot.snapshot import PolicySnapshot
from gateway.core.types.exchange import Socket
from gateway.core.types.words import Usage
from gateway.features.runs.table.fuse import RunFuse
from gateway.products.realtime.service.accounts import SessionAccounts
from gateway.products.realtime.service.session import Hide, RealtimeSession

SWITCHING = 101


class RealtimeSessions:
    """All sessions of the process."""

    __slots__ = (
        "_accounts",
        "_admission",
        "_attempts",
        "_clock",
        "_ended",
        "_fuse",
        "_returned",
        "open_sessions",
        "present",
    )

    def __init__(
        self,
        clock: Clock,
        accounts: SessionAccounts,
        attempts: Attempts,
        admission: Admission,
        fuse: RunFuse | None = None,
    ) -> None:
        """`fuse` holds up calls of runs that have spent enough; None: there is none."""
        self._clock = clock
        self._accounts = accounts
        self._attempts = attempts
        self._admission = admission
        self._fuse = fuse
        self._returned = response_headers()
        self._ended: dict[str, list[int]] = {}  # by target: frames of clients, of the provider, errors
        self.open_sessions: set[RealtimeSession] = set()
        self.present: Callable[[], PolicySnapshot] | None = None
        """The policy in force, by which keys are looked at again; None: they are not."""

    async def open(self, call: Call) -> tuple[RealtimeSession | None, Reply]:
        """Opens a session at the first target that has one, and returns it with the head for the client; None: the reply
        is the provider's error. Raises GatewayError; the account is closed then.
        """
        self._accounts.opened()
        with self._accounts.closing(call):
            part = call.part
            if part is not None and part.run and self._fuse is not None and not self._fuse.lets_in(call, part):
                await self._fuse.admit(call, part)
            opened = await self._attempts.first_answer(call)
        socket = _socket_of(opened)
        headers = self._returned.keep(opened.headers)
        if socket is None:
            self._accounts.settle(call, opened.status, opened.error_class or "ok", target=opened.target)
            headers += answer_headers(call, self._clock.monotonic())
            return None, Reply(opened.status, headers, opened.body)
        headers += [header for header in opened.headers if header[0] == b"sec-websocket-protocol"]
        headers += answer_headers(call, self._clock.monotonic())
        hide: Hide | None = getattr(opened.relay.answer, "hide", None) if isinstance(opened.relay, RawRelay) else None
        session = RealtimeSession(self, call, opened.target, socket, self._clock.monotonic(), hide)
        self.open_sessions.add(session)
        return session, Reply(SWITCHING, headers)

    def sweep(self, now: float, *, is_draining: bool) -> None:
        """Looks after all sessions; to be called about once a second."""
        for session in list(self.open_sessions):
            session.sweep(now)
            if is_draining:
                session.drain(now)
            elif self.present is not None:
                self._look_at_key(session, self.present())

    def used(self, session: RealtimeSession, usage: Usage) -> str | None:
        """As `SessionHost` has it."""
        call, now = session.call, self._clock.monotonic()
        if call.grant is not None:
            gate = call.grant.gate
            gate.limits.charge(gate.charge(usage.input, None, usage.output, usage.cached), now)
        limits = self._admission.keys.sets.get(call.key.name)
        if limits is not None and call.key_cost is not None:
            limits.charge(Cost(0, usage.input, usage.output), now)
            reserved = call.key_cost  # so that the end corrects what was not charged yet
            call.key_cost = reserved._replace(
                input_tokens=reserved.input_tokens + usage.input, output_tokens=reserved.output_tokens + usage.output
            )
        budget_usd = call.key.budget_usd_per_day
        if budget_usd is None:
            return None
        usd = self._accounts.cost_of(call, session.target, session.usage)
        if usd is None or self._admission.budgets.allows(call, usd):
            return None
        return f"The key '{call.key.name}' has spent its budget of ${budget_usd:g} for today (UTC)."

    def traffic(self) -> dict[str, tuple[int, int, int, int]]:
        """Returns by target the open sessions, and the frames of clients, of the provider, and errors since the start."""
        sums = {name: [0, *ended] for name, ended in self._ended.items()}
        for session in self.open_sessions:
            row = sums.setdefault(session.target.name, [0, 0, 0, 0])
            row[0] += 1
            for at, more in enumerate(session.traffic(), 1):
                row[at] += more
        return {name: (row[0], row[1], row[2], row[3]) for name, row in sums.items()}

    def ended(self, session: RealtimeSession, outcome: str) -> None:
        """As `SessionHost` has it."""
        self.open_sessions.discard(session)
        known = self._ended.setdefault(session.target.name, [0, 0, 0])
        self._ended[session.target.name] = [old + more for old, more in zip(known, session.traffic(), strict=True)]
        call = session.call
        self._admission.outcomes.ended(call, outcome)
        self._accounts.settle(call, SWITCHING, outcome, target=session.target, usage=session.usage)

    def _look_at_key(self, session: RealtimeSession, policy: PolicySnapshot) -> None:
        """Ends a session whose key is not one of the gateway's any more, or may not use the model."""
        call = session.call
        if policy is call.policy or not call.policy.keys:
            return
        key = policy.keys.get(call.key.digest)
        if key is not None and (key.allows is None or key.allows.match(call.model_name)):
            return
        why = f"The key '{call.key.name}' may not use this session any more."
        session.refuse(why, "invalid_api_key", "invalid_request_error")


def _socket_of(opened: FirstAnswer) -> Socket | None:
    """The open session of an answer that has switched protocols."""
    if opened.status != SWITCHING or not isinstance(opened.relay, RawRelay):
        return None
    socket: Socket | None = getattr(opened.relay.answer, "socket", None)
    return socket
