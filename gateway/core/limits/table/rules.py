"""What a target or a key may use and how a provider counts it, as the config says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ChargeRule = Literal["max", "sum", "input", "real"]
"""What a provider charges for a call when it lets the call in: `charge` in `estimate.py` says what each means."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a target or a key may use; None: not limited."""

    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    requests_per_day: float | None = None
    max_concurrency: int | None = None
    input_tokens_per_min: float | None = None
    output_tokens_per_min: float | None = None
    request_burst: float | None = None
    """So many requests may go at once under continuous refill; None: what the provider's style says."""
    untold_burst_s: float | None = None
    """Up to so many seconds' worth of requests may go at once, where neither that nor the provider's headers say how many."""
    fail_closed: frozenset[str] = frozenset()
    """Names of these limits (`tokens_per_min`, …) under which nothing goes while replicas cannot share them."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a provider counts: in windows of so many seconds, or (None) by continuous refill.

    `request_burst` is the share of a minute's requests that may go at once under continuous refill; the default is all
    of them, as OpenAI and Anthropic document. Tokens always have one minute's worth.
    """

    request_window_s: float | None = None
    token_window_s: float | None = None
    request_burst: float = 1.0


CONTINUOUS = Style()
AZURE = Style(request_window_s=10.0, token_window_s=60.0)
