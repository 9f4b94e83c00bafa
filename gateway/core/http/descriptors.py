"""The process's own want of file descriptors, memory and ports, which says nothing of who is at the other end.

Pure: what has happened comes as an error, the limit as a number.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from math import inf

EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
"""Neither a connection that comes nor one that goes out can be had (accept(2), socket(2))."""
_OUTGOING = EXHAUSTED | {errno.EADDRNOTAVAIL}
"""Nor can one that goes out where every local port is taken (connect(2))."""
KEPT_DESCRIPTORS = 32
"""For stores, logs, listeners and the resolver of names."""


def is_own_want(error: BaseException, hides_want: Callable[[OSError], bool]) -> bool:
    """Whether no connection could be opened for a want of this process or machine, however often its error was wrapped.

    `hides_want` tells of an error that does not say so whether it comes of one.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (cause.errno in _OUTGOING or hides_want(cause)):
            return True
        cause = cause.__cause__ or cause.__context__  # httpcore raises again `from None`
    return False


def most_clients(limit: int) -> float:
    """Returns how many connections of clients a limit of descriptors (below 0: none) has room for.

    Each may need one to a provider.
    """
    return inf if limit < 0 else max(1, (limit - KEPT_DESCRIPTORS) // 2)
