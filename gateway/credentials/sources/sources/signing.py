"""A target whose credential is a cloud's: puts a fresh token, or a signature, on every request. Implements `ports.Upstream`.

    Signed(Wire) : current credential -> token | SigV4 of what Wire will send -> Wire -> 401, 403: once more with a new one

A signature tells its time, and counts for five minutes. Where AWS refuses one and its own clock says another time, the call
is signed once more for that time; if that was it, so are those that follow, for this machine's clock is wrong.
While the credential is fresh nothing is waited for. Without one nothing is sent: the failure says what is missing.
"""

from __future__ import annotations

import asyncio
import logging
from email.utils import parsedate_to_datetime
from math import nan
from typing import Final

from gateway.core.clock import Clock
from gateway.core.http.client.transport import ERRORS
from gateway.core.http.client.wire.wire import Wire
from gateway.core.types.exchange import Answer, Outgoing, RawHeaders
from gateway.core.types.provider_errors import ErrorClass, Phase, UpstreamFailed
from gateway.credentials.auth import CloudAuth
from gateway.credentials.aws.sigv4 import SigV4, hash_of
from gateway.credentials.google.minted import BearerToken, Credential, CredentialMissing
from gateway.credentials.sources.sources.live import LiveCredential

MOST_WAIT_S: Final = 10.0
"""A call waits no longer for a credential, nor longer than for a connection."""
MOST_APART_S: Final = 240.0
"""Clocks that are further apart may be why a signature is refused; AWS takes five minutes."""
LARGE_BYTES: Final = 1_048_576
"""A body from here on is hashed in a thread: it takes a millisecond."""
_MOST_DETAIL: Final = 800
log = logging.getLogger("gateway.credentials")


class Signed:
    """Sends calls to one target in the name of the gateway's own account there."""

    __slots__ = ("_ahead_s", "_clock", "_live", "_masked", "_said", "_sets_type", "_signer", "_wire")

    errors = ERRORS

    def __init__(self, wire: Wire, auth: CloudAuth, live: LiveCredential, clock: Clock) -> None:
        self._wire = wire
        self._live = live
        self._clock = clock
        self._signer = SigV4(auth.region, auth.service)
        self._ahead_s = 0.0
        """So far the provider's clock goes ahead of ours, where signatures have to tell its time."""
        self._said = tuple(one for one in wire.headers if one[0] in (b"host", b"content-type") or _is_amazons(one[0]))
        self._sets_type = any(name == b"content-type" for name, _ in self._said)
        self._masked: Credential | None = None

    def __repr__(self) -> str:
        return f"Signed({self._wire!r}, {self._live!r})"

    async def send(self, outgoing: Outgoing) -> Answer:
        """Signs the request and sends it. Raises UpstreamFailed, of the class `auth` where there is no credential."""
        credential = self._live.current()
        if credential is None:
            credential = await self._fetched(outgoing)
        answer = await self._send(outgoing, credential)
        if answer.status == 403 and not isinstance(credential, BearerToken):
            answer = await self._timed_rightly(outgoing, credential, answer)
        if answer.status == 401 or (answer.status == 403 and not isinstance(credential, BearerToken)):
            try:
                other = await self._live.renewed(credential, _patience_s(outgoing))
            except BaseException:  # the caller has left: the refusal is nobody's
                await answer.aclose()
                raise
            if other is not None:  # it was refused at the door: nobody has worked on it
                await answer.aclose()
                return await self._send(outgoing, other)
        return answer

    async def _timed_rightly(self, outgoing: Outgoing, credential: Credential, refused: Answer) -> Answer:
        """Returns the answer to a call that is signed for the provider's own time, where that is far off; else the refusal."""
        ahead_s = _instant(refused.headers) - self._clock.wall()
        if not abs(ahead_s - self._ahead_s) > MOST_APART_S:  # nor where it tells no time
            return refused
        await refused.aclose()
        before, self._ahead_s = self._ahead_s, ahead_s
        answer = await self._send(outgoing, credential)
        if answer.status == 403:
            self._ahead_s = before  # it was refused for another reason
        else:
            log.warning(
                "the clock of this machine is %d s off that of %r: calls are signed for its time", ahead_s, self
            )
        return answer

    def failure(self, error: Exception) -> UpstreamFailed:
        """Returns what an error means that came while the answer was being read."""
        return self._wire.failure(error)

    async def _send(self, outgoing: Outgoing, credential: Credential) -> Answer:
        if credential is not self._masked:
            self._wire.mask_also(credential.secrets)
            self._masked = credential
        body = outgoing.body
        if isinstance(credential, BearerToken):
            added = [(b"authorization", b"Bearer " + credential.token.encode())]
        else:
            body_hash = hash_of(body) if len(body) < LARGE_BYTES else await asyncio.to_thread(hash_of, body)
            said = self._said
            if not self._sets_type:
                said = (*said, *[header for header in outgoing.headers if header[0] == b"content-type"])
            target = self._wire.target_of(outgoing)
            added = self._signer.headers(
                credential, outgoing.method, target, said, body_hash, self._clock.wall() + self._ahead_s
            )
        return await self._wire.send(
            Outgoing(
                method=outgoing.method,
                path=outgoing.path,
                query=outgoing.query,
                model=outgoing.model,
                headers=[*outgoing.headers, *added],
                body=body,
                credential=None,
                clocks=outgoing.clocks,
                first_byte_s=outgoing.first_byte_s,
                signs=outgoing.signs,
            )
        )

    async def _fetched(self, outgoing: Outgoing) -> Credential:
        try:
            return await self._live.get(_patience_s(outgoing))
        except CredentialMissing as missing:
            detail = f"{missing}"[:_MOST_DETAIL]
            raise UpstreamFailed(ErrorClass.AUTH, Phase.NOTHING_SENT, detail, fault=missing.what) from None


def _patience_s(outgoing: Outgoing) -> float:
    return min(MOST_WAIT_S, outgoing.clocks.connect_s, outgoing.first_byte_s)


def _instant(headers: RawHeaders) -> float:
    """Returns the time at which a provider has answered, in seconds since the epoch; not a number: it does not tell."""
    try:
        return parsedate_to_datetime(dict(headers)[b"date"].decode("latin-1")).timestamp()
    except (KeyError, ValueError):
        return nan


def _is_amazons(name: bytes) -> bool:
    """Tells whether a header has to be signed."""
    return name.startswith(b"x-amz-")
