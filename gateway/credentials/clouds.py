"""The providers that are called with a cloud's credential, and what keeps these fresh. Loads nothing before there is one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from gateway.core.clock import Clock
from gateway.core.http.client.wire import Wire
from gateway.core.snapshot import Provider
from gateway.core.types import EMULATOR, Upstream
from gateway.credentials.auth import auth_of

if TYPE_CHECKING:
    from gateway.credentials.sources import CredentialSources


class Clouds:
    """Puts before a target's wire what signs for it."""

    def __init__(self, environ: Mapping[str, str], clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._environ = environ
        self._clock = clock
        self._draw = draw
        self._sources: CredentialSources | None = None

    def upstream(self, wire: Wire, provider: Provider) -> Upstream:
        """Returns the wire, or what signs for it, where the provider wants that. The emulator wants nothing."""
        auth = auth_of(provider)
        if auth is None or provider.base_url.startswith(EMULATOR):
            return wire
        # few configs have a cloud
        from gateway.credentials.sources import CredentialSources, Signed

        if self._sources is None:
            self._sources = CredentialSources(self._environ, self._clock, self._draw)
        return Signed(wire, auth, self._sources.of(auth, provider), self._clock)

    def keep_only(self, providers: Collection[Provider]) -> None:
        """Lets those credentials go that none of these providers is called with."""
        if self._sources is not None:
            self._sources.keep_only(providers)

    async def aclose(self) -> None:
        """Ends every fetch, and closes all connections to those that give credentials."""
        if self._sources is not None:
            await self._sources.aclose()
