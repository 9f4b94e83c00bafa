"""The names of blobs: paths below a place that is ours, which no name can leave."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}(?:/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}){0,7}")
"""No step is empty or begins with a dot, so none goes up, and none is a hidden file of ours."""


def check_name(name: str) -> str:
    """Returns the name. Raises ValueError for one that no blob can have: names are made by us, so it is a defect."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a blob")
    return name
