"""A long text in pieces of so many tokens, which put together again are the text.

Cuts are where a reader would make them: behind a paragraph, else a line, a sentence, a word, and within a word only where
nothing else is left. Never within a code point: texts here have nothing smaller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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


def split_text(text: str, tokens: int, count: Count) -> list[str]:
    """Returns the text in pieces of at most so many tokens; a code point that has more is a piece of its own."""
    pieces: list[str] = []
    parts: list[str] = []
    so_far = 0.0
    for part, its_tokens in _parts(text, tokens, count, 0):
        if parts and so_far + its_tokens > tokens:
            pieces.append("".join(parts))
            parts, so_far = [], 0.0
        parts.append(part)
        so_far += its_tokens
    if parts:
        pieces.append("".join(parts))
    return [fit for piece in pieces for fit in _checked(piece, tokens, count)]


def _parts(text: str, tokens: int, count: Count, level: int) -> Iterator[tuple[str, float]]:
    """Yields the largest parts of a text that fit, each with its tokens."""
    if not text:
        return
    its_tokens = count(text)
    if its_tokens <= tokens or len(text) == 1:
        yield text, its_tokens
    elif level < len(_BEHIND):
        begin = 0
        for found in _BEHIND[level].finditer(text):
            yield from _parts(text[begin : found.end()], tokens, count, level + 1)
            begin = found.end()
        yield from _parts(text[begin:], tokens, count, level + 1)
    else:
        half = len(text) // 2
        yield from _parts(text[:half], tokens, count, level)
        yield from _parts(text[half:], tokens, count, level)


def _checked(piece: str, tokens: int, count: Count) -> Iterator[str]:
    """Yields a piece that was put together; where its whole has more tokens than its parts had, it in parts."""
    if count(piece) <= tokens or len(piece) == 1:
        yield piece
        return
    for part, _ in _parts(piece, tokens, count, 0):
        yield part
