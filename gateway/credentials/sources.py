"""Credentials in use: one that is kept fresh, a target whose requests it signs, and all credentials of the process.

In this order: `LiveCredential`, `Signed`, `CredentialSources`. Each credential is found by the config that names it: equal
ones are one, and outlive a reload. Invariants: at most one fetch of a credential is under way; nothing here touches the
loop before a credential is used, because policies are compiled in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from email.utils import parsedate_to_datetime
from math import inf, nan
from traceback import extract_tb
from typing import Final

from gateway.core.clock import Clock, Timer
from gateway.core.http.client.transport import ERRORS
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.core.types import Answer, ErrorClass, Outgoing, Phase, RawHeaders, UpstreamFailed
from gateway.credentials.auth import CloudAuth, auth_of
from gateway.credentials.aws import AwsSource, SigV4, hash_of
from gateway.credentials.fetch import (
    BearerToken,
    Credential,
    CredentialClient,
    CredentialMissing,
    Minted,
    Stamp,
    stamp_of,
)

# --- One credential, kept fresh ---


FETCH_S: Final = 30.0
"""The most seconds that a fetch may take, whatever its parts do."""
LEAD_SHARE, MOST_LEAD_S = 0.2, 300.0
"""How long before its end a credential is fetched again: a share of its life, and the most seconds. Google's metadata server
gives no new one earlier than five minutes before."""
MARGIN_S: Final = 10.0
"""Seconds before its end from which a credential counts as ended: requests are under way for a while."""
WATCH_S: Final = 2.0
"""Seconds between two looks at the files of a credential."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
DOUBT_S: Final = 60.0
"""Seconds in which a credential that a provider refuses is fetched again once: it may be refused for another reason."""
log = logging.getLogger("gateway.credentials")


class LiveCredential:
    """The credential of one source: fetched once for all who wait for it, and again before it ends. For one event loop.

        (first use) -> fetch -> fresh -> (before its end, or its file has changed) -> fetch -> fresh …
                         |                                                             |
                      missing -> (1 s … 60 s, or its file has changed) -> fetch     the old one serves as long as it lives

    While it is fresh, whoever needs it neither waits nor looks at a file. Invariant: at most one fetch is under way.
    """

    def __init__(
        self, name: str, mint: Callable[[], Awaitable[Minted]], clock: Clock, draw: Callable[[], float]
    ) -> None:
        """`mint` fetches a credential, or raises CredentialMissing; `draw` gives uniform numbers from [0, 1)."""
        self._name = name
        self._mint = mint
        self._clock = clock
        self._draw = draw
        self._credential: Credential | None = None
        self._ends_at = -inf
        self._refresh_at = -inf
        self._files: Mapping[str, Stamp] = {}
        self._problem = CredentialMissing("its credential has not been fetched", name)
        self._failures = 0
        self._doubted_until = -inf
        self._fetching: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._is_stopped = False

    def __repr__(self) -> str:
        return f"LiveCredential({self._name})"

    def current(self) -> Credential | None:
        """Returns the credential while it is fresh; None: `get` waits for one."""
        return self._credential if self._clock.monotonic() < self._ends_at else None

    async def get(self, within_s: float) -> Credential:
        """Returns a fresh credential; waits for one at most for `within_s`.

        Raises CredentialMissing: at once, if it was looked for a moment ago.
        """
        fresh = self.current()
        if fresh is not None:
            return fresh
        if self._fetching is None and self._failures and self._clock.monotonic() < self._refresh_at:
            raise self._problem
        await self._wait(self._fetch_once(), within_s)
        fresh = self.current()
        if fresh is None:
            raise self._problem
        return fresh

    async def renewed(self, refused: Credential, within_s: float) -> Credential | None:
        """Returns another credential than that which a provider has just refused; None: there is none.

        Fetches one at most once in `DOUBT_S`. Raises nothing.
        """
        if self._credential is refused:
            now = self._clock.monotonic()
            if now >= self._doubted_until:
                self._doubted_until = now + DOUBT_S
            elif self._fetching is None:  # else: calls that were refused together wait for one fetch
                return None
            try:
                await self._wait(self._fetch_once(), within_s)
            except CredentialMissing:
                return None
        fresh = self.current()
        return None if fresh is refused else fresh

    def stop(self) -> None:
        """Fetches no more by itself. Whoever still asks gets what is there, or waits for a fetch as before."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    async def aclose(self) -> None:
        """Stops, and ends a fetch under way."""
        self.stop()
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def _wait(self, fetching: asyncio.Task[None], within_s: float) -> None:
        """Waits for a fetch, which goes on for the others when one is cancelled or waits no longer."""
        done, _ = await asyncio.wait([fetching], timeout=within_s)
        if not done:
            raise CredentialMissing(
                "its credential did not come in time", f"{self._name} has not answered for {within_s:g} s"
            )

    def _fetch_once(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.get_running_loop().create_task(self._fetch(), name="credential")
        return self._fetching

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                minted = await self._mint()
            self._take(minted)
        except CredentialMissing as problem:
            self._fail(problem)
        except TimeoutError:
            self._fail(CredentialMissing("its credential cannot be fetched", f"{self._name}: no end in {FETCH_S:g} s"))
        except Exception as error:  # noqa: BLE001  # callers are told of whatever it broke with
            place = extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__} at {place.name}:{place.lineno}"  # its text may quote what was read
            self._fail(CredentialMissing("its credential cannot be fetched", f"{self._name}: {what}"))
        finally:
            self._fetching = None
            self._look_later()

    def _take(self, minted: Minted) -> None:
        now = self._clock.monotonic()
        life_s = inf if minted.lasts_s is None else minted.lasts_s
        if life_s <= 0:
            raise CredentialMissing(
                "its credential has expired",
                f"{self._name} gives one that has ended; is this clock right?",
                minted.files,
            )
        if self._failures:
            log.info("credential %s is there again", self._name)
        if minted.credential != self._credential:
            self._credential = minted.credential
        self._failures, self._files = 0, minted.files
        lead_s = min(life_s * LEAD_SHARE, MOST_LEAD_S) * (1 - 0.2 * self._draw())
        self._ends_at = now + life_s - min(MARGIN_S, life_s * 0.1) if life_s < inf else inf
        self._refresh_at = now + max(life_s - lead_s, FIRST_RETRY_S)

    def _fail(self, problem: CredentialMissing) -> None:
        """Logs it once; the old credential serves as long as it lives."""
        if not self._failures or str(problem) != str(self._problem):
            log.warning("credential %s: %s", self._name, problem)
        self._problem = problem
        self._files = {**self._files, **problem.files} if self._credential is not None else problem.files
        wait_s = FIRST_RETRY_S * 2 ** min(self._failures, 10) * (1 + 0.25 * self._draw())
        self._failures += 1
        self._refresh_at = self._clock.monotonic() + min(wait_s, LAST_RETRY_S)

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_stopped or (self._refresh_at == inf and not self._files):
            return
        soon = self._clock.monotonic() + WATCH_S if self._files else inf
        self._timer = self._clock.call_at(min(self._refresh_at, soon), self._look)

    def _look(self) -> None:
        """Fetches again where it is time, or where a file is not what it was."""
        self._timer = None
        changed = [path for path, stamp in self._files.items() if stamp_of(path) != stamp]
        if changed or self._clock.monotonic() >= self._refresh_at:
            # Of one that changes all the time each state is looked at once.
            self._files = {**self._files, **{path: stamp_of(path) for path in changed}}
            self._fetch_once()
        else:
            self._look_later()


# --- A target whose requests are signed ---


MOST_WAIT_S: Final = 10.0
"""The most seconds that a call waits for a credential; nor does it wait longer than for a connection."""
MOST_APART_S: Final = 240.0
"""Seconds between two clocks beyond which they may be why a signature is refused; AWS takes five minutes."""
LARGE_BYTES: Final = 1_048_576
"""The bytes from which on a body is hashed in a thread: it takes a millisecond."""
_MOST_DETAIL: Final = 800


class Signed:
    """Sends calls to one target in the name of the gateway's own account there. Implements `Upstream`.

        Signed(Wire) : current credential -> token | SigV4 of what Wire will send -> Wire -> 401, 403: once more with a new one

    A signature has its time in it, and counts for five minutes. Where AWS refuses one and its own clock has another time,
    the call is signed once more for that time; if that was the reason, so are those that follow, for this machine's clock
    is wrong. While the credential is fresh, nothing is waited for. Without one nothing is sent: the failure says what is
    missing.
    """

    __slots__ = ("_ahead_s", "_clock", "_live", "_masked", "_sets_type", "_signed_headers", "_signer", "_wire")

    errors = ERRORS

    def __init__(self, wire: Wire, auth: CloudAuth, live: LiveCredential, clock: Clock) -> None:
        self._wire = wire
        self._live = live
        self._clock = clock
        self._signer = SigV4(auth.region, auth.service)
        self._ahead_s = 0.0
        """Seconds by which the provider's clock goes ahead of ours, where signatures have to have its time."""
        self._signed_headers = tuple(
            one for one in wire.headers if one[0] in (b"host", b"content-type") or _is_amazons(one[0])
        )
        self._sets_type = any(name == b"content-type" for name, _ in self._signed_headers)
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
            headers = self._signed_headers
            if not self._sets_type:
                headers = (*headers, *[header for header in outgoing.headers if header[0] == b"content-type"])
            target = self._wire.target_of(outgoing)
            added = self._signer.headers(
                credential, outgoing.method, target, headers, body_hash, self._clock.wall() + self._ahead_s
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
    """Returns the time at which a provider has answered, in seconds since the epoch; not a number: it names none."""
    try:
        return parsedate_to_datetime(dict(headers)[b"date"].decode("latin-1")).timestamp()
    except (KeyError, ValueError):
        return nan


def _is_amazons(name: bytes) -> bool:
    return name.startswith(b"x-amz-")


# --- All credentials of the process ---


MOST_RETIRED: Final = 4
"""How many credentials that no provider uses are kept open, for calls that still have one."""
_Key = tuple[CloudAuth, str | None, str | None, str | None]


class CredentialSources:
    """Makes what keeps a credential fresh, once for each config of one."""

    def __init__(self, environ: Mapping[str, str], clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._environ = environ
        self._clock = clock
        self._draw = draw
        self._live: dict[_Key, tuple[LiveCredential, CredentialClient]] = {}
        self._retired: list[tuple[LiveCredential, CredentialClient]] = []
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, auth: CloudAuth, provider: Provider) -> LiveCredential:
        """Returns the credential that a provider is called with; nothing is fetched before it is used."""
        key = _key(auth, provider)
        found = self._live.get(key)
        if found is None:
            client = CredentialClient(provider.proxy, provider.ca_file)
            mint = self._mint_of(auth, client)
            found = self._live[key] = (LiveCredential(str(auth), mint, self._clock, self._draw), client)
        return found[0]

    def _mint_of(self, auth: CloudAuth, client: CredentialClient) -> Callable[[], Awaitable[Minted]]:
        if auth.cloud == "google":
            from gateway.credentials.google import GoogleSource  # nobody loads what he does not use

            return GoogleSource(auth, self._environ, client, self._clock.wall).mint
        return AwsSource(auth, self._environ, client, self._clock.wall).mint

    def keep_only(self, providers: Collection[Provider]) -> None:
        """Lets those go that none of these providers uses: calls that still have one may use it to their end.

        The oldest of them are closed; one that is used even then opens its connections again.
        """
        used = {_key(auth, one) for one in providers if (auth := auth_of(one)) is not None}
        for key in [one for one in self._live if one not in used]:
            gone = self._live.pop(key)
            gone[0].stop()
            self._retired.append(gone)
        while len(self._retired) > MOST_RETIRED:
            closing = asyncio.get_running_loop().create_task(_close(*self._retired.pop(0)), name="credential-closing")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Ends every fetch, and closes all connections."""
        for live, client in (*self._live.values(), *self._retired):
            await _close(live, client)
        await asyncio.gather(*self._closing)
        self._live.clear()
        self._retired.clear()


async def _close(live: LiveCredential, client: CredentialClient) -> None:
    await live.aclose()
    await client.aclose()


def _key(auth: CloudAuth, provider: Provider) -> _Key:
    return auth, provider.proxy, provider.ca_file, provider.ca_digest
