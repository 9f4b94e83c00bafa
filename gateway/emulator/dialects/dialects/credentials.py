"""Who calls: the key of a call in each provider's manner, and AWS's signatures.

It must not know limits. Sources: the providers' pages on authentication, and AWS's on Signature Version 4.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, quote

from gateway.emulator.app.call.call import EmulatedCall
from gateway.emulator.problems.problems import EmulatedProblem, ProblemError
from gateway.emulator.problems.refusing import invalid_credential

_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d{8}/[^/]+/[^/]+/aws4_request),\s*SignedHeaders=([^,\s]+),\s*Signature=(\w+)"
)
_OWN = {"messages": b"x-api-key", "generate": b"x-goog-api-key"}
_MUST_SIGN = frozenset({"host", "x-amz-date"})


def key_of(call: EmulatedCall) -> str:
    """Returns the key of a call: of AWS's signature the id of the key, or nothing."""
    bearer = call.header(b"authorization").decode("latin-1")
    if call.dialect == "converse" and (signed := _SIGNED.fullmatch(bearer)):
        return str(signed[1])
    own = call.header(_OWN.get(call.dialect, b""))
    if own:
        return own.decode("latin-1")
    asked = dict(parse_qsl(call.scope.get("query_string", b"").decode("latin-1")))
    if call.dialect == "generate" and asked.get("key"):
        return str(asked["key"])
    return bearer[7:].strip() if bearer[:7].lower() == "bearer " else ""


def let_in(call: EmulatedCall, wanted: str) -> None:
    """Raises ProblemError unless the call has the key `wanted`; `ID:SECRET` is one that AWS's calls are signed with."""
    key = key_of(call)
    signed = _SIGNED.fullmatch(call.header(b"authorization").decode("latin-1"))
    if call.dialect == "converse" and signed is not None and ":" in wanted:
        wanted, _, secret = wanted.partition(":")
        if key == wanted and signature_of(call, secret, signed[2], signed[3].split(";")) != signed[4]:
            text = "The request signature we calculated does not match the signature you provided."
            rule = "Check your AWS Secret Access Key and signing method."
            raise ProblemError(EmulatedProblem(403, f"{text} {rule}", kind="InvalidSignatureException"))
    if key != wanted:
        raise ProblemError(invalid_credential(call.dialect, call.path, is_missing=not key))


def signature_of(call: EmulatedCall, secret: str, scope: str, names: Sequence[str]) -> str:
    """Returns the signature that the call should have over the headers of these `names`, in hex."""
    if not set(names) >= _MUST_SIGN:
        return ""
    headers = "".join(f"{name}:{' '.join(call.header(name.encode()).decode('latin-1').split())}\n" for name in names)
    query = sorted(parse_qsl(call.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    asked = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query)
    path = quote(call.scope.get("raw_path", b"").decode("latin-1").partition("?")[0], safe="/-_.~")
    digest = hashlib.sha256(call.body).hexdigest()
    request = "\n".join((call.method, path, asked, headers, ";".join(names), digest))
    when = call.header(b"x-amz-date").decode("latin-1")
    told = "\n".join(("AWS4-HMAC-SHA256", when, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, told.encode(), "sha256").hex()
