"""What makes two requests the same: the `Idempotency-Key` by which a caller says so, and digests of who asks for what.

Digests are full SHA-256 over length-prefixed parts. Invariant: requests of two owners never have a key in common, whatever they
contain. Last the refusals of keys.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

import orjson

from gateway.core.call import Call, Slot
from gateway.core.errors import CallerFault, InvalidRequest
from gateway.core.openai.bodies import MultipartError, boundary_of
from gateway.core.openai.headers import ACCOUNTS
from gateway.core.openai.json_edit import outside_strings
from gateway.core.types import Endpoint

# --- the key that a caller sends ---

SENT_KEY: Final[Slot[bytes]] = Slot("idempotency key")
"""The key as the client sent it, without quotes."""
IDEMPOTENT = (b"idempotent-replayed", b"true")
"""The header of an answer that the key has got before."""
_KEY = re.compile(rb"""(?s:"((?:[ !#-\[\]-~]|\\["\\]){1,255})"|([!#-~][ -~]{0,254}))""")
_ESCAPED = re.compile(rb"\\(.)")


def read_idempotency_key(headers: Mapping[bytes, bytes], endpoint: Endpoint) -> bytes | None:
    """Returns the `Idempotency-Key`, quoted (a string of RFC 8941) or bare. Raises InvalidRequest for one that is none.

    On paths that are passed through it is the provider's business.
    """
    sent = headers.get(b"idempotency-key")
    if sent is None or endpoint.request == "any":
        return None
    bare = _KEY.fullmatch(sent.strip())
    if bare is None:
        raise InvalidRequest(
            "The header 'Idempotency-Key' must have 1 to 255 printable ASCII characters, in double quotes or without.",
            param="Idempotency-Key",
            code="invalid_idempotency_key",
        )
    return bare[2] if bare[1] is None else _ESCAPED.sub(rb"\1", bare[1])


# --- digests ---

TELLING = (b"openai-", b"anthropic-")
"""The prefixes of headers that change the question: betas, versions, accounts."""
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


def canonical(call: Call, parsed: dict[str, Any], left_out: Collection[str] = ()) -> bytes:
    """Returns the body, parsed, in one form: keys sorted at every depth, no white space, without these top-level fields.

    A body stands for itself when two parsers may read it differently, or when it is nested too deeply to be written again, or
    large: programs write it the same way again. For one that is not parsed its digest stands.
    """
    if len(call.request.body) > LARGE_BYTES:
        return call.request.body if call.request.large is None else call.request.large.digest or call.request.body
    return sorted_json(parsed, left_out) if reads_one_way(call.request.body, parsed) else call.request.body


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


def sorted_json(parsed: dict[str, Any], left_out: Collection[str] = ()) -> bytes:
    """Returns the object as JSON with its keys sorted at every depth, without these top-level fields."""
    kept = parsed
    if not parsed.keys().isdisjoint(left_out):
        kept = {name: value for name, value in parsed.items() if name not in left_out}
    return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)


def owner_of(call: Call) -> bytes:
    """Returns the answer's owner: the tenant, or for a caller's own credential that caller, in one account."""
    if call.request.credential is None:
        return digest(call.request.tenant.encode())
    accounts = [header for header in telling_headers(call) if header[0] in ACCOUNTS]
    return digest(call.request.tenant.encode(), call.request.credential, *flat_parts(accounts))


def record_key(call: Call, idempotency_key: bytes) -> bytes:
    """Returns the id of the record for this owner's `Idempotency-Key`: its digest, and 8 bytes that name the tenant."""
    return digest(b"record", owner_of(call), idempotency_key) + digest(b"tenant", call.request.tenant.encode())[:8]


def fingerprint(call: Call) -> bytes:
    """Returns the digest of all that a repetition of an `Idempotency-Key` must repeat: the path and the whole body.

    And that nothing may be lost of it: who says so gets no answer to less.
    The boundary of a multipart body does not count: clients draw it anew each time they send.
    """
    body = canonical(call, call.parsed) if call.parsed is not None else _multipart(call)
    edits = [repr(target.edits).encode() for target in call.route.model.plan if target.edits is not None]
    if call.route.model.on_loss == "refuse":
        edits.append(b"lossless")
    return digest(
        *edits,
        call.request.method.encode(),
        call.request.path.encode(),
        call.request.query,
        *flat_parts(telling_headers(call)),
        body,
    )


def telling_headers(call: Call) -> list[tuple[bytes, bytes]]:
    """Returns the headers that change the question, by name; those of one name keep their order, which may matter."""
    headers = [header for header in call.request.headers if header[0].startswith(TELLING)]
    return sorted(headers, key=_BY_NAME) if headers else headers


def flat_parts(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Returns names and values in one list."""
    return [part for header in headers for part in header]


def _multipart(call: Call) -> bytes:
    """Returns the digest of a multipart body's parts, in a form that no other body has."""
    if call.request.large is not None and call.request.large.digest:
        return call.request.large.digest
    try:
        boundary = boundary_of(dict(call.request.headers).get(b"content-type", b""))
    except MultipartError:
        return call.request.body
    return digest(*(b"\r\n" + call.request.body).split(b"\r\n--" + boundary))


# --- refusals of requests whose key cannot be met ---


class KeyInUse(CallerFault):
    """A call with the same `Idempotency-Key` is still running; a later repetition gets its answer."""

    status = 409
    should_retry: bool | None = True
    retry_after_s = 1.0
    code = "idempotency_key_in_use"


class KeyReused(CallerFault):
    """The `Idempotency-Key` belongs to another request (draft-ietf-httpapi-idempotency-key-header-07, 2.7)."""

    status = 422
    type = "idempotency_error"
    code = "idempotency_key_reused"
