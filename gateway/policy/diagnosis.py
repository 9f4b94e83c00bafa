"""What a provider's error answer means: phase, status, headers and body -> a diagnosis, by a table of ordered rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.errors import ErrorClass

Scope = Literal["target", "key", "account"]
"""Whom it concerns: one target, every target of this credential, or every credential of the provider."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What went wrong, whom it concerns, and what the provider says about coming back."""

    error_class: ErrorClass
    scope: Scope = "target"
    delay_s: float | None = None
    """The server's own delay, the latest of all its hints."""
    never_fits: bool = False
    """It asks for more than a limit ever holds here."""
    rule: str = ""
    """Which rule matched: its table and its name."""


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """The rules of one kind of provider, in order."""
