"""What is wrong with a pipeline's source: said with the path of the value, so that a reader of files can add its line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Path = tuple[str | int, ...]


class PlanProblem(NamedTuple):
    """One thing that is wrong."""

    path: Path
    """Where, from the top of the source."""
    message: str
    given: str = ""
    """The name that is not known; empty: it is another kind of problem."""
    known: Sequence[str] = ()
    """The names that could have been meant."""
