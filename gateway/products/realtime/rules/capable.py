"""Which providers can have realtime sessions, as far as the config tells."""

from __future__ import annotations

from gateway.core.snapshot.snapshot.provider import Provider
from gateway.core.types.words import EMULATOR

SPEAK_REALTIME = frozenset(("openai", "azure"))
"""The dialects with a Realtime API, of OpenAI's form."""


def why_no_sessions(provider: Provider) -> str | None:
    """Returns what keeps a provider from having realtime sessions, to follow its name; None: nothing does."""
    if provider.base_url.startswith(EMULATOR):
        return "is the emulator"
    if provider.dialect not in SPEAK_REALTIME:
        return f"has the dialect {provider.dialect}, whose API has none"
    if provider.auth is not None:
        return "is called with a cloud's credential (auth), and the endpoints of clouds that take it have none"
    if provider.proxy is not None and not provider.proxy.startswith("http://"):
        return "is behind a proxy that is not http://"
    return None
