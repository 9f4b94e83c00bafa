"""The compiled section `webhooks` of the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

SEGMENT: Final = "webhooks:"
"""The deliveries to an endpoint are a segment of jobs of their own, so that a slow endpoint delays only itself: this, and its
name.
"""


REQUESTED: Final = "(requests)"
"""Stands for all URLs that requests name, where endpoints of the config have their names: in metrics, and as one segment,
for there may be any number of such URLs. No endpoint of the config has this name.
"""
REQUESTED_SEGMENT: Final = f"{SEGMENT}{REQUESTED}"


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """How webhooks leave; the first two are read at start."""

    egress_proxy: str | None = field(default=None, repr=False)
    """Through which all webhooks go; its URL may hold a password."""
    ca_file: str | None = None
    """Authorities that are trusted besides the system's."""
    request_secrets: tuple[bytes, ...] = field(default=(), repr=False)
    """Sign what goes to URLs of requests, where the gateway has no keys."""


@dataclass(frozen=True, slots=True)
class WebhookRules:
    """An endpoint that hears of the ends of jobs."""

    name: str
    origin: str
    """Scheme, host and port of the URL, which may be shown."""
    url: str = field(repr=False)
    """Its path and query may hold a secret."""
    secrets: tuple[bytes, ...] = field(repr=False)
    """Each of them signs, so that receivers can change from one to the other at their leisure."""
    events: tuple[str, ...] = ("*",)
    """Patterns of `fnmatch`."""
    tenants: tuple[str, ...] = ()
    """Empty: of everybody's jobs."""

    @property
    def segment(self) -> str:
        """Returns the segment of its deliveries."""
        return f"{SEGMENT}{self.name}"

    def hears(self, event: str, tenant: str) -> bool:
        """Tells whether it is to hear of an event about a tenant's job; a tenant includes those below it (`acme/x`)."""
        is_asked = any(fnmatchcase(event, pattern) for pattern in self.events)
        return is_asked and (
            not self.tenants or any(tenant == one or tenant.startswith(f"{one}/") for one in self.tenants)
        )


Webhooks = Mapping[str, WebhookRules]
"""By name, in the order of the config."""
