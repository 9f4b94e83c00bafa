"""The owners of a provider's objects where tenants share its account, as the config declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ObjectRules:
    """The rules of a policy under which several tenants share accounts; other policies have none."""

    scopes: Mapping[str, bytes]
    """The scope of ids, by provider. Providers at one address have the same."""
    is_open: bool = False
    """All objects are open to every tenant."""
    ids: frozenset[str] = frozenset()
    """The ids of objects that are open to every tenant."""
    prefixes: tuple[str, ...] = ()
    """The prefixes of ids of objects that are open to every tenant."""
    tenants: frozenset[str] = field(default=frozenset())
    """The tenants of the config; calls may name further ones below `named`."""
    named: frozenset[str] = frozenset()
    """The tenants whose keys name others, with `/` between."""

    def is_everybodys(self, id: str) -> bool:
        """Returns whether the config has opened the object to every tenant."""
        return id in self.ids or (bool(self.prefixes) and id.startswith(self.prefixes))

    def knows(self, tenant: str) -> bool:
        """Returns whether calls may come from this tenant."""
        return tenant in self.tenants or any(tenant.startswith(f"{one}/") for one in self.named)
