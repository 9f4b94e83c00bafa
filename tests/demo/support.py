"""Runs made of numbers, and a terminal made of a string."""

from __future__ import annotations

import io

from gateway.demo.record import Fate, Run, Trial


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
            run.record(200, {})
            run.ended(40, 1000.0, now)
        for _ in range(turned_away):
            run.record(429, {})
            run.ended(None, 1000.0, now)
    return run


def trial_of(fates: list[Fate], *, name: str = "a run") -> Trial:
    """A trial with these fates in its seconds, one try to a call; late is after 3 s instead of a half."""
    trial = Trial(name, sum(map(sum, fates)), late_s=1.0)
    trial.begin(1000.0)
    for second, fate in enumerate(fates):
        made_at = 1000.5 + second
        for kind, count in zip(Fate._fields, fate, strict=True):
            for _ in range(count):
                trial.tried(1, at_dead=0)
                trial.end(made_at, made_at + (3.0 if kind == "late" else 0.5), is_answered=kind != "failed")
    return trial


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True
