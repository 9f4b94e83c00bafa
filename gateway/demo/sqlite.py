"""A look into a jobs file that nobody has open, such as one whose gateway was killed: what a batch, and steps, have come to."""

from __future__ import annotations

import sqlite3
from contextlib import closing


def lines_with_results(path: str) -> frozenset[int]:
    """Returns the numbers of the lines that have a result, of the one batch in the file. Raises sqlite3.Error.

    It reads what the next gateway would read: the file with its log.
    """
    with closing(sqlite3.connect(path)) as db:
        found = {line for (line,) in db.execute("SELECT line FROM lines")}
        for chunk, per_chunk, total in db.execute("SELECT chunk, lines, total FROM chunks JOIN plans USING (job)"):
            found.update(range(chunk * per_chunk, min((chunk + 1) * per_chunk, total)))
    return frozenset(found)


def kept_steps(path: str) -> frozenset[tuple[str, str]]:
    """Returns the steps in the file whose answers are kept, each by its run and its name. Raises sqlite3.Error."""
    with closing(sqlite3.connect(path)) as db:
        return frozenset(db.execute("SELECT runs.run, steps.step FROM steps JOIN runs ON steps.run = runs.seq"))
