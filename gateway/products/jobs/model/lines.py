"""The lines of a batch as data: what became of each, and how they are divided into chunks."""

from __future__ import annotations

from typing import NamedTuple


class LineResult(NamedTuple):
    """What has become of one line of a batch."""

    line: int
    """Counted from 0 over the whole batch."""
    is_failed: bool
    """It belongs in the error file."""
    text: bytes
    """Its line in the output or error file, with the line end."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    reasoning_tokens: int = 0


class ChunkPlan(NamedTuple):
    """How a checked batch is divided: chunk n has the lines from n * `lines_per_chunk`."""

    total: int
    lines_per_chunk: int
    parallel: int
    """So many chunks wait for workers or run at a time, at most."""

    @property
    def chunks(self) -> int:
        """Returns the number of chunks."""
        return -(-self.total // self.lines_per_chunk)


class ChunkResult(NamedTuple):
    """The finished part of a batch's answers: two blobs with the lines of the chunk, in input order."""

    chunk: int
    output: str
    """The name of the blob with the lines of the output file; empty: it has none."""
    output_bytes: int
    errors: str
    errors_bytes: int
