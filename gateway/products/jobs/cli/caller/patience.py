"""Patience with a gateway that starts again, or has no room for now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from gateway.cli.operate.client import AdminRefused
from gateway.cli.operate.showing import safe
from gateway.products.jobs.cli.caller.progress import ProgressLine

AGAIN_S = 2.0
PATIENCE_S = 300.0
"""A gateway that is away, starts again or has no room is asked again for so long."""
Answer = TypeVar("Answer")


def patiently(ask: Callable[[], Answer], progress: ProgressLine) -> Answer:
    """Asks until it is answered. Raises AdminRefused for what is no use, or when the patience is at its end."""
    until: float | None = None
    while True:
        try:
            return ask()
        except AdminRefused as error:
            now = time.monotonic()
            until = now + PATIENCE_S if until is None else until
            if error.is_misuse or now >= until:
                raise
            progress.tell(f"waiting for the gateway: {safe(error.message)}")
        time.sleep(AGAIN_S)
