"""The assertion of a Google service account: a JWT signed with its key (RFC 7523; RS256 of RFC 7518).

Needs the package cryptography, which is imported with the first assertion.
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import Final

import orjson

LIFE_S: Final = 3600
SKEW_S: Final = 10
"""It counts from so long ago, for clocks that go ahead of Google's."""


def assertion(email: str, key_pem: str, key_id: str, audience: str, scope: str, now: float) -> str:
    """Returns the assertion. Raises ImportError without the package, ValueError or TypeError for what is no RSA key."""
    from cryptography.hazmat.primitives import hashes  # it takes 50 ms, and few configs need it
    from cryptography.hazmat.primitives.asymmetric import padding, rsa  # as above
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # as above

    key = load_pem_private_key(key_pem.encode(), password=None)
    if not isinstance(key, rsa.RSAPrivateKey):
        raise TypeError("it is no RSA key")
    begins = int(now) - SKEW_S
    head = {"alg": "RS256", "typ": "JWT", **({"kid": key_id} if key_id else {})}
    claims = {"iss": email, "scope": scope, "aud": audience, "iat": begins, "exp": begins + LIFE_S}
    signed = f"{_encoded(orjson.dumps(head))}.{_encoded(orjson.dumps(claims))}"
    return f"{signed}.{_encoded(key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encoded(part: bytes) -> str:
    return urlsafe_b64encode(part).rstrip(b"=").decode()
