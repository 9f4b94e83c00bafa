"""A long text in pieces of so many tokens, which put together again are the text.

Cuts are where a reader would make them: behind a paragraph, else a line, a sentence, a word, and within a word only where
nothing else is left. Never within a code point: texts here have nothing smaller.

Tokens are counted of what a piece may be, a few times a piece, and not of all that could be cut off: a guess at its length
comes from the piece before it, so that all that is counted is a few times the text, whatever the text is.

That, and what else is done to values before they are asked for, is work, which is bounded: counted, not timed, so that it is
refused alike on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Count = Callable[[str], float]
"""Tells the tokens of a text."""

_BEHIND: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"\n\s*\n",  # paragraphs
        r"\n",  # lines
        r"(?<=[.!?…])\s+|(?<=[.!?…][\"'»”)\]])\s+|[。！？]+",  # sentences  # noqa: RUF001  # as they end in Chinese and Japanese
        r"\s+",  # words
    )
)
"""What ends parts of a text, the largest first. Each is found in one pass, whatever the text is."""
_FULL: Final = 0.9
"""Of its tokens, with which no more is tried to be put into a piece."""
_TAIL: Final = 1.25
"""What is left of a text is tried as a whole, if it is no longer than this times what a piece is guessed to be."""


MOST_WORK: Final = 1_000_000_000
"""Of one step, in characters that are copied: some seconds of a processor."""
MOST_IN_A_HURRY: Final = 2_000_000
"""Of all steps that are decided upon at once: some ten milliseconds."""
_A_REQUEST: Final = 3_000
"""What a request with nothing in it is taken for."""
A_VALUE: Final = 16
"""What a value of a list is taken for, and a character whose tokens are counted: about so many times a copied character."""


class TooMuchWork(Exception):
    """Putting together what a step asks for is more work than it may be. The message names the remedy."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"to put its requests together is more work than a step may be ({most} characters that are read or written); "
            "what filters and conditions make of `item` is made for each item: give fewer or shorter items, or have an "
            "earlier step, or the caller, prepare them"
        )


class TooLong(Exception):
    """It is more than may be done while others wait, and is to be done again where nobody does."""


class Hurry:
    """Counts the work of several steps that is done while others wait."""

    def __init__(self, most: int = MOST_IN_A_HURRY) -> None:
        self._left = most

    def take(self, chars: int) -> None:
        """Counts as `Work` does. Raises TooLong."""
        self._left -= chars
        if self._left < 0:
            raise TooLong


class Work:
    """Counts the work of one step. Where others wait, each may raise TooLong, too."""

    def __init__(self, most: int = MOST_WORK, hurry: Hurry | None = None) -> None:
        self._most = most
        self._left = most
        self._hurry = hurry

    def take(self, chars: int) -> None:
        """Counts characters that are copied or written. Raises TooMuchWork."""
        self._left -= chars
        if self._left < 0:
            raise TooMuchWork(self._most)
        if self._hurry is not None:
            self._hurry.take(chars)

    def take_values(self, values: int) -> None:
        """Counts values that are looked at one by one. Raises TooMuchWork."""
        self.take(values * A_VALUE)

    def take_request(self) -> None:
        """Counts that a request is put together, whatever is in it. Raises TooMuchWork."""
        self.take(_A_REQUEST)

    def counting(self, count: Count) -> Count:
        """Returns what counts tokens, and the work of that. It raises TooMuchWork."""

        def counted(text: str) -> float:
            self.take((len(text) + 1) * A_VALUE)
            return count(text)

        return counted


def split_text(text: str, tokens: int, count: Count) -> list[str]:
    """Returns the text in pieces of at most so many tokens; a code point that has more is a piece of its own."""
    if not text:
        return []
    its_tokens = count(text)
    if its_tokens <= tokens or len(text) == 1:
        return [text]
    pieces: list[str] = []
    begin, guess = 0, max(1, int(len(text) * tokens / its_tokens))
    while begin < len(text):
        guess = _room(text, begin, tokens, guess, count)
        end = _end(text, begin, begin + guess, tokens, count)
        pieces.append(text[begin:end])
        begin = end
    return pieces


def _room(text: str, begin: int, tokens: int, guess: int, count: Count) -> int:
    """Returns how many characters from there fit, almost as many as can; 1 where none does."""
    rest = len(text) - begin
    size = rest if rest <= guess * _TAIL else guess
    fitting, beyond = 1, rest + 1
    while fitting < size < beyond:
        its_tokens = count(text[begin : begin + size])
        if its_tokens <= tokens:
            fitting = size
            if its_tokens >= tokens * _FULL or 1 + size * _TAIL > beyond:
                break
            size = min(size * 2, int(size * tokens / its_tokens) if its_tokens else size * 2, rest, beyond - 1)
        else:
            beyond = size
            size = max(fitting, size // 4, min(size * 9 // 10, int(size * tokens / its_tokens)))
    return fitting


def _end(text: str, begin: int, end: int, tokens: int, count: Count) -> int:
    """Returns where a piece ends that begins there and fits to this end: there, if what a cut leaves of it has more tokens."""
    if end == len(text):
        return end
    cut = _cut(text, begin, end)
    return cut if cut == end or count(text[begin:cut]) <= tokens else end


def _cut(text: str, begin: int, end: int) -> int:
    """Returns where a reader would cut, but not so early that most of the room is left, unless a word is as long as that."""
    early = begin + (end - begin) // 4
    last = begin
    for behind in _BEHIND:
        for found in behind.finditer(text, begin, end):
            last = max(last, found.end())
        if last > early:
            return last
    return last if last > begin else end
