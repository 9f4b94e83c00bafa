"""Limits that no header announces: Gemini's and Bedrock's.

A 429 is the first that a caller hears of them; Google's says when to come again, Amazon's does not. It must not send anything.
Invariant: a refused call spends nothing. Source: the providers' pages on quotas, and captured answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.emulator.answers.reply import Headers
from gateway.emulator.app.call import EmulatedBucket
from gateway.emulator.config.config import EmulatedLimits, EmulatorConfig
from gateway.emulator.dialects.dialects import AnthropicAccount, EmulatedAccount, RequestDemand, charge
from gateway.emulator.problems import EmulatedProblem, EmulatedRefusal, google_quota


def open_native_account(
    config: EmulatorConfig, language: str, model: str, now: float, wall: Callable[[], float]
) -> EmulatedAccount:
    """Returns the account of one key and model with the provider whose API is `language`, with full limits."""
    limits = config.limits_of(model)
    if language == "messages":
        return AnthropicAccount(config, limits, now, wall)
    return UnannouncedAccount(config, language, model, limits, now)


class UnannouncedAccount:
    """Two continuously refilling buckets; Google charges the input, Amazon what the answer might need, too."""

    def __init__(self, config: EmulatorConfig, language: str, model: str, limits: EmulatedLimits, now: float) -> None:
        self.in_flight = 0
        self._language = language
        self._model = model
        self._max_concurrency = limits.max_concurrency
        by_language = "input" if language == "generate" else "sum"
        self._charge = by_language if config.charge == "auto" else config.charge
        self._requests = EmulatedBucket(limits.rpm, now, limits.burst) if limits.rpm else None
        self._tokens = EmulatedBucket(limits.tpm, now) if limits.tpm else None

    def admit(self, demand: RequestDemand, now: float) -> EmulatedRefusal | None:
        """Charges the call, or returns the refusal and charges nothing."""
        cost = charge(self._charge, demand)
        if self._max_concurrency is not None and self.in_flight >= self._max_concurrency:
            return self._refuse("requests", self._max_concurrency, 1.0)
        if self._requests and (wait_s := self._requests.wait_s(1, now)):
            return self._refuse("requests", self._requests.per_minute, wait_s)
        if self._tokens and (wait_s := self._tokens.wait_s(cost, now)):
            return self._refuse("tokens", self._tokens.per_minute, wait_s)
        if self._requests:
            self._requests.spend(1, now)
        if self._tokens:
            self._tokens.spend(cost, now)
        return None

    def emitted(self, tokens: int, now: float) -> None:
        """Does nothing: both charge at admission."""

    def headers(self, now: float) -> Headers:
        """Returns nothing: there are no limit headers."""
        return ()

    def throttle(self, wait_s: float, now: float, *, is_bare: bool = False) -> EmulatedRefusal:
        """Returns a 429 that asks for `wait_s` where the provider says so; bare: without any hint."""
        if is_bare and self._language == "generate":
            return EmulatedRefusal(EmulatedProblem(429, "Resource has been exhausted (e.g. check quota)."))
        return self._refuse("requests", self._requests.per_minute if self._requests else 60, wait_s)

    def _refuse(self, dimension: str, limit: int, wait_s: float) -> EmulatedRefusal:
        if self._language == "generate":
            # Rounded up to the millisecond, so that waiting as told is enough.
            shown_wait_s = math.ceil(wait_s * 1000 - 1e-6) / 1000
            return EmulatedRefusal(google_quota(self._model, dimension, limit, shown_wait_s))
        return EmulatedRefusal(EmulatedProblem(429, f"Too many {dimension}, please wait before trying again."))
