"""Fields by which some provider chooses a model, whatever `model` says: some read names in any case, some have their own.

A key that may use some models only must not send them.
"""

from __future__ import annotations

from collections.abc import Iterable

CHOOSES_A_MODEL = frozenset(
    ("model", "models", "provider", "route", "fallbacks", "preset", "engine", "deployment_id", "model_id", "model_list")
)
"""In lower case (OpenRouter's `models` and `provider`; Go reads field names in any case)."""


def other_model_field(names: Iterable[str]) -> str | None:
    """Returns the first name, other than `model` itself, by which a provider may choose a model."""
    return next((name for name in names if name != "model" and name.casefold() in CHOOSES_A_MODEL), None)
