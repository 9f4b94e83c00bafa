"""How a command ends: its exit code, and sentences on standard error."""

from __future__ import annotations

import sys

OK, FAILED, UNUSABLE = 0, 1, 2
"""Done; it could not run; wrong usage, or a config that cannot be used."""


def fail(message: str, code: int) -> int:
    """Says why, and returns the code."""
    for line in message.splitlines():
        print(f"gateway: {line}", file=sys.stderr)
    return code
