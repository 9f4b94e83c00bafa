"""The `Cache-Control` of requests and answers: what a request may be answered with, and for how long an answer is fresh.

It must not know which answers are stored, nor where. Invariants: an unreadable directive is taken as strictly as it could be
meant, an unknown one is ignored; `no-store` forbids storing the answer, not giving a stored one.
Sources: RFC 9111, 5.2.1 (requests), 4.2 and 5.2.2 (answers).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

_MOST_S = 2_147_483_648.0
"""The value that a number too great to be meant is taken for (RFC 9111, 1.2.2)."""
_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Directives:
    """The cache directives of a request. Ages are seconds; None: no bound."""

    no_store: bool = False
    """The answer must not be stored."""
    no_cache: bool = False
    """No stored answer may be given."""
    only_if_cached: bool = False
    """True if only a stored answer may be given (`only-if-cached`)."""
    max_age_s: float | None = None
    min_fresh_s: float = 0.0
    """The answer has to stay fresh for at least this long, in seconds."""
    max_stale_s: float | None = None
    """The answer may have been stale for at most this long, in seconds; None: it may not be stale."""


ANYTHING = Directives()


def read_directives(value: bytes | None) -> Directives:
    """Returns the directives of a `Cache-Control`, its lines joined by commas; of a repeated directive the stricter holds."""
    if not value:
        return ANYTHING
    said = _by_name(value)
    return Directives(
        no_store=b"no-store" in said,
        no_cache=b"no-cache" in said,
        only_if_cached=b"only-if-cached" in said,
        max_age_s=min(_seconds(said, b"max-age", unread=0.0), default=None),
        min_fresh_s=max(_seconds(said, b"min-fresh", unread=inf), default=0.0),
        max_stale_s=min(_seconds(said, b"max-stale", unread=0.0, bare=inf), default=None),
    )


def serves(directives: Directives, age_s: float, fresh_for_s: float) -> bool:
    """Returns whether an answer of this age may be given as it is; a negative `fresh_for_s` tells how long it has been stale.

    A bound on the age holds for stale ones too.
    """
    if directives.no_cache or (directives.max_age_s is not None and age_s > directives.max_age_s):
        return False
    if directives.min_fresh_s and fresh_for_s < directives.min_fresh_s:
        return False
    return fresh_for_s > 0 or (directives.max_stale_s is not None and -fresh_for_s <= directives.max_stale_s)


def answer_headers(age_s: float, fresh_s: float) -> list[tuple[bytes, bytes]]:
    """Returns `age` and `cache-control` of an answer that stays fresh for `fresh_s`; a stale one is to be asked for anew.

    Caches count `max-age` from when the answer was made, and take `age` off it.
    """
    age = max(0, int(age_s))
    left = int(fresh_s)
    control = b"private, max-age=%d" % (age + left) if left > 0 else b"private, no-cache"
    return [(b"age", b"%d" % age), (b"cache-control", control)]


def _by_name(value: bytes) -> dict[bytes, list[bytes | None]]:
    """Returns the arguments of each directive, without quotes; None for one that has none."""
    said: dict[bytes, list[bytes | None]] = {}
    quotes = value.count(b'"')
    for part in _split_quoted(value) if quotes and quotes % 2 == 0 else value.split(b","):
        name, equals, argument = part.partition(b"=")
        said.setdefault(name.strip().lower(), []).append(argument.strip(b' \t"') if equals else None)
    return said


def _split_quoted(value: bytes) -> list[bytes]:
    """Splits at commas, but not in a quoted string (RFC 9110, 5.6.4)."""
    parts = [b""]
    for number, piece in enumerate(value.split(b'"')):
        first, *others = [piece] if number % 2 else piece.split(b",")
        parts[-1] += first
        parts += others
    return parts


def _seconds(
    said: dict[bytes, list[bytes | None]], name: bytes, *, unread: float, bare: float | None = None
) -> list[float]:
    """Returns the numbers that this directive was given; `unread` stands for what is none, `bare` for a missing one."""
    without = unread if bare is None else bare
    return [without if argument is None else _number(argument, unread) for argument in said.get(name, ())]


def _number(argument: bytes, unread: float) -> float:
    if not argument.isdigit():
        return unread
    return min(_MOST_S, float(argument)) if len(argument) <= _MOST_DIGITS else _MOST_S
