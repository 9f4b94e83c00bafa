"""Which credential of a cloud a provider is called with, where no key of its own is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gateway.core.snapshot import Provider

Cloud = Literal["google", "aws"]
Service = Literal["bedrock", "bedrock-mantle"]
"""What a signature is for, as AWS names it."""


@dataclass(frozen=True, slots=True)
class CloudAuth:
    """Where a credential comes from. Two equal ones share the credential that was fetched, also over a reload."""

    cloud: Cloud
    source: str
    """One of the sources of `credentials/config.py`, such as `metadata` or `imds`; `default`: the first that has one."""
    file: str | None = None
    profile: str | None = None
    region: str = ""
    """The region of AWS: it is a part of each signature."""
    service: Service = "bedrock"
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    """A bearer token that is written down."""

    def __str__(self) -> str:
        return f"{self.cloud} {self.source}"


def auth_of(provider: Provider) -> CloudAuth | None:
    """Returns the cloud's credential that a provider is called with; None: it has none."""
    return provider.auth if isinstance(provider.auth, CloudAuth) else None
