"""Signatures of AWS, version 4: what a request says is hashed, and the hash signed with a key of the day.

A pure function of the request, the keys and the time. What is signed has to be what is sent, byte for byte: host, path, query
and the headers that are named. Of the path, which is encoded already, every step is encoded once more, as all services but S3
want it.

Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

from __future__ import annotations

import hmac
import time
from hashlib import sha256
from typing import Final
from urllib.parse import quote_from_bytes

from gateway.core.types.splice import Spliced
from gateway.credentials.google.minted import AwsKeys

_MOST_KEPT: Final = 256


class SigV4:
    """Signs requests to one service in one region."""

    __slots__ = ("_added", "_date", "_heads", "_key", "_keys", "_places", "_scope", "_second", "_stamp", "_tail")

    def __init__(self, region: str, service: str) -> None:
        self._tail = f"/{region}/{service}/aws4_request".encode()
        self._second = -1
        self._stamp = self._date = self._scope = self._key = b""
        self._keys: AwsKeys | None = None
        self._added: list[tuple[bytes, bytes]] = []
        self._heads: dict[tuple[str, bytes, tuple[tuple[bytes, bytes], ...]], tuple[bytes, bytes]] = {}
        self._places: dict[bytes, bytes] = {}

    def headers(
        self,
        keys: AwsKeys,
        method: str,
        target: bytes,
        said: tuple[tuple[bytes, bytes], ...],
        body_hash: str,
        now: float,
    ) -> list[tuple[bytes, bytes]]:
        """Returns the headers that sign a request.

        `target` is the path and query of its first line, `said` are the headers to be signed, names in lower case, `host`
        among them; `now` is in seconds since the epoch.
        """
        second = int(now)
        if second != self._second or keys is not self._keys:
            self._begin(keys, second)
        asked = (method, target, said)
        head, credential = self._heads.get(asked) or self._head(asked)
        request = sha256(b"%b%b" % (head, body_hash.encode())).hexdigest().encode()
        to_sign = b"AWS4-HMAC-SHA256\n%b\n%b\n%b" % (self._stamp, self._scope, request)
        signature = hmac.digest(self._key, to_sign, "sha256").hex().encode()
        return [*self._added, (b"authorization", credential + signature)]

    def _head(self, asked: tuple[str, bytes, tuple[tuple[bytes, bytes], ...]]) -> tuple[bytes, bytes]:
        """Returns what is hashed before the body's hash, and the header before the signature; kept for this second."""
        method, target, said = asked
        signed = sorted([*said, *self._added])
        names = b";".join([name for name, _ in signed])
        lines = b"".join([b"%b:%b\n" % (name, b" ".join(value.split())) for name, value in signed])
        place = self._places.get(target) or self._place(target)
        access_key = b"" if self._keys is None else self._keys.access_key.encode()
        what = b"AWS4-HMAC-SHA256 Credential=%b/%b, SignedHeaders=%b, Signature="
        made = b"%b\n%b\n%b\n%b\n" % (method.encode(), place, lines, names), what % (access_key, self._scope, names)
        if len(self._heads) < _MOST_KEPT:
            self._heads[asked] = made
        return made

    def _begin(self, keys: AwsKeys, second: int) -> None:
        """Takes the time, and where the day or the keys are others, makes the key that signs."""
        self._stamp, self._second = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second)).encode(), second
        self._heads.clear()
        self._added = [(b"x-amz-date", self._stamp)]
        if keys.session_token is not None:
            self._added.append((b"x-amz-security-token", keys.session_token.encode()))
        date = self._stamp[:8]
        if date == self._date and keys is self._keys:
            return
        self._date, self._keys, self._scope = date, keys, date + self._tail
        key = b"AWS4" + keys.secret_key.encode()
        for part in (date, *self._tail[1:].split(b"/")):
            key = hmac.digest(key, part, "sha256")
        self._key = key

    def _place(self, target: bytes) -> bytes:
        """Returns path and query in the form that is signed, on a line each; kept, as calls go to few places."""
        path, _, query = target.partition(b"?")
        place = quote_from_bytes(_tidy(path), safe="/~").encode() + b"\n" + _sorted(query)
        if len(self._places) >= _MOST_KEPT:
            self._places.clear()
        self._places[target] = place
        return place


def _tidy(path: bytes) -> bytes:
    """Takes out dots and empty steps (RFC 3986, 5.2.4), as AWS does before it looks at a signature."""
    steps: list[bytes] = []
    for step in path.split(b"/"):
        if step == b"..":
            del steps[-1:]
        elif step not in (b"", b"."):
            steps.append(step)
    end = b"/" if path.endswith(b"/") and steps else b""
    return b"/" + b"/".join(steps) + end


def _sorted(query: bytes) -> bytes:
    """Returns a query, which is encoded already, in the order of names and values."""
    pairs = sorted(part.partition(b"=")[::2] for part in query.split(b"&") if part) if query else ()
    return b"&".join([b"%b=%b" % pair for pair in pairs])


def hash_of(body: bytes | Spliced) -> str:
    """Returns the SHA-256 of a body in hexadecimal digits, without a copy of one that is in pieces."""
    if not isinstance(body, Spliced):
        return sha256(body).hexdigest()
    total = sha256()
    for piece in body.pieces(65_536):
        total.update(piece)
    return total.hexdigest()
