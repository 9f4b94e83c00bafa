"""How a command ends: its exit code, and sentences on standard error."""

from __future__ import annotations

import sys

OK, FAILED, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
"""Done; it could not run; wrong usage, or a config that cannot be used; ended by Ctrl-C, as shells say it (128 + SIGINT)."""


def fail(message: str, code: int) -> int:
    """Says why, and returns the code."""
    for line in message.splitlines():
        print(f"gateway: {line}", file=sys.stderr)
    return code
