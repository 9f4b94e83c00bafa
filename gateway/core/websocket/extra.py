"""Whether the package that speaks WebSocket is installed. It is imported when the first session comes, and not before."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

NEEDS_EXTRA: Final = (
    "WebSockets need a package that is not installed here; the gateway's operator adds it: pip install '.[realtime]'."
)


def is_installed() -> bool:
    """Returns whether `websockets` can be imported."""
    return find_spec("websockets") is not None
