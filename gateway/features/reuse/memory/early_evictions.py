"""Counts the answers of idempotency records that a store evicts before their time, and warns of the first.

Such a call would be paid for again when it is repeated, so the operator has to know that the bound is too low.
"""

from __future__ import annotations

import logging

log = logging.getLogger("gateway.store")


class EarlyEvictions:
    """The early evictions of one store; another thread may set the bound."""

    __slots__ = ("_bound", "_has_warned", "count")

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._has_warned = False
        self.count = 0
        """The number of answers evicted early since the start."""

    @property
    def bound(self) -> int:
        """Returns the bound of the answers in bytes."""
        return self._bound

    @bound.setter
    def bound(self, bound: int) -> None:
        """Sets the bound; a new one that is too low is logged again."""
        if bound != self._bound:
            self._bound, self._has_warned = bound, False

    def note(self, count: int = 1) -> None:
        """Counts evicted answers, and logs the first."""
        self.count += count
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all answers that are to be replayed to those who repeat an Idempotency-Key: the oldest are "
                "dropped early, and such a call would be paid for again. Raise idempotency.max_bytes in cache.yaml (now %d).",
                self._bound,
            )
