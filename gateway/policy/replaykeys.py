"""Under which keys a call's answer is kept and shared: full SHA-256 digests over length-prefixed parts.

A key holds all that decides about an answer: who asks (tenant, and the caller's own credential where that is passed on), the
endpoint, the model, the version of the policy, the headers that change meanings, and the body in canonical form. Invariant:
requests of two owners never have a key in common, whatever they contain.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import sha256
from typing import Any

import orjson

from gateway.call import Call
from gateway.policy.caching import NOT_OF_THE_QUESTION, Caching
from gateway.policy.multipart import MultipartError, boundary_of

TELLING = (b"openai-", b"anthropic-")
"""Headers that start so change what is asked for: betas, versions, whose account it is."""


def digest(*parts: bytes) -> bytes:
    """32 bytes that no other parts give: each goes in behind its length."""
    return sha256(b"".join([b"%d:%b" % (len(part), part) for part in parts])).digest()


def canonical(call: Call, parsed: dict[str, Any], left_out: Collection[str] = ()) -> bytes:
    """The body in one form: keys sorted at every depth, no white space, without these top-level fields.

    A body that is nested too deeply to be written like that stands for itself.
    """
    kept = {name: value for name, value in parsed.items() if name not in left_out} if left_out else parsed
    try:
        return orjson.dumps(kept, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return call.body


def owner_of(call: Call) -> bytes:
    """Whose answer it is: the tenant's, or one caller's among those who bring their own credential."""
    return digest(call.tenant.encode(), call.credential or b"")


def exact_key(call: Call, parsed: dict[str, Any], caching: Caching) -> bytes:
    """Equal for two calls whose answers may stand for each other, streamed or not."""
    left_out = NOT_OF_THE_QUESTION | caching.exact.ignore if caching.exact.ignore else NOT_OF_THE_QUESTION
    return partition_key(call, caching, canonical(call, parsed, left_out))


def partition_key(call: Call, caching: Caching, rest: bytes) -> bytes:
    """As the exact key, for another form of the body."""
    return digest(
        call.tenant.encode(),
        call.credential or b"",
        call.path.encode(),
        call.query,
        call.model.name.encode(),
        call.model_name.encode(),
        caching.version.encode(),
        *_telling(call),
        rest,
    )


def flight_key(call: Call, parsed: dict[str, Any], exact: bytes) -> bytes:
    """Equal for two calls whose answers are the same byte for byte."""
    if not call.stream:
        return exact
    return digest(exact, b"stream", canonical(call, {"options": parsed.get("stream_options")}))


def record_key(call: Call, idempotency_key: bytes) -> bytes:
    """The record that an `Idempotency-Key` of this owner names."""
    return digest(b"record", owner_of(call), idempotency_key)


def fingerprint(call: Call) -> bytes:
    """What a repetition with the same `Idempotency-Key` has to be equal in: the path and the whole body.

    Of a multipart body the boundary does not count: clients draw it anew each time they send.
    """
    body = canonical(call, call.parsed) if call.parsed is not None else _without_boundary(call)
    return digest(call.method.encode(), call.path.encode(), call.query, body)


def _telling(call: Call) -> list[bytes]:
    told = [header for header in call.headers if header[0].startswith(TELLING)]
    return [part for header in sorted(told) for part in header]


def _without_boundary(call: Call) -> bytes:
    try:
        boundary = boundary_of(dict(call.headers).get(b"content-type", b""))
    except MultipartError:
        return call.body
    return call.body.replace(boundary, b"")
