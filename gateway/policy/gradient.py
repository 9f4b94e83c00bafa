"""Provisional."""

from __future__ import annotations


class AdaptiveCap:
    """Provisional: replaced by the real one."""

    cap = 1000

    def __init__(self, now: float) -> None:
        return

    def observe(self, first_byte_s: float, in_flight: int, now: float, tokens: int = 0) -> None:
        return

    def dropped(self, now: float) -> None:
        return
