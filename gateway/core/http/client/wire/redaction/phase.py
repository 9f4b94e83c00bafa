"""How far a request got before it failed: the one fact that decides whether it may be tried again.

`NOTHING_SENT`: no byte of the request left this process. `SENT`: the provider may have seen it, nothing was answered.
`ANSWERED`: a status line arrived and the rest broke. Exceptions of `Http1Transport` carry the phase; those of other
httpx transports are judged by their type. Invariant: `NOTHING_SENT` is only said when it is certain.
"""

from __future__ import annotations

from typing import TypeVar

import httpx

from gateway.core.types.provider_errors import Phase

_E = TypeVar("_E", bound=httpx.TransportError)

_NOTHING_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
)


def with_phase(error: _E, phase: Phase) -> _E:
    """Mark `error` with the phase it happened in and return it."""
    error.phase = phase  # type: ignore[attr-defined]  # httpx has no field for it; `phase_of` is the reader
    return error


def phase_of(error: BaseException, *, answered: bool = False) -> Phase:
    """Tell the phase of any transport's failure; `answered` says that it came while the body was being read."""
    marked: Phase | None = getattr(error, "phase", None)
    if marked is not None:
        return marked
    if answered:
        return Phase.ANSWERED
    return Phase.NOTHING_SENT if isinstance(error, _NOTHING_SENT) else Phase.SENT
