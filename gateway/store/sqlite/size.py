"""How many bytes of the file a row takes, as near as can be told without asking."""

from __future__ import annotations

PAGE_BYTES = 4096
ROW_BYTES = 256
"""What a row takes besides its columns: its place in the indexes, about."""


def taken(*columns: bytes) -> int:
    """How many bytes of the file a row takes: a long one fills whole pages, of shorter ones some fit into one."""
    size = sum(map(len, columns))
    if size < PAGE_BYTES // 2:
        return ROW_BYTES + PAGE_BYTES // (PAGE_BYTES // (size + 1))
    return ROW_BYTES + -(-size // PAGE_BYTES) * PAGE_BYTES
