"""The last word of a stream is held back, however it is cut."""

from __future__ import annotations

import pytest

from gateway.dialects.last_word import LastWord

TEXT = b'data: {"delta":"say \\"response.completed\\" or data: [DONE]"}'
WORDS = (
    b"data: [DONE]",
    b"data:[DONE]",
    b"event: response.completed",
    b"event:response.incomplete",
    b"event: response.failed",
    b'data: {"type":"response.completed"',
)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"\r"])
def test_at_every_cut(word: bytes, line: bytes) -> None:
    """In two pieces, and byte by byte: all is there, the word is not among what was passed on, what is before it is."""
    before, after = TEXT + 2 * line, word + line + b"data: {}" + 2 * line
    stream = before + after
    for pieces in [[stream[:at], stream[at:]] for at in range(len(stream))] + [[bytes([one]) for one in stream]]:
        ending = LastWord()
        passed = b"".join(map(ending.feed, pieces))
        assert passed + ending.held == stream
        assert ending.is_seen
        assert len(passed) < len(before) + len(word)


def test_what_is_no_last_word_is_passed_on_as_it_comes() -> None:
    """Whole events wait for nothing, nor do words in a text; what only began like one waits for the next piece."""
    ending = LastWord()
    assert ending.feed(TEXT + b"\n\n") == TEXT + b"\n\n"
    assert ending.feed(b"data: [DO") == b""
    assert ending.feed(b"G]\n\nx") == b"data: [DOG]\n\nx"
    assert ending.feed(b"data: [DONE]\n\n") == b"data: [DONE]\n\n"  # in the middle of a line
    assert (ending.held, ending.is_seen) == (b"", False)
