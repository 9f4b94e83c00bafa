"""Whose the objects of a provider are where tenants share its account, as the config says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ObjectRules:
    """Of a policy under which several tenants share accounts; of all others there is none."""

    scopes: Mapping[str, bytes]
    """By provider: where its ids are looked up. Providers at one address have the same."""
    is_open: bool = False
    """All objects are everybody's."""
    ids: frozenset[str] = frozenset()
    """These are everybody's."""
    prefixes: tuple[str, ...] = ()
    """So are those that start like this."""
    tenants: frozenset[str] = field(default=frozenset())
    """Of the config; calls may name more below `named`."""
    named: frozenset[str] = frozenset()
    """Tenants whose keys name others, with `/` between."""

    def is_everybodys(self, id: str) -> bool:
        """Whether the config has opened it."""
        return id in self.ids or (bool(self.prefixes) and id.startswith(self.prefixes))

    def knows(self, tenant: str) -> bool:
        """Whether calls may come of this tenant."""
        return tenant in self.tenants or any(tenant.startswith(f"{one}/") for one in self.named)
