"""What a request may be answered with, and the keys under which a call's answer is stored and shared.

First the `Cache-Control` of requests and answers. Then the keys: digests as in `features/identity.py`. A key holds all that
decides about an answer: who asks (tenant, and the caller's own credential where that is passed on), the endpoint, the model,
the version of the policy, the headers that change meanings, and the body in canonical form. Last the refusal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from math import inf
from typing import Any, Final

from gateway.core.call import Call, Slot
from gateway.core.errors import GatewayError
from gateway.features.identity import canonical, digest, flat_parts, sorted_json, telling_headers
from gateway.features.reuse.rules import CONVERTIBLE, NOT_OF_THE_QUESTION, Caching

# --- the `Cache-Control` of requests and answers: what may be given, and for how long an answer is fresh ---

CACHE_CONTROL: Final[Slot[bytes]] = Slot("cache control")
"""The header as the client sent it."""
_MOST_S = 2_147_483_648.0
"""The value that a number too great to be meant is taken for (RFC 9111, 1.2.2)."""
_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Directives:
    """The cache directives of a request. Ages are seconds; None: no bound.

    Invariants: an unreadable directive is taken as strictly as it could be meant, an unknown one is ignored; `no-store` forbids
    storing the answer, not giving a stored one. Sources: RFC 9111, 5.2.1 (requests), 4.2 and 5.2.2 (answers).
    """

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
    directives = _by_name(value)
    return Directives(
        no_store=b"no-store" in directives,
        no_cache=b"no-cache" in directives,
        only_if_cached=b"only-if-cached" in directives,
        max_age_s=min(_seconds(directives, b"max-age", unread=0.0), default=None),
        min_fresh_s=max(_seconds(directives, b"min-fresh", unread=inf), default=0.0),
        max_stale_s=min(_seconds(directives, b"max-stale", unread=0.0, bare=inf), default=None),
    )


def serves(directives: Directives, age_s: float, fresh_for_s: float) -> bool:
    """Returns whether an answer of this age may be given as it is; a negative `fresh_for_s` says how long it has been stale.

    A bound on the age holds for stale ones too.
    """
    if directives.no_cache or (directives.max_age_s is not None and age_s > directives.max_age_s):
        return False
    if directives.min_fresh_s and fresh_for_s < directives.min_fresh_s:
        return False
    return fresh_for_s > 0 or (directives.max_stale_s is not None and -fresh_for_s <= directives.max_stale_s)


def age_headers(age_s: float, fresh_s: float) -> list[tuple[bytes, bytes]]:
    """Returns `age` and `cache-control` of an answer that stays fresh for `fresh_s`; a stale one is to be asked for anew.

    Caches count `max-age` from when the answer was made, and take `age` off it.
    """
    age = max(0, int(age_s))
    left = int(fresh_s)
    control = b"private, max-age=%d" % (age + left) if left > 0 else b"private, no-cache"
    return [(b"age", b"%d" % age), (b"cache-control", control)]


def _by_name(value: bytes) -> dict[bytes, list[bytes | None]]:
    """Returns the arguments of each directive, without quotes; None for one that has none."""
    values: dict[bytes, list[bytes | None]] = {}
    quotes = value.count(b'"')
    for part in _split_quoted(value) if quotes and quotes % 2 == 0 else value.split(b","):
        name, equals, argument = part.partition(b"=")
        values.setdefault(name.strip().lower(), []).append(argument.strip(b' \t"') if equals else None)
    return values


def _split_quoted(value: bytes) -> list[bytes]:
    """Splits at commas, but not in a quoted string (RFC 9110, 5.6.4)."""
    parts = [b""]
    for number, piece in enumerate(value.split(b'"')):
        first, *others = [piece] if number % 2 else piece.split(b",")
        parts[-1] += first
        parts += others
    return parts


def _seconds(
    directives: dict[bytes, list[bytes | None]], name: bytes, *, unread: float, bare: float | None = None
) -> list[float]:
    """Returns the numbers that this directive was given; `unread` stands for what is none, `bare` for a missing one."""
    without = unread if bare is None else bare
    return [without if argument is None else _number(argument, unread) for argument in directives.get(name, ())]


def _number(argument: bytes, unread: float) -> float:
    if not argument.isdigit():
        return unread
    return min(_MOST_S, float(argument)) if len(argument) <= _MOST_DIGITS else _MOST_S


def exact_key(call: Call, parsed: dict[str, Any], caching: Caching) -> bytes:
    """Returns a key, equal for two calls whose answers may stand for each other, also converted between stream and whole."""
    left_out = NOT_OF_THE_QUESTION if call.request.endpoint.name in CONVERTIBLE else frozenset()
    if caching.exact.ignore:
        left_out |= caching.exact.ignore
    return partition_key(call, caching, canonical(call, parsed, left_out))


def partition_key(call: Call, caching: Caching, rest: bytes) -> bytes:
    """Returns the exact key for a request without its last question."""
    credential = b"" if call.request.credential is None else sha256(call.request.credential).digest()
    place: tuple[str, ...] = call.request.path, call.route.model.name, call.request.model_name, caching.version
    if call.route.model.on_loss == "refuse":  # others' answers may be to less than what was asked
        place = *place, "lossless"
    headers = telling_headers(call)
    telling = tuple(flat_parts(headers)) if headers else ()
    return sha256(_whose(call.request.tenant, credential, call.request.query, place, telling) + rest).digest()


@lru_cache(maxsize=1024)
def _whose(tenant: str, credential: bytes, query: bytes, place: tuple[str, ...], telling: tuple[bytes, ...]) -> bytes:
    """Returns all of a key but the body, in 32 bytes: it is the same for most calls. The credential is a digest already."""
    return digest(tenant.encode(), credential, query, *(part.encode() for part in place), *telling)


def flight_key(call: Call, parsed: dict[str, Any], exact: bytes) -> bytes:
    """Returns a key, equal for two calls whose answers are the same byte for byte."""
    if not call.request.stream:
        return exact
    try:
        options = sorted_json({"options": parsed.get("stream_options")})
    except TypeError:
        options = canonical(call, {})
    return digest(exact, b"stream", options)


# --- the refusal of requests whose directives cannot be met ---


class NotCached(GatewayError):
    """The client takes cached answers only, and there is none (RFC 9111, 5.2.1.7)."""

    status = 504
    type = "invalid_request_error"
    should_retry: bool | None = False
    code = "not_cached"
