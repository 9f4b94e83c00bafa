"""The calls that are made for the lines of a chunk, and which of them wait in the delay queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.core.call import Call


class LineCalls:
    """The calls of lines under way, by the lines' numbers."""

    def __init__(self, is_holding: Callable[[], bool]) -> None:
        """`is_holding` tells whether the delay queue has any call at all: without one there is nothing to count."""
        self._is_holding = is_holding
        self._calls: dict[int, list[Call]] = {}

    def begin(self, line: int) -> list[Call]:
        """Returns where the next call of a line goes as soon as there is one."""
        calls = self._calls[line] = []
        return calls

    def end(self, line: int) -> None:
        """Forgets a line that is not under way any more."""
        self._calls.pop(line, None)

    def held(self) -> int:
        """Returns how many calls wait in the delay queue; lines that go together are one."""
        if not self._is_holding():
            return 0
        return len(
            {id(sent) for calls in self._calls.values() if calls and (sent := _sent_for(calls)).held is not None}
        )

    def held_lines(self) -> Sequence[int]:
        """Returns the lines whose calls wait in the delay queue."""
        return [line for line, calls in self._calls.items() if calls and _sent_for(calls).held is not None]


def _sent_for(calls: list[Call]) -> Call:
    """Returns the call that is sent for a line: its last one, or the one that several have become together."""
    joined = calls[-1].joined
    return calls[-1] if joined is None else joined[0]
