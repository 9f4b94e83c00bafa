"""What becomes of a piece of work: done, failed for good, tried again later, put off, or broken off.

A table, asked once per attempt. Being refused for want of room is no attempt: the work is put off until there may be room.
"""

from __future__ import annotations

import re
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NamedTuple

import orjson

from gateway.core.errors import (
    AdmissionDenied,
    CallerFault,
    DeadlineExceeded,
    GatewayError,
    KeyInUse,
    ShuttingDown,
)
from gateway.core.retry import retry
from gateway.core.retry_budgets import attempts_by_cost
from gateway.features.runs.rules.errors import RunBudgetExceeded
from gateway.products.jobs.rules import JobRules

PUT_OFF_S: Final = 5.0
"""The wait of a call that was refused by somebody who could not say for how long."""
LONGEST_PUT_OFF_S: Final = 300.0
"""Whatever the refusal says: a limit may have been raised, a quota paid for."""
_MOST_SAID: Final = 65_536
"""Longer bodies are no error messages."""
_SECRET: Final = re.compile(r"\b(?:sk|pk|rk|key|gsk|xai)[-_][\w*.-]{4,}|\bBearer\s+\S+|\bAIza[\w-]{8,}|://[^/\s@]+@")
_TRANSIENT_STATUSES: Final = frozenset((408, 409, 425, 429, 498))


class Outcome(Enum):
    """What has become of one try."""

    DONE = "done"
    PERMANENT = "permanent"
    """It would fail again: its answer is kept as it is."""
    TRANSIENT = "transient"
    """It may succeed later, and counts as an attempt."""
    PUT_OFF = "put off"
    """There was no room for it: it has not been tried."""
    INTERRUPTED = "interrupted"
    """The worker stops: it counts as nothing."""


class WorkVerdict(NamedTuple):
    """An outcome, and how long to wait before the next try where somebody has said so."""

    outcome: Outcome
    retry_after_s: float | None = None


def verdict_of_status(status: int) -> WorkVerdict:
    """Returns what an HTTP answer means for the work that asked for it."""
    if 200 <= status < 300:
        return WorkVerdict(Outcome.DONE)
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return WorkVerdict(Outcome.TRANSIENT)
    return WorkVerdict(Outcome.PERMANENT)


def verdict_of_error(error: GatewayError) -> WorkVerdict:
    """Returns what one of the gateway's own errors means for the work that met it."""
    if isinstance(error, ShuttingDown):
        return WorkVerdict(Outcome.INTERRUPTED)
    if isinstance(error, RunBudgetExceeded) and not error.should_retry:
        return WorkVerdict(Outcome.PERMANENT)  # its run has had enough, and gets no more
    if isinstance(error, AdmissionDenied | DeadlineExceeded | KeyInUse):  # the key's answer is being made elsewhere
        told_s = PUT_OFF_S if error.retry_after_s is None else error.retry_after_s
        return WorkVerdict(Outcome.PUT_OFF, min(max(told_s, 0.1), LONGEST_PUT_OFF_S))
    if isinstance(error, CallerFault) and not error.should_retry:
        return WorkVerdict(Outcome.PERMANENT)
    return WorkVerdict(Outcome.TRANSIENT, error.retry_after_s)


def failure_of(status: int, body: bytes) -> str:
    """Returns what an answer says of a failure: its status, and the message in its body, without what looks like a secret."""
    told: Any = None
    if len(body) <= _MOST_SAID:
        with suppress(ValueError):
            told = orjson.loads(body)
    error = told.get("error") if isinstance(told, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str) or not message.strip():
        return f"the answer was {status}"
    return f"the answer was {status}: {_SECRET.sub('…', ' '.join(message.split()))}"


def backoff_s(rules: JobRules, attempts: int, draw: float) -> float:
    """Returns how long to wait after so many failed attempts, at least 1; `draw` is uniform from [0, 1)."""
    return retry.backoff_s(rules.backoff, attempts, draw)


def attempts_allowed(rules: JobRules, cost_usd: float | None) -> int:
    """Returns how often a job is tried whose attempt costs so much; None: it is not priced."""
    return attempts_by_cost(rules.by_cost, cost_usd, rules.attempts)
