"""How much is kept of responses and runs, whichever store keeps them, and what becomes of a part that arrives in a log."""

from __future__ import annotations

import logging
from typing import Final, Literal, NamedTuple

from gateway.products.responses.rules.response_object.stored_response import LogPart

log = logging.getLogger("gateway.jobs")

MEBIBYTE: Final = 1024 * 1024
REMOVED_S: Final = 86_400.0
"""A response that was removed is not kept again for so long: who may still put it has given up by then."""


class KeptBounds(NamedTuple):
    """How many bytes there may be."""

    log_bytes: int = 16 * MEBIBYTE
    """Of the events of one response."""
    tenant_bytes: int = 1024 * MEBIBYTE
    """Of the kept responses of one tenant."""
    run_bytes: int = 1024 * MEBIBYTE
    """Of the runs of one tenant, with their steps."""


def place_in_log(part: LogPart, next_event: int, size: int, bounds: KeptBounds) -> Literal["there", "next", "cut"]:
    """Returns what becomes of a part where `next_event` is the first event that the log lacks, and `size` its bytes.

    A log with a gap would be one answer put together from two: it is cut. A part that is sent again has the same events.
    """
    if part.last < next_event:
        return "there"
    is_next = part.first == next_event and size + len(part.frames) <= bounds.log_bytes
    return "next" if is_next else "cut"


class EarlyResponses:
    """Counts kept responses that went before their time, and warns of the first."""

    __slots__ = ("_bounds", "_has_warned", "count")

    def __init__(self, bounds: KeptBounds) -> None:
        self._bounds = bounds
        self._has_warned = False
        self.count = 0

    def note(self, number: int) -> None:
        """Counts so many more."""
        self.count += number
        if number and not self._has_warned:
            self._has_warned = True
            log.warning(
                "No room for all responses of a tenant: the oldest are forgotten early, and previous_response_id cannot go on "
                "from them. Raise jobs.max_response_bytes_per_tenant (now %d).",
                self._bounds.tenant_bytes,
            )
