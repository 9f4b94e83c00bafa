"""One session between a client and a provider: frames go through as they come, usage is counted, and it ends once.

Callbacks only: a session has no task and no timer of its own, `sweep` looks after all of them. Invariant: whichever side leaves
first, the other one hears so with its code, and the call's account is closed exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.core.call import Call
from gateway.core.health.target_health.target_health.target_health import CLIENT_GONE
from gateway.core.snapshot.snapshot.snapshot import Target
from gateway.core.types.exchange import Socket
from gateway.core.types.provider_errors import ErrorClass
from gateway.core.types.words import SpokenUsage
from gateway.products.realtime.rules.events import ReadEvent, added, error_event, is_read, read_event
from gateway.products.realtime.service.pulse import Pulse

TEXT, CONTINUATION = 1, 0
NORMAL, GOING_AWAY, NO_CODE, ABNORMAL, RESTART, BAD_GATEWAY = 1000, 1001, 1005, 1006, 1012, 1014
POLICY = 4008
"""The key's budget is spent, or the key is no longer one."""
MAX_SESSION_S = 3600.0
QUIET_S = 2.0
"""At shutdown a provider that has said nothing for so long is not in the middle of a response."""
JOINED_BYTES = 1024 * 1024
"""Of a message in several frames, so much is put together to be read."""
_PROVIDERS_FAULT = frozenset((ABNORMAL, 1011, RESTART, 1013, BAD_GATEWAY))


Hide = Callable[[bytes], bytes]
"""Returns what a provider has said without the credentials that nobody is to see; the same bytes where there are none."""


class SessionHost(Protocol):
    """Who looks after sessions."""

    def used(self, session: RealtimeSession, usage: SpokenUsage) -> str | None:
        """Charges what a response has used; returns why the session may not go on, None: it may."""
        ...

    def ended(self, session: RealtimeSession, outcome: str) -> None:
        """Closes the session's account."""
        ...


class RealtimeSession:
    """A session that both sides have opened."""

    __slots__ = (
        "_clients",
        "_parts",
        "_providers",
        "call",
        "client",
        "ends_at",
        "errors",
        "hide",
        "host",
        "is_draining",
        "is_over",
        "on_over",
        "provider",
        "target",
        "usage",
    )

    def __init__(
        self,
        host: SessionHost,
        call: Call,
        target: Target,
        provider: Socket,
        now: float,
        hide: Hide | None = None,
    ) -> None:
        self.host = host
        self.call = call
        self.target = target
        self.provider = provider
        self.client: Socket | None = None
        self.hide = hide
        self.ends_at = now + MAX_SESSION_S
        self.usage: SpokenUsage | None = None
        """What its responses have used so far."""
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
            if is_read(data):
                self._heard(read_event(data))
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
            if is_read(parts):
                self._heard(read_event(parts))

    def _heard(self, event: ReadEvent | None) -> None:
        if event is None:
            return
        if event.error is not None:
            self.errors += 1
        if not event.is_done:
            return
        if event.usage is not None:
            self.usage = added(self.usage, event.usage)
            why = self.host.used(self, event.usage)
            if why is not None:
                self.refuse(why, "budget_exceeded", "rate_limit_error")
                return
        if self.is_draining:
            self.restart()

    # Ends.

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
        if now - self._providers.heard_at >= QUIET_S:
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
