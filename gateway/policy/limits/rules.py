"""What a target or a key may use, as the config says it."""

from __future__ import annotations

from dataclasses import dataclass


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
