"""What ownership needs of a store: the owners of objects at providers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.core.ports import Later


class Objects(Protocol):
    """The owners of objects at providers, by digests of 16 bytes; the least recently used go when there are too many.

    No method raises. A result of None means that the owners are unknown now; the caller must not take it for "no owner".
    """

    lost: int
    """The objects dropped for want of room since the start."""

    @property
    def entries(self) -> int:
        """The number of objects, as last known."""
        ...

    def configure(self, bound: int) -> None:
        """Keeps at most this number of objects from now on."""
        ...

    def own(self, objects: Sequence[bytes], tenant: str) -> Later[Sequence[str] | None]:
        """Gives the objects that have no owner to the tenant; returns the owner of each after that.

        The result, once there, survives whatever the store survives; an unreachable store is told later.
        """
        ...

    def owners(self, objects: Sequence[bytes]) -> Later[Sequence[str | None] | None]:
        """Returns the owner of each object; None in the list: it has none."""
        ...

    def disown(self, objects: Sequence[bytes]) -> Later[bool]:
        """Takes the objects' owners away. False: that could not be done."""
        ...
