"""How the end of a connection is told from an answer that somebody has cut short."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import httpx

READ_BYTES_OF_TLS = 64 * 1024


def take_rest(tls: ssl.SSLObject, take: Callable[[bytes], bool]) -> bool:
    """Take what TLS still holds, and tell whether the provider's close_notify follows it; `take` says whether to go on.

    Without one anybody on the way can have cut the answer short (RFC 8446, 6.1). Neither loop tells the two ends apart
    by its callbacks, and both forget what is decrypted when the connection closes behind a reader who pauses.
    """
    try:
        while data := tls.read(READ_BYTES_OF_TLS):
            if not take(data):
                return False
    except ssl.SSLError:  # wants more, which will not come; or what came is not of this session
        return False
    return True


def closed_early(*, is_silent: bool, is_open_ended: bool) -> httpx.RemoteProtocolError:
    """The error of an answer whose connection ended before it did, or before it began."""
    where = "without answering" if is_silent else "in the middle of its answer"
    if is_open_ended:
        where = "without saying that its answer was over (TLS close_notify)"
    return httpx.RemoteProtocolError(f"the provider closed the connection {where}")
