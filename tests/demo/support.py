"""Runs made of numbers, and a terminal made of a string."""

from __future__ import annotations

import io

from gateway.demo.run import Run


def run_of(seconds: list[tuple[int, int]], *, name: str = "a run", calls: int = 100, rate_per_s: float = 10.0) -> Run:
    """A run whose provider answered and refused so many calls in each second, every refused one then failing."""
    run = Run(name, calls, rate_per_s)
    run.begin(level=0.0, now=1000.0)
    total = refused = 0
    for second, (answered, turned_away) in enumerate(seconds):
        now = 1000.5 + second
        total, refused = total + answered + turned_away, refused + turned_away
        run.counted(total, total - refused, refused, now)
        for _ in range(answered):
            run.heard(200, {})
            run.ended(40, 1000.0, now)
        for _ in range(turned_away):
            run.heard(429, {})
            run.ended(None, 1000.0, now)
    return run


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
