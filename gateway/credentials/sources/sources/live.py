"""One credential, kept fresh: fetched once for all who wait for it, and again before it ends.

    (first use) -> fetch -> fresh -> (before its end, or its file has changed) -> fetch -> fresh …
                     |                                                             |
                  missing -> (1 s … 60 s, or its file has changed) -> fetch     the old one serves as long as it lives

Whoever asks while it is fresh neither waits nor looks at a file. It must not know what a credential is, or who asks.
Invariant: at most one fetch is under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from math import inf
from traceback import extract_tb
from typing import Final

from gateway.core.clock import Clock, Timer
from gateway.credentials.google.minted import Credential, CredentialMissing, Minted, Stamp, stamp_of

FETCH_S: Final = 30.0
"""A fetch takes no longer, whatever its parts do."""
LEAD_SHARE, MOST_LEAD_S = 0.2, 300.0
"""So long before its end it is fetched again; Google's metadata server gives no new one earlier than five minutes before."""
MARGIN_S: Final = 10.0
"""It counts as ended so long before: requests are under way for a while."""
WATCH_S: Final = 2.0
"""Between two looks at its files."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
DOUBT_S: Final = 60.0
"""One that a provider has refused is fetched again once in this time: it may be refused for another reason."""
log = logging.getLogger("gateway.credentials")


class LiveCredential:
    """The credential of one source. Belongs to one event loop."""

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
        """Tells of it once; the old credential serves as long as it lives."""
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
