"""What a call needs of a target, and what a target can do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a target can do; nobody says: everything."""

    tools: bool = True
    images: bool = True
    structured_output: bool = True
    context_window: int | None = None
    """Tokens, input and output together; None: not known."""
