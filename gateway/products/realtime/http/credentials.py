"""What a handshake's subprotocols say: browsers cannot set headers, so OpenAI's clients put the key there.

A credential is taken out here, and goes nowhere else: not to a provider as a subprotocol, not into the answer, not into a log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from gateway.core.errors import InvalidRequest

HEADER = b"sec-websocket-protocol"
_KEY = b"openai-insecure-api-key."
_ACCOUNT = (b"openai-organization.", b"openai-project.")
_TOKEN = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Offered(NamedTuple):
    """The subprotocols of a handshake, apart."""

    key: bytes | None
    """The credential; None: there is none among them."""
    account: list[bytes]
    """Those that name an account at OpenAI."""
    others: list[bytes]
    """Those that may be chosen, in the client's order."""


def read_subprotocols(headers: Iterable[tuple[bytes, bytes]]) -> Offered:
    """Returns what was offered. Raises InvalidRequest for what is no subprotocol, or two keys; without quoting either."""
    offers = [
        offer.strip() for name, value in headers if name == HEADER for offer in value.split(b",") if offer.strip()
    ]
    if any(not _TOKEN.issuperset(offer) for offer in offers):
        raise InvalidRequest(
            "The header 'Sec-WebSocket-Protocol' must be a list of tokens, such as 'realtime'.",
            param="Sec-WebSocket-Protocol",
        )
    keys = {offer[len(_KEY) :] for offer in offers if offer.startswith(_KEY)}
    if len(keys) > 1:
        raise InvalidRequest("Only one API key may be offered as a subprotocol.", param="Sec-WebSocket-Protocol")
    account = [offer for offer in offers if offer.startswith(_ACCOUNT)]
    others = [offer for offer in offers if not offer.startswith((_KEY, *_ACCOUNT))]
    return Offered(next(iter(keys), None), account, [*dict.fromkeys(others)])
