"""What news of breakers, hands and limits says in detail, as bytes and back.

It must not know what is done about it. Invariant: what cannot be read (another release's, garbage) is None or empty, and no
number that comes out is negative, infinite or not a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import NamedTuple

from gateway.core.admission.outcomes.health import Hand

MOST_REASON = 240
_MOST_EJECTIONS, _PERCENT = 255, 100
_HEAD = 3
_OPEN, _CLOSED, _REFUSED = 0x4F, 0x43, 0x52
_HANDS: Mapping[str, Hand] = {"open": "open", "closed": "closed", "drained": "drained", "undone": None}
Amount = tuple[float, float]
"""An amount, and the seconds over which it is counted."""


class BreakerMove(NamedTuple):
    """The move of a breaker that nobody set by hand."""

    is_open: bool
    """True if it is open now, False if it is closed."""
    ejections: int
    reason: str
    is_refused: bool = False
    """Of an account: the provider does not take its credential."""
    rate: float = 1.0
    """The share of failures that was seen, 0 to 1."""


def write_move(move: BreakerMove) -> bytes:
    """One letter, two numbers, the reason."""
    letter = _CLOSED if not move.is_open else _REFUSED if move.is_refused else _OPEN
    reason = move.reason.encode()[:MOST_REASON]
    return bytes((letter, min(move.ejections, _MOST_EJECTIONS), round(move.rate * _PERCENT))) + reason


def read_move(detail: bytes) -> BreakerMove | None:
    """Reads what `write_move` has written."""
    if len(detail) < _HEAD or detail[0] not in (_OPEN, _CLOSED, _REFUSED):
        return None
    letter, ejections, percent = detail[:_HEAD]
    reason = detail[_HEAD : _HEAD + MOST_REASON].decode(errors="replace")
    return BreakerMove(letter != _CLOSED, ejections, reason, letter == _REFUSED, min(1.0, percent / _PERCENT))


def write_hand(to: Hand, token: str) -> bytes:
    """`token` tells one act from another of the same kind."""
    return f"{to or 'undone'} {token}".encode()


def read_hand(detail: bytes) -> tuple[Hand, str] | None:
    """Returns the act and its token."""
    act, _, token = detail.decode(errors="replace").partition(" ")
    return (_HANDS[act], token) if act in _HANDS and token else None


def write_limits(limits: Mapping[str, Amount]) -> bytes:
    """`name=amount/seconds`, with a `;` between two."""
    return ";".join(f"{name}={amount!r}/{period_s!r}" for name, (amount, period_s) in limits.items()).encode()


def read_limits(detail: bytes) -> dict[str, Amount]:
    """Returns the limits that can be read."""
    limits = {}
    for part in detail.decode(errors="replace").split(";"):
        name, _, told = part.partition("=")
        amount, _, period = told.partition("/")
        try:
            pair = float(amount), float(period)
        except ValueError:
            continue
        if all(isfinite(number) and number > 0 for number in pair):
            limits[name] = pair
    return limits
