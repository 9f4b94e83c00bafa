"""How many inputs may go to a provider in one request, and how long the first of them waits for others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_TOKENS: Final = 300_000
"""Of one request for embeddings, all inputs together (OpenAI's API reference, `input`)."""
TOKENS_PART: Final = 0.9
"""Tokens are estimated: so much of a bound is used."""
LINES_WINDOW_S: Final = 0.005
"""The wait of lines of a batch for others, which come by themselves at the same moment."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """When a group is sent: after `window_s`, or with `most` inputs."""

    window_s: float = 0.005
    most: int = 64
