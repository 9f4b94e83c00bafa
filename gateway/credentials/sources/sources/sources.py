"""All credentials of the process, each by the config that asks for it: equal ones are one, and outlive a reload.

Policies are compiled in a thread: nothing here touches the loop before a credential is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from gateway.core.clock import Clock
from gateway.core.snapshot.snapshot.provider import Provider
from gateway.credentials.auth import CloudAuth
from gateway.credentials.google.minted import Minted
from gateway.credentials.sources.asking import CredentialAsker
from gateway.credentials.sources.sources.live import LiveCredential

MOST_RETIRED: Final = 4
"""So many that no provider uses are kept open for calls that still have one."""
_Key = tuple[CloudAuth, str | None, str | None]


class CredentialSources:
    """Makes what keeps a credential fresh, once for each config of one."""

    def __init__(self, environ: Mapping[str, str], clock: Clock, draw: Callable[[], float]) -> None:
        """`draw` gives uniform numbers from [0, 1)."""
        self._environ = environ
        self._clock = clock
        self._draw = draw
        self._live: dict[_Key, tuple[LiveCredential, CredentialAsker]] = {}
        self._retired: list[tuple[LiveCredential, CredentialAsker]] = []
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, auth: CloudAuth, provider: Provider) -> LiveCredential:
        """Returns the credential that a provider is called with; nothing is fetched before it is used."""
        key = _key(auth, provider)
        found = self._live.get(key)
        if found is None:
            asker = CredentialAsker(provider.proxy, provider.ca_file)
            mint = self._mint_of(auth, asker)
            found = self._live[key] = (LiveCredential(str(auth), mint, self._clock, self._draw), asker)
        return found[0]

    def _mint_of(self, auth: CloudAuth, asker: CredentialAsker) -> Callable[[], Awaitable[Minted]]:
        """Returns what fetches the credential."""
        if auth.cloud == "google":
            from gateway.credentials.google.google import GoogleSource  # nobody loads what he does not use

            return GoogleSource(auth, self._environ, asker, self._clock.wall).mint
        from gateway.credentials.aws.aws import AwsSource  # as above

        return AwsSource(auth, self._environ, asker, self._clock.wall).mint

    def keep_only(self, providers: Collection[Provider]) -> None:
        """Lets those go that none of these providers uses: calls that still have one may use it to their end.

        The oldest of them are closed; one that is used even then opens its connections again.
        """
        used = {_key(one.auth, one) for one in providers if one.auth is not None}
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
        for live, asker in (*self._live.values(), *self._retired):
            await _close(live, asker)
        await asyncio.gather(*self._closing)
        self._live.clear()
        self._retired.clear()


async def _close(live: LiveCredential, asker: CredentialAsker) -> None:
    await live.aclose()
    await asker.aclose()


def _key(auth: CloudAuth, provider: Provider) -> _Key:
    return auth, provider.proxy, provider.ca_file
