"""Sessions between clients and providers: frames go through as they come, usage is counted, and each ends once.

In this order: signs of life; one session; the opening of sessions; and their metrics. Callbacks only: a session has no task
and no timer of its own, `sweep` looks after all of them. Invariant: whichever side leaves first, the other one learns so with
its code, and the call's account is closed exactly once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from gateway.core.call import Call, ErrorAnswer, Opened, Reply, Stream, upstream_model
from gateway.core.health.target_health import CLIENT_GONE
from gateway.core.ledger import answer_headers, cost_usd, usage_usd
from gateway.core.metrics import Counts, Levels, MetricTable
from gateway.core.openai.headers import response_headers
from gateway.core.openai.usage import added
from gateway.core.pipeline import Pipeline
from gateway.core.relay import RawRelay
from gateway.core.retry import Attempt
from gateway.core.snapshot import PolicySnapshot
from gateway.core.types import ErrorClass, Socket, Usage
from gateway.products.realtime.rules import error_event, is_read, output_in, read_event, usage_of_response

# --- signs of life: a peer is asked where it is silent, given up where it takes nothing ---

PING_S = 20.0
STUCK_S = 60.0
"""Seconds after which a peer that has taken nothing of what waits for it is taken to be gone."""


class Pulse:
    """One peer's signs of life."""

    __slots__ = ("_is_pinged", "_since", "_stuck", "alive_at")

    def __init__(self, now: float) -> None:
        self._since = now  # it was heard, or asked
        self._is_pinged = False  # and not heard since
        self._stuck: tuple[int, float] | None = None  # while it takes nothing: what waits for it, and since when
        self.alive_at = now

    def is_dead(self, end: Socket, now: float) -> bool:
        """Returns whether the peer has not answered a ping, or has taken nothing for too long; asks it where it is time to."""
        if not end.congested:
            self._stuck = None
        elif self._stuck is None or self._stuck[0] != end.unsent:  # a slow one takes some
            self._stuck = end.unsent, now
        elif now - self._stuck[1] > STUCK_S:
            return True
        if end.is_alive:
            self.alive_at = now
        if end.is_alive or end.reading_paused:
            end.is_alive = False
            self._since, self._is_pinged = now, False
        elif now - self._since >= PING_S:
            if self._is_pinged:
                return True
            self._since, self._is_pinged = now, True
            end.ping()
        return False


# --- one session ---

TEXT, CONTINUATION = 1, 0
NORMAL, GOING_AWAY, NO_CODE, ABNORMAL, RESTART, BAD_GATEWAY = 1000, 1001, 1005, 1006, 1012, 1014
POLICY = 4008
"""The key's budget is spent, or the key is no longer one."""
MAX_SESSION_S = 3600.0
QUIET_S = 2.0
"""Seconds of silence after which, at shutdown, a provider is not in the middle of a response."""
JOINED_BYTES = 1024 * 1024
"""The most bytes of a message in several frames that are put together to be read."""
_PROVIDERS_FAULT = frozenset((ABNORMAL, 1011, RESTART, 1013, BAD_GATEWAY))


Hide = Callable[[bytes], bytes]
"""Returns what a provider has said without the credentials that nobody is to see; the same bytes where there are none."""


class RealtimeSession:
    """A session that both sides have opened."""

    __slots__ = (
        "_clients",
        "_input_tokens",
        "_parts",
        "_providers",
        "attempt",
        "call",
        "client",
        "ends_at",
        "errors",
        "estimated_usd",
        "hide",
        "host",
        "is_draining",
        "is_over",
        "on_over",
        "provider",
        "responses_usd",
        "target",
        "transcribed_usd",
        "transcriber",
        "unfinished",
        "usage",
    )

    def __init__(
        self,
        host: RealtimeSessions,
        call: Call,
        attempt: Attempt,
        provider: Socket,
        now: float,
        hide: Hide | None = None,
    ) -> None:
        self.host = host
        self.call = call
        self.attempt = attempt
        self.target = attempt.target
        self.provider = provider
        self.client: Socket | None = None
        self.hide = hide
        self.ends_at = now + MAX_SESSION_S
        self.usage: Usage | None = None
        """The usage of its responses so far."""
        self._input_tokens = 0
        """The input tokens of the last response."""
        self.unfinished: Usage | None = None
        """What the response that is under way is estimated to have used; None: nothing has come of it."""
        self.responses_usd = 0.0
        """The cost of its responses so far, each by itself: the price of one depends on its own length and tier."""
        self.transcriber = ""
        """The provider's name for the model that transcribes what is said; empty: nobody has named one."""
        self.transcribed_usd = 0.0
        """The cost of its transcriptions so far."""
        self.estimated_usd = 0.0
        """What responses that have reported no usage of theirs, or none that can be right, have cost so far."""
        self.errors = 0
        self.is_over = False
        self.is_draining = False
        self.on_over: Callable[[], None] | None = None
        self._parts: bytearray | None = None
        self._clients, self._providers = Pulse(now), Pulse(now)

    def begin(self, client: Socket) -> None:
        """Relays from now on."""
        self.client = client
        provider = self.provider
        client.attach(provider.send, self._client_closed, self._client_congested)
        if not self.is_over:
            provider.attach(self._from_provider, self._provider_closed, self._provider_congested)

    def traffic(self) -> tuple[int, int, int]:
        """Returns the frames of the client and of the provider so far, and the errors."""
        return 0 if self.client is None else self.client.received, self.provider.received, self.errors

    # Frames.

    def _from_provider(self, opcode: int, data: bytes | bytearray, fin: bool) -> None:  # as frames have it
        client = self.client
        if client is None:
            return
        if self.hide is not None:
            data = self.hide(data if isinstance(data, bytes) else bytes(data))
        client.send(opcode, data, fin)
        if opcode == TEXT and fin:
            self._take(data)
        elif opcode in (CONTINUATION, TEXT):
            self._join(opcode, data, fin)

    def _join(self, opcode: int, data: bytes | bytearray, fin: bool) -> None:  # as frames have it
        """Puts a message of several frames together, as far as it may be one that is read."""
        if opcode == TEXT:
            self._parts = bytearray()
        parts = self._parts
        if parts is None:
            return
        parts += data
        if len(parts) > JOINED_BYTES:
            self._parts = None
        elif fin:
            self._parts = None
            self._take(parts)

    def _take(self, data: bytes | bytearray) -> None:
        """Reads an event that says what was used, or counts the output of one that says no more."""
        if is_read(data):
            event = read_event(data)
            if event is None:
                return
            if event.error is not None:
                self.errors += 1
            if event.transcriber is not None:
                self.transcriber = event.transcriber
            why = None
            if event.transcribed is not None:
                why = self.host.transcribed(self, event.transcribed)
            if event.is_done:
                usage = usage_of_response(event.usage, self.unfinished, self._input_tokens)
                self.unfinished = None
                if usage is not None:
                    self._input_tokens = usage.input
                    self.usage = usage if self.usage is None else added(self.usage, usage)
                    why = self.host.used(self, usage)
            if why is not None:
                self.spend_out(why)
            elif event.is_done and self.is_draining:
                self.restart()
        elif (output := output_in(data)) is not None:
            self.unfinished = output if self.unfinished is None else added(self.unfinished, output)

    # Ends.

    def spend_out(self, why: str) -> None:
        """Ends the session because its key's budget is spent."""
        self.refuse(why, "budget_exceeded", "rate_limit_error")

    def refuse(self, why: str, code: str, kind: str) -> None:
        """Ends the session with an error event and 4008."""
        self._end(code, POLICY, why, tell=error_event(code, kind, why))

    def abandon(self) -> None:
        """Ends a session whose client has left before it began."""
        self.provider.close(GOING_AWAY, "", at_once=True)
        self._over(CLIENT_GONE)

    def restart(self, *, at_once: bool = False) -> None:
        """Ends the session because the process goes."""
        self._end("shutdown", RESTART, "The gateway is restarting; connect again.", at_once=at_once)

    def drain(self, now: float) -> None:
        """Ends the session as soon as no response is under way."""
        self.is_draining = True
        if now - self._providers.alive_at >= QUIET_S:
            self.restart()

    def _end(self, outcome: str, code: int, why: str, *, tell: bytes | None = None, at_once: bool = False) -> None:
        client = self.client
        if self.is_over or client is None:
            return
        if tell is not None:
            client.send(TEXT, tell, True)
        client.close(code, short_reason(why), at_once=at_once)
        self.provider.close(NORMAL, "", at_once=at_once)
        self._over(outcome)

    def _client_closed(self, code: int, reason: str) -> None:
        is_gone = code == ABNORMAL
        self.provider.close(GOING_AWAY if is_gone else code, "" if is_gone else reason, at_once=is_gone)
        self._over(CLIENT_GONE if is_gone else "ok")

    def _provider_closed(self, code: int, reason: str) -> None:
        if self.client is not None:
            if code == ABNORMAL:
                self.client.close(BAD_GATEWAY, "The provider's connection broke.")
            else:
                self.client.close(code, self._masked(reason))
        self._over(ErrorClass.STREAM_INTERRUPTED if code in _PROVIDERS_FAULT else "ok")

    def _over(self, outcome: str) -> None:
        if self.is_over:
            return
        self.is_over = True
        self._parts = None
        try:
            self.host.ended(self, outcome)
        finally:
            if self.on_over is not None:
                self.on_over()
            self.on_over = None

    def _masked(self, reason: str) -> str:
        return reason if self.hide is None else self.hide(reason.encode()).decode(errors="replace")

    # Backpressure.

    def _client_congested(self, is_congested: bool) -> None:  # a callback
        (self.provider.pause if is_congested else self.provider.resume)()

    def _provider_congested(self, is_congested: bool) -> None:  # a callback
        if self.client is not None:
            (self.client.pause if is_congested else self.client.resume)()

    # Time.

    def sweep(self, now: float) -> None:
        """Asks who is silent for a sign of life, and ends the session where there is none, or its time is over."""
        client = self.client
        if client is None or self.is_over:
            return
        if now >= self.ends_at:
            why = f"Sessions end after {MAX_SESSION_S / 60:.0f} minutes; connect again."
            tell = error_event("session_expired", "invalid_request_error", why)
            self._end("ok", GOING_AWAY, why, tell=tell)
        elif self._clients.is_dead(client, now):
            client.abort()
            self.provider.close(GOING_AWAY, "", at_once=True)
            self._over(CLIENT_GONE)
        elif self._providers.is_dead(self.provider, now):
            self.provider.abort()
            client.close(BAD_GATEWAY, "The provider gives no sign of life.")
            self._over(ErrorClass.TIMEOUT)


def short_reason(reason: str) -> str:
    """What fits into a close frame (RFC 6455, 5.5: 125 bytes with the code)."""
    return reason.encode()[:120].decode(errors="ignore")


# --- the opening of sessions, as calls are opened: admission, one attempt after the other, the account ---

SWITCHING = 101


class RealtimeSessions:
    """All sessions of the process.

    One concurrency slot is held for a whole session; its tokens are charged response by response, to the target's limits, the
    key's and the key's budget. Invariant: every call that is opened here is settled exactly once.
    """

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

    def __init__(self, pipeline: Pipeline, fuse: Callable[[Call], Awaitable[None]] | None = None) -> None:
        """`fuse` raises GatewayError for calls of runs that have spent enough; None: there is none."""
        self._clock = pipeline.clock
        self._accounts = pipeline.accounts
        self._attempts = pipeline.attempts
        self._admission = pipeline.admission
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
            if self._fuse is not None:
                await self._fuse(call)
            opened = await self._attempts.open(call)
        socket = _socket_of(opened)
        headers = self._returned.keep(opened.headers)
        if socket is None:
            outcome = opened.error_class if isinstance(opened, ErrorAnswer) else "ok"
            self._accounts.settle(call, opened.status, outcome, attempt=opened.attempt)
            headers += answer_headers(call, self._clock.monotonic())
            return None, Reply(opened.status, headers, b"" if isinstance(opened, Stream) else opened.body)
        headers += [header for header in opened.headers if header[0] == b"sec-websocket-protocol"]
        headers += answer_headers(call, self._clock.monotonic())
        relay = opened.relay if isinstance(opened, Stream) else None
        hide: Hide | None = getattr(relay.answer, "hide", None) if isinstance(relay, RawRelay) else None
        session = RealtimeSession(self, call, opened.attempt, socket, self._clock.monotonic(), hide)
        self.open_sessions.add(session)
        return session, Reply(SWITCHING, headers)

    def sweep(self, now: float, *, is_draining: bool) -> None:
        """Looks after all sessions; to be called about once a second."""
        for session in list(self.open_sessions):
            session.sweep(now)
            if session.is_over:
                continue
            if session.unfinished is not None and (why := self._over_budget(session)) is not None:
                session.spend_out(why)
            elif is_draining:
                session.drain(now)
            elif self.present is not None:
                self._look_at_key(session, self.present())

    def used(self, session: RealtimeSession, usage: Usage) -> str | None:
        """Charges what a response has used; returns why the session may not go on, None: it may."""
        call, now = session.call, self._clock.monotonic()
        if usage.estimated:
            session.estimated_usd += cost_usd(call, session.target, usage) or 0.0
        if session.attempt.reservation is not None:
            gate = session.attempt.reservation.gate
            gate.limits.charge(gate.charge(usage.input, None, usage.output, usage.cached), now)
        self._admission.keys.charge(call, usage, now)
        session.responses_usd += cost_usd(call, session.target, usage) or 0.0
        return self._over_budget(session)

    def transcribed(self, session: RealtimeSession, usage: Usage) -> str | None:
        """Charges what a transcription has used at the session's `transcriber`; returns the same as `used`."""
        target, model = session.target, upstream_model(session.call, session.target)
        rates = target.find_rates(session.transcriber or model)
        if session.transcriber not in ("", model) and rates is target.find_rates(model):
            return None  # the target states its price, which is that of the session's own model
        session.transcribed_usd += usage_usd(rates, usage) or 0.0
        return self._over_budget(session)

    def _over_budget(self, session: RealtimeSession) -> str | None:
        call = session.call
        budget_usd = call.route.key.budget_usd_per_day
        if budget_usd is None:
            return None
        usd = _usd_of(session)
        if not usd or self._admission.budgets.allows(call, usd):
            return None
        return f"The key '{call.route.key.name}' has spent its budget of ${budget_usd:g} for today (UTC)."

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
        """Closes the session's account."""
        self.open_sessions.discard(session)
        known = self._ended.setdefault(session.target.name, [0, 0, 0])
        self._ended[session.target.name] = [old + more for old, more in zip(known, session.traffic(), strict=True)]
        call = session.call
        self._admission.outcomes.ended(call, session.attempt, outcome)
        usage, left = session.usage, session.unfinished
        if left is not None:
            usage = left if usage is None else added(usage, left)
            session.estimated_usd += cost_usd(call, session.target, left) or 0.0
        usd = _usd_of(session)
        self._accounts.settle(
            call,
            SWITCHING,
            outcome,
            attempt=session.attempt,
            usage=usage or (Usage(0, 0) if session.transcribed_usd else None),
            beside_usd=usd,  # the sum of its usages has no price of its own
            estimated_usd=session.estimated_usd,
        )

    def _look_at_key(self, session: RealtimeSession, policy: PolicySnapshot) -> None:
        """Ends a session whose key is not one of the gateway's any more, or may not use the model."""
        call = session.call
        if policy is call.route.policy or not call.route.policy.keys:
            return
        key = policy.keys.get(call.route.key.digest)
        if key is not None and (key.allows is None or key.allows.match(call.request.model_name)):
            return
        why = f"The key '{call.route.key.name}' may not use this session any more."
        session.refuse(why, "invalid_api_key", "invalid_request_error")


def _usd_of(session: RealtimeSession) -> float:
    """Returns what the session has cost so far, with what has come of a response that is under way."""
    unfinished_usd = cost_usd(session.call, session.target, session.unfinished) or 0.0
    return session.responses_usd + session.transcribed_usd + unfinished_usd


def _socket_of(opened: Opened) -> Socket | None:
    """The open session of an answer that has switched protocols."""
    if not isinstance(opened, Stream) or opened.status != SWITCHING or not isinstance(opened.relay, RawRelay):
        return None
    socket: Socket | None = getattr(opened.relay.answer, "socket", None)
    return socket


class RealtimeMetrics(MetricTable):
    """The metrics of sessions."""

    after = "estimated_usage_total"

    def __init__(self) -> None:
        self.realtime_sessions = Levels("realtime_sessions", "Realtime sessions that are open.", "target")
        self.realtime_frames = Counts(
            "realtime_frames_total", "Frames of realtime sessions, by who has sent them.", "target", "from"
        )
        self.realtime_errors = Counts(
            "realtime_errors_total", "Error events and failed responses of realtime sessions.", "target"
        )

    def set_traffic(self, traffic: Mapping[str, tuple[int, int, int, int]]) -> None:
        """Sets by target the sessions that are open, and frames of clients and of the provider, and errors, so far."""
        for name, (sessions, of_clients, of_provider, errors) in traffic.items():
            self.realtime_sessions.values[(name,)] = sessions
            self.realtime_frames.totals[name, "client"] = of_clients
            self.realtime_frames.totals[name, "provider"] = of_provider
            self.realtime_errors.totals[(name,)] = errors
