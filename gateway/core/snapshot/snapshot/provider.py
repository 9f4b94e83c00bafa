"""A provider as the config tells of it: where it is, whose language it speaks, what it is called with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gateway.credentials.auth import CloudAuth

Dialect = Literal["openai", "azure", "anthropic", "gemini", "vertex", "bedrock"]
"""Whose addresses, credentials and language a provider has."""
LimitsAre = Literal["account", "server"]
"""Each credential's own, as hosted providers count; or those of one server, whoever asks."""


@dataclass(frozen=True, slots=True)
class Provider:
    """Where a provider is and how to speak to it. Two equal providers share one connection pool."""

    name: str
    dialect: Dialect
    base_url: str
    """Without a trailing slash; `emulator://NAME` is answered inside the process."""
    api_key: str | None = field(default=None, repr=False)
    """None: that of `auth`, else the caller's own is passed through."""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Sent with every request."""
    api_version: str | None = None
    """Azure: set for the deployments URL, None for `/openai/v1`."""
    transport: Literal["http1", "httpx"] = "http1"
    http2: bool = False
    proxy: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    max_connections: int = 1000
    idle_expiry_s: float = 60.0
    limits_are: LimitsAre = "account"
    """Whose its limits, refusals and spent quotas are, where callers bring their own credentials."""
    accepts_callers_of: tuple[str, ...] = field(default=(), compare=False)
    """Providers, by their names in the config, whose callers' own credentials it may be shown in a fallback."""
    group: str = ""
    """Its name in the config, which all its credentials share: `openai` of `openai#2`."""
    is_self_hosted: bool = False
    """It is of the operator's own house: it may know of the callers' traces."""
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """What none of its answers may repeat, besides `api_key`: credentials of its group, secret headers and the like."""
    speaks: tuple[str, ...] | None = field(default=None, compare=False)
    """The languages that it is declared to speak, such as `chat` and `responses`; None: its kind decides, or its answers."""
    auth: CloudAuth | None = None
    """The cloud's credential that it is called with, in place of a key."""
    is_stand_in: bool = False
    """The emulator answers in its place, because it has no credential and `emulate_without_key` is set."""
    learns_models: bool = False
    """Its list of models is asked for what it tells of them."""
    messages_url: str | None = None
    """In place of `base_url` for Anthropic's Messages, at the same server; None: they are beside everything else."""

    @property
    def is_callers(self) -> bool:
        """Tells whether it is shown the caller's own credential, as the config has none for it."""
        return self.api_key is None and self.auth is None
