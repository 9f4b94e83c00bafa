"""How much work the patterns of a schema may make, to compile and to match, told from their text.

The library's automata run in linear time, but what they do for each character grows with their states where the cheap way (a
lazily built DFA) is given up: a repetition such as `[ab]{900}` takes seconds over a hundred kilobytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

MOST_PATTERNS: Final = 400
"""Of one schema: each takes its tenth of a millisecond to compile, whatever it says."""
MOST_STATES: Final = 40_000
"""Of all patterns of one schema together, as estimated: some 20 ms to compile."""
INLINE_STEPS: Final = 4_000_000
"""Characters times states: some 30 ms where the cheap way is given up, which few patterns make it do."""

_TIMES = re.compile(r"\{(\d{1,6})(?:,(\d{0,6}))?\}")


class PatternWeight:
    """The patterns of one schema, together."""

    __slots__ = ("count", "heaviest", "states")

    def __init__(self, schema: Any) -> None:
        sizes = [states_of(one) for one in _patterns(schema)]
        self.count = len(sizes)
        self.states = sum(sizes)
        self.heaviest = max(sizes, default=0)

    @property
    def is_too_much(self) -> bool:
        """Returns whether to compile them might keep everybody else waiting."""
        return self.count > MOST_PATTERNS or self.states > MOST_STATES

    def is_dear(self, length: int, visits: float) -> bool:
        """Returns whether to match texts of so many bytes might, each value being looked at `visits` times at most."""
        return self.heaviest * min(self.count, visits) * length > INLINE_STEPS


def states_of(pattern: str) -> int:
    """Returns about how many states the automaton of a pattern has: never far too few."""
    times = [max(1, int(least), int(most or 0)) for least, most in _TIMES.findall(pattern)]
    if "){" not in pattern:
        return len(pattern) + sum(times)
    states = len(pattern)
    for one in times:  # they may be inside of each other
        states = min(states * one, 10 * MOST_STATES)
    return states


def _patterns(schema: Any) -> Iterator[str]:
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            said, named = part.get("pattern"), part.get("patternProperties")
            if isinstance(said, str):
                yield said
            if isinstance(named, dict):
                yield from named
            todo.extend(part.values())
        elif isinstance(part, list):
            todo.extend(part)
