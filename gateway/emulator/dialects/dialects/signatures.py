"""Signatures of thoughts, as a provider makes them: opaque, and valid for one text alone.

A thought that comes back is checked, so that a conversion that loses or alters one is found out. The key is fixed, so that
every emulator of a provider takes the others' signatures, as the provider's clouds do.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import blake2b

CLAUDE, GEMINI = b"emulated-claude", b"emulated-gemini"
UNCHECKED = "skip_thought_signature_validator"
"""What Google documents for calls that another model made."""


def sign(issuer: bytes, text: str) -> str:
    """Returns the signature of a thought, as base64."""
    return b64encode(issuer + b":" + blake2b(text.encode("utf-8", "replace"), key=issuer).digest()).decode()


def is_gemini(signature: str, text: str) -> bool:
    """Tells whether Gemini takes `signature` for `text`; it is bytes in proto-JSON, so both alphabets of base64 will do."""
    told = signature.translate(_URL_SAFE)
    return told in (sign(GEMINI, text), b64encode(UNCHECKED.encode()).decode()) or signature == UNCHECKED


_URL_SAFE = str.maketrans("-_", "+/")
