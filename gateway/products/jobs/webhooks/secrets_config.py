"""Reads the secrets that sign webhooks: those of endpoints of the config, and those of keys whose requests name URLs."""

from __future__ import annotations

import base64
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.core.config.fields import problem_of, real_secret

MIN_SECRET_BYTES: Final = 24
_PREFIX: Final = "whsec_"
_REMEDY: Final = "`gateway webhooks rotate` makes one"


def _hook_secret(secret: object) -> object:
    """Returns the bytes of the key: what `whsec_` stands before is base64, everything else is taken as it is."""
    if not isinstance(secret, str):
        return secret
    key = _decoded(secret.removeprefix(_PREFIX)) if secret.startswith(_PREFIX) else real_secret(secret).encode()
    if len(key) < MIN_SECRET_BYTES:
        raise problem_of(f"is too short to be a secret: at least {MIN_SECRET_BYTES} bytes; {_REMEDY}")
    return key


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise problem_of(f"is not base64 after whsec_; {_REMEDY}") from None


def _one_or_two(secrets: list[bytes]) -> list[bytes]:
    if len(secrets) > 2:
        raise problem_of("takes one secret, or two while receivers change from one to the other")
    if len(set(secrets)) < len(secrets):
        raise problem_of("has the same secret twice")
    return secrets


HookSecret = Annotated[bytes, BeforeValidator(_hook_secret)]
HookSecrets = Annotated[list[HookSecret], Field(min_length=1), AfterValidator(_one_or_two)]
