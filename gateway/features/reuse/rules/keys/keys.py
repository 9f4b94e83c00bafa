"""The keys under which a call's answer is stored and shared: full SHA-256 digests over length-prefixed parts.

A key holds all that decides about an answer: who asks (tenant, and the caller's own credential where that is passed on), the
endpoint, the model, the version of the policy, the headers that change meanings, and the body in canonical form. Invariant:
requests of two owners never have a key in common, whatever they contain.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from hashlib import sha256
from operator import itemgetter
from typing import Any

import orjson

from gateway.core.openai.bodies.multipart import MultipartError, boundary_of
from gateway.core.openai.json_edit.json_text import outside_strings
from gateway.core.snapshot.snapshot.request import Request
from gateway.features.reuse.rules.rules import CONVERTIBLE, NOT_OF_THE_QUESTION, Caching

TELLING = (b"openai-", b"anthropic-")
"""The prefixes of headers that change the question: betas, versions, accounts."""
ACCOUNTS = frozenset((b"openai-organization", b"openai-project", b"anthropic-workspace-id"))
"""The headers among them that name a credential's account; they go upstream only with the caller's own credential."""

_WHITE = b" \t\r\n"
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
"""Matches whole numbers from 2**63 on, about which parsers disagree: some round them."""
_BY_NAME = itemgetter(0)
LARGE_BYTES = 131_072
"""The bytes above which writing a body in canonical form would block the event loop for milliseconds."""


def digest(*parts: bytes) -> bytes:
    """Returns 32 bytes that no other parts give: each goes in behind its length."""
    return sha256(b"".join([b"%d:%b" % (len(part), part) for part in parts])).digest()


def canonical(request: Request, parsed: dict[str, Any], left_out: Collection[str] = ()) -> bytes:
    """Returns the body, parsed, in one form: keys sorted at every depth, no white space, without these top-level fields.

    A body stands for itself when two parsers may read it differently, or when it is nested too deeply to be written again, or
    large: programs write it the same way again. For one that is not parsed its digest stands.
    """
    if len(request.body) > LARGE_BYTES:
        return request.body if request.large is None else request.large.digest or request.body
    return _sorted(parsed, left_out) if reads_one_way(request.body, parsed) else request.body


def reads_one_way(body: bytes, parsed: dict[str, Any]) -> bool:
    """Returns whether every parser reads the same in the body: no key twice in an object, no number beyond its precision.

    Who sends such a body may get another answer from a provider than the one who sends what we have read in it.
    """
    try:
        written = orjson.dumps(parsed)
    except TypeError:
        return False  # too deep
    if written == body or written.translate(None, _WHITE) == body.translate(None, _WHITE):
        return True  # then each key and number of the body stands in it, too
    bare = outside_strings(body)
    return bare.count(b":") == outside_strings(written).count(b":") and _LONG_NUMBER not in bare.translate(_DIGITS)


def _sorted(parsed: dict[str, Any], left_out: Collection[str] = ()) -> bytes:
    kept = parsed
    if not parsed.keys().isdisjoint(left_out):
        kept = {name: value for name, value in parsed.items() if name not in left_out}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)


def owner_of(request: Request) -> bytes:
    """Returns the answer's owner: the tenant, or for a caller's own credential that caller, in one account."""
    if request.credential is None:
        return digest(request.tenant.encode())
    accounts = [header for header in _telling(request) if header[0] in ACCOUNTS]
    return digest(request.tenant.encode(), request.credential, *_flat(accounts))


def exact_key(request: Request, parsed: dict[str, Any], caching: Caching) -> bytes:
    """Returns a key, equal for two calls whose answers may stand for each other, also converted between stream and whole."""
    left_out = NOT_OF_THE_QUESTION if request.endpoint.name in CONVERTIBLE else frozenset()
    if caching.exact.ignore:
        left_out |= caching.exact.ignore
    return partition_key(request, caching, canonical(request, parsed, left_out))


def partition_key(request: Request, caching: Caching, rest: bytes) -> bytes:
    """Returns the exact key for a request without its last question."""
    credential = b"" if request.credential is None else sha256(request.credential).digest()
    place: tuple[str, ...] = request.path, request.model.name, request.model_name, caching.version
    if request.model.on_loss == "refuse":  # others' answers may be to less than what was asked
        place = *place, "lossless"
    told = _telling(request)
    telling = tuple(_flat(told)) if told else ()
    return sha256(_whose(request.tenant, credential, request.query, place, telling) + rest).digest()


@lru_cache(maxsize=1024)
def _whose(tenant: str, credential: bytes, query: bytes, place: tuple[str, ...], telling: tuple[bytes, ...]) -> bytes:
    """Returns all of a key but the body, in 32 bytes: it is the same for most calls. The credential is a digest already."""
    return digest(tenant.encode(), credential, query, *(part.encode() for part in place), *telling)


def flight_key(request: Request, parsed: dict[str, Any], exact: bytes) -> bytes:
    """Returns a key, equal for two calls whose answers are the same byte for byte."""
    if not request.stream:
        return exact
    try:
        options = _sorted({"options": parsed.get("stream_options")})
    except TypeError:
        options = canonical(request, {})
    return digest(exact, b"stream", options)


def record_key(request: Request, idempotency_key: bytes) -> bytes:
    """Returns the id of the record for this owner's `Idempotency-Key`: its digest, and 8 bytes that name the tenant."""
    return digest(b"record", owner_of(request), idempotency_key) + digest(b"tenant", request.tenant.encode())[:8]


def fingerprint(request: Request) -> bytes:
    """Returns the digest of all that a repetition of an `Idempotency-Key` must repeat: the path and the whole body.

    And that nothing may be lost of it: who says so gets no answer to less.
    The boundary of a multipart body does not count: clients draw it anew each time they send.
    """
    body = canonical(request, request.parsed) if request.parsed is not None else _multipart(request)
    edits = [repr(target.edits).encode() for target in request.model.plan if target.edits is not None]
    if request.model.on_loss == "refuse":
        edits.append(b"lossless")
    return digest(
        *edits, request.method.encode(), request.path.encode(), request.query, *_flat(_telling(request)), body
    )


def _telling(request: Request) -> list[tuple[bytes, bytes]]:
    """Returns the headers that change the question, by name; those of one name keep their order, which may matter."""
    told = [header for header in request.headers if header[0].startswith(TELLING)]
    return sorted(told, key=_BY_NAME) if told else told


def _flat(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [part for header in headers for part in header]


def _multipart(request: Request) -> bytes:
    """Returns the digest of a multipart body's parts, in a form that no other body has."""
    if request.large is not None and request.large.digest:
        return request.large.digest
    try:
        boundary = boundary_of(dict(request.headers).get(b"content-type", b""))
    except MultipartError:
        return request.body
    return digest(*(b"\r\n" + request.body).split(b"\r\n--" + boundary))
