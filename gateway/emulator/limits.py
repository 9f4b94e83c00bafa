"""The providers' ways to count a call and to report it: limits, headers and 429 bodies of one API key and model.

First the arithmetic: a bucket that refills all the time, and a window that starts anew; `now` is in seconds on any monotonic
clock. Then the accounts: OpenAI refills continuously and names Go durations; Azure counts calls in 10 s windows and tokens in
60 s windows; Anthropic refills continuously, limits output tokens as they are produced and names RFC 3339 instants; Google and
Amazon announce nothing. It must not send anything. Invariants: over any span a bucket grants at most its capacity plus what
refilled, a window at most its capacity; a refused call spends nothing. Source: the providers' rate-limit pages and captured
answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from gateway.emulator.config import EmulatedLimits, EmulatorConfig
from gateway.emulator.replies import (
    EmulatedProblem,
    EmulatedRefusal,
    Headers,
    google_quota,
)

# --- The arithmetic of limits ---


class EmulatedBucket:
    """`per_minute` units that refill continuously up to `burst` (by default a minute's worth); full at the start.

    A level may go below zero by `spend`.
    """

    __slots__ = ("_level", "_rate", "_updated_at", "capacity", "per_minute")

    def __init__(self, per_minute: int, now: float, burst: int | None = None) -> None:
        self.per_minute = per_minute
        self.capacity = burst or per_minute
        self._rate = per_minute / 60.0
        self._level = float(self.capacity)
        self._updated_at = now

    def level(self, now: float) -> float:
        """Units left at `now`."""
        if now > self._updated_at:
            self._level = min(float(self.capacity), self._level + (now - self._updated_at) * self._rate)
            self._updated_at = now
        return self._level

    def wait_s(self, amount: float, now: float) -> float:
        """Returns the seconds until `amount` units are there; 0 when they are. A nanounit of rounding is forgiven."""
        missing = amount - self.level(now)
        return missing / self._rate if missing > 1e-9 * self.capacity else 0.0

    def spend(self, amount: float, now: float) -> None:
        """Takes `amount` whether it is there or not."""
        self._level = self.level(now) - amount

    def remaining(self, now: float) -> int:
        """Returns the whole units left, at least 0."""
        return max(0, math.floor(self.level(now) + 1e-6))

    def used(self, now: float) -> int:
        """Returns the whole units gone."""
        return self.per_minute - self.remaining(now)

    def full_in_s(self, now: float) -> float:
        """Returns the seconds until the bucket is full: what OpenAI's reset headers tell."""
        return (self.capacity - self.level(now)) / self._rate


class EmulatedWindow:
    """`capacity` units in each window of `length_s` seconds; windows are aligned to the clock."""

    __slots__ = ("_index", "_used", "capacity", "length_s")

    def __init__(self, capacity: int, length_s: float) -> None:
        self.capacity = capacity
        self.length_s = length_s
        self._index = -1
        self._used = 0

    def remaining(self, now: float) -> int:
        """Returns the units left in the window of `now`."""
        index = math.floor((now + 1e-6) / self.length_s)  # a caller that waited exactly as told is in the next one
        if index != self._index:
            self._index, self._used = index, 0
        return max(0, self.capacity - self._used)

    def wait_s(self, amount: int, now: float) -> float:
        """Returns the seconds until the next window; 0 when `amount` units are left in that of `now`."""
        return self.ends_in_s(now) if self.remaining(now) < amount else 0.0

    def spend(self, amount: int, now: float) -> None:
        """Takes `amount` from the window of `now`."""
        self.remaining(now)
        self._used += amount

    def ends_in_s(self, now: float) -> float:
        """Returns the seconds until the next window."""
        return self.length_s - (now + 1e-6) % self.length_s


class EmulatedLevel(Protocol):
    """What calls are charged to: a bucket or a window."""

    def wait_s(self, amount: int, now: float) -> float: ...

    def spend(self, amount: int, now: float) -> None: ...


L = TypeVar("L", bound=EmulatedLevel)


class Shortage(NamedTuple, Generic[L]):
    """A limit that has no room for a call now."""

    dimension: Literal["requests", "tokens"]
    limit: L
    requested: int
    wait_s: float
    """The seconds until it has room."""


def take(requests: L | None, tokens: L | None, cost: int, now: float) -> Shortage[L] | None:
    """Charges a call that costs so many tokens to both limits; or charges nothing, and returns the one that is short."""
    if requests is not None and (wait_s := requests.wait_s(1, now)):
        return Shortage("requests", requests, 1, wait_s)
    if tokens is not None and (wait_s := tokens.wait_s(cost, now)):
        return Shortage("tokens", tokens, cost, wait_s)
    if requests is not None:
        requests.spend(1, now)
    if tokens is not None:
        tokens.spend(cost, now)
    return None


def go_duration(seconds: float) -> str:
    """Returns a duration as Go prints it, to the millisecond: `120ms`, `1s`, `7.66s`, `2m59.56s`, `6m0s`, `1h0m0s`."""
    millis = round(seconds * 1000)
    if millis <= 0:
        return "0s"
    if millis < 1000:
        return f"{millis}ms"
    minutes, rest = divmod(millis, 60_000)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if minutes < 60:
        return f"{minutes}m{text}" if minutes else text
    return f"{minutes // 60}h{minutes % 60}m{text}"


# --- Accounts ---


@dataclass(frozen=True, slots=True)
class RequestDemand:
    """The demand of a call at admission; `operation` and `api_version` only appear in Azure's texts."""

    prompt_tokens: int
    max_tokens: int = 0
    operation: str = "ChatCompletions_Create"
    api_version: str = "2024-10-21"


class EmulatedAccount(Protocol):
    """The limits of one key and model, and their levels."""

    in_flight: int

    def admit(self, demand: RequestDemand, now: float) -> EmulatedRefusal | None:
        """Charges the call, or returns the refusal and charges nothing."""

    def emitted(self, tokens: int, now: float) -> None:
        """Counts output tokens as they are produced."""

    def headers(self, now: float) -> Headers:
        """Returns the limit headers of an answer sent at `now`."""

    def throttle(self, wait_s: float, now: float, *, is_bare: bool = False) -> EmulatedRefusal:
        """Returns a 429 that asks for `wait_s` whatever the limits say; bare: without any hint."""


def open_account(config: EmulatorConfig, model: str, now: float, wall: Callable[[], float]) -> EmulatedAccount:
    """Returns the account of one key and model in the configured dialect, with full limits."""
    limits = config.limits_of(model)
    match config.dialect:
        case "azure":
            return AzureAccount(config, limits)
        case "anthropic":
            return AnthropicAccount(config, limits, now, wall)
        case _:
            return OpenAIAccount(config, model, limits, now)


def open_native_account(
    config: EmulatorConfig, language: str, model: str, now: float, wall: Callable[[], float]
) -> EmulatedAccount:
    """Returns the account of one key and model with the provider whose API is `language`, with full limits."""
    limits = config.limits_of(model)
    if language == "messages":
        return AnthropicAccount(config, limits, now, wall)
    return UnannouncedAccount(config, language, model, limits, now)


def charge(kind: str, demand: RequestDemand) -> int:
    """Tokens a call costs at admission: `max` of input and max_tokens, `sum` of them, or the `input` alone."""
    if kind == "max":
        return max(demand.prompt_tokens, demand.max_tokens)
    if kind == "sum":
        return demand.prompt_tokens + demand.max_tokens
    return demand.prompt_tokens


class OpenAIAccount:
    """Two continuously refilling buckets; reset headers have the time until full."""

    def __init__(self, config: EmulatorConfig, model: str, limits: EmulatedLimits, now: float) -> None:
        self.in_flight = 0
        self._model = model
        self._max_concurrency = limits.max_concurrency
        self._charge = "max" if config.charge == "auto" else config.charge
        self._shows_headers = config.limit_headers
        self._requests = EmulatedBucket(limits.rpm, now, limits.burst) if limits.rpm else None
        self._tokens = EmulatedBucket(limits.tpm, now) if limits.tpm else None

    def admit(self, demand: RequestDemand, now: float) -> EmulatedRefusal | None:
        cost = charge(self._charge, demand)
        if self._max_concurrency is not None and self.in_flight >= self._max_concurrency:
            return self._refuse("requests", f"Too many concurrent requests: Limit {self._max_concurrency}.", now, None)
        if self._tokens and cost > self._tokens.capacity:
            return self._refuse("tokens", self._too_large(self._tokens, cost), now, None)
        short = take(self._requests, self._tokens, cost, now)
        return None if short is None else self._refuse(short.dimension, self._reached(short, now), now, short.wait_s)

    def emitted(self, tokens: int, now: float) -> None:
        """Does nothing: OpenAI charges at admission."""

    def headers(self, now: float) -> Headers:
        if not self._shows_headers:
            return ()
        shown: Headers = ()
        if self._requests:
            shown += self._dimension(b"requests", self._requests, now)
        if self._tokens:
            shown += self._dimension(b"tokens", self._tokens, now)
        return shown

    def throttle(self, wait_s: float, now: float, *, is_bare: bool = False) -> EmulatedRefusal:
        limit = self._requests.per_minute if self._requests else 60
        text = f"Rate limit reached for {self._model} in organization org-emulator on requests per min (RPM):"
        if is_bare:
            problem = EmulatedProblem(429, "Rate limit reached.", "requests", None, "rate_limit_exceeded")
            return EmulatedRefusal(problem)
        return self._refuse(
            "requests", f"{text} Limit {limit}, Used {limit}, Requested 1. {_try_again(wait_s)}", now, wait_s
        )

    def _refuse(self, kind: str, text: str, now: float, wait_s: float | None) -> EmulatedRefusal:
        problem = EmulatedProblem(429, text, kind, None, "rate_limit_exceeded")
        headers = self.headers(now) + (_retry_after(wait_s) if self._shows_headers else ())
        return EmulatedRefusal(problem, headers)

    def _reached(self, short: Shortage[EmulatedBucket], now: float) -> str:
        kind, bucket = short.dimension, short.limit
        return (
            f"Rate limit reached for {self._model} in organization org-emulator on {kind} per min ({kind[0].upper()}PM):"
            f" Limit {bucket.per_minute}, Used {bucket.used(now)}, Requested {short.requested}. {_try_again(short.wait_s)}"
        )

    def _too_large(self, bucket: EmulatedBucket, cost: int) -> str:
        return (
            f"Request too large for {self._model} in organization org-emulator on tokens per min (TPM):"
            f" Limit {bucket.per_minute}, Requested {cost}. The input or output tokens must be reduced in order to run"
            " successfully. Visit https://platform.openai.com/account/rate-limits to learn more."
        )

    @staticmethod
    def _dimension(name: bytes, bucket: EmulatedBucket, now: float) -> Headers:
        # Rounded up to the millisecond, so that waiting as told is enough.
        full_in_s = math.ceil(bucket.full_in_s(now) * 1000 - 1e-6) / 1000
        return (
            (b"x-ratelimit-limit-" + name, b"%d" % bucket.per_minute),
            (b"x-ratelimit-remaining-" + name, b"%d" % bucket.remaining(now)),
            (b"x-ratelimit-reset-" + name, go_duration(full_in_s).encode()),
        )


class AzureAccount:
    """Fixed windows: calls over 10 s (a sixth of the RPM), tokens over 60 s; reset headers are whole seconds."""

    def __init__(self, config: EmulatorConfig, limits: EmulatedLimits) -> None:
        self.in_flight = 0
        self._max_concurrency = limits.max_concurrency
        self._charge = "sum" if config.charge == "auto" else config.charge
        self._shows_headers = config.limit_headers
        self._rpm = limits.rpm
        self._calls = EmulatedWindow(max(1, limits.rpm // 6), 10.0) if limits.rpm else None
        self._tokens = EmulatedWindow(limits.tpm, 60.0) if limits.tpm else None

    def admit(self, demand: RequestDemand, now: float) -> EmulatedRefusal | None:
        cost = charge(self._charge, demand)
        if self._max_concurrency is not None and self.in_flight >= self._max_concurrency:
            return self._refuse("call", 1.0, demand, now)
        short = take(self._calls, self._tokens, cost, now)
        if short is None:
            return None
        return self._refuse("call" if short.dimension == "requests" else "token", short.wait_s, demand, now)

    def emitted(self, tokens: int, now: float) -> None:
        """Does nothing: Azure charges at admission."""

    def headers(self, now: float) -> Headers:
        if not self._shows_headers:
            return ()
        shown: Headers = ()
        if self._calls and self._rpm:
            shown += _azure_dimension(b"requests", self._rpm, self._calls, now)
        if self._tokens:
            shown += _azure_dimension(b"tokens", self._tokens.capacity, self._tokens, now)
        return shown

    def throttle(self, wait_s: float, now: float, *, is_bare: bool = False) -> EmulatedRefusal:
        if is_bare:
            return EmulatedRefusal(EmulatedProblem(429, "Requests have been limited."))
        return self._refuse("call", wait_s, RequestDemand(1), now)

    def _refuse(self, kind: str, wait_s: float, demand: RequestDemand, now: float) -> EmulatedRefusal:
        seconds = max(1, math.ceil(wait_s))
        text = (
            f"Requests to the {demand.operation} Operation under Azure OpenAI API version {demand.api_version} have"
            f" exceeded {kind} rate limit of your current OpenAI S0 pricing tier. Please retry after {seconds} seconds."
            " Please go here: https://aka.ms/oai/quotaincrease if you would like to further increase the default rate"
            " limit."
        )
        headers: Headers = ()
        if self._shows_headers:
            policy = b"DeploymentRatelimit-Token" if kind == "token" else b"DeploymentRatelimit-Call"
            headers = (*self.headers(now), *_retry_after(wait_s), (b"policy-id", policy))
        return EmulatedRefusal(EmulatedProblem(429, text), headers)


class AnthropicAccount:
    """Buckets for requests and input tokens, charged at admission, and output tokens, charged as they come."""

    def __init__(self, config: EmulatorConfig, limits: EmulatedLimits, now: float, wall: Callable[[], float]) -> None:
        self.in_flight = 0
        self._wall = wall
        self._max_concurrency = limits.max_concurrency
        self._charge = "input" if config.charge == "auto" else config.charge
        self._shows_headers = config.limit_headers
        self._requests = EmulatedBucket(limits.rpm, now, limits.burst) if limits.rpm else None
        self._input = EmulatedBucket(limits.tpm, now) if limits.tpm else None
        self._output = EmulatedBucket(limits.output_tpm, now) if limits.output_tpm else None

    def admit(self, demand: RequestDemand, now: float) -> EmulatedRefusal | None:
        cost = charge(self._charge, demand)
        if self._max_concurrency is not None and self.in_flight >= self._max_concurrency:
            return self._refuse(f"{self._max_concurrency} concurrent connections", now, None)
        if self._requests and (wait_s := self._requests.wait_s(1, now)):
            return self._refuse(f"{self._requests.per_minute:,} requests per minute", now, wait_s)
        if self._input and (wait_s := self._input.wait_s(min(cost, self._input.capacity), now)):
            return self._refuse(f"{self._input.capacity:,} input tokens per minute", now, wait_s)
        if self._input and cost > self._input.capacity:
            return self._refuse(f"{self._input.capacity:,} input tokens per minute", now, 60.0)
        if self._output and (wait_s := self._output.wait_s(1, now)):
            return self._refuse(f"{self._output.capacity:,} output tokens per minute", now, wait_s)
        if self._requests:
            self._requests.spend(1, now)
        if self._input:
            self._input.spend(cost, now)
        return None

    def emitted(self, tokens: int, now: float) -> None:
        """Takes from the output limit, below zero if need be: the next call waits for it."""
        if self._output:
            self._output.spend(tokens, now)

    def headers(self, now: float) -> Headers:
        if not self._shows_headers:
            return ()
        token_buckets = [bucket for bucket in (self._input, self._output) if bucket]
        tightest = min(token_buckets, key=lambda bucket: bucket.level(now) / bucket.capacity, default=None)
        shown = (
            (b"requests", self._requests, 1),
            (b"tokens", tightest, 1000),
            (b"input-tokens", self._input, 1000),
            (b"output-tokens", self._output, 1000),
        )
        return tuple(
            header for name, bucket, unit in shown if bucket for header in self._dimension(name, bucket, unit, now)
        )

    def throttle(self, wait_s: float, now: float, *, is_bare: bool = False) -> EmulatedRefusal:
        if is_bare:
            return EmulatedRefusal(EmulatedProblem(429, "Rate limited."))
        limit = self._requests.per_minute if self._requests else 50
        return self._refuse(f"{limit:,} requests per minute", now, wait_s)

    def _refuse(self, limit: str, now: float, wait_s: float | None) -> EmulatedRefusal:
        text = f"This request would exceed your organization's rate limit of {limit}."
        headers: Headers = ()
        if self._shows_headers:
            headers = self.headers(now) + _retry_after(wait_s)[:1]
        return EmulatedRefusal(EmulatedProblem(429, text), headers)

    def _dimension(self, name: bytes, bucket: EmulatedBucket, unit: int, now: float) -> Headers:
        # Token counts are told in thousands; a limit below that would always read 0, so it is told exactly.
        left = bucket.remaining(now)
        rounded = left // unit * unit if bucket.capacity >= 10 * unit else left
        full_at = datetime.fromtimestamp(math.ceil(self._wall() + bucket.full_in_s(now)), UTC)
        prefix = b"anthropic-ratelimit-" + name
        return (
            (prefix + b"-limit", b"%d" % bucket.per_minute),
            (prefix + b"-remaining", b"%d" % rounded),
            (prefix + b"-reset", full_at.strftime("%Y-%m-%dT%H:%M:%SZ").encode()),
        )


class UnannouncedAccount:
    """Two continuously refilling buckets that no header announces; Google charges the input, Amazon the possible answer, too.

    A 429 is the first that a caller sees of these limits: the one of Google says when to come again, that of Amazon does not.
    """

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
        short = take(self._requests, self._tokens, cost, now)
        return None if short is None else self._refuse(short.dimension, short.limit.per_minute, short.wait_s)

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
            # Rounded up to the millisecond, so that a wait of just this long is enough.
            shown_wait_s = math.ceil(wait_s * 1000 - 1e-6) / 1000
            return EmulatedRefusal(google_quota(self._model, dimension, limit, shown_wait_s))
        return EmulatedRefusal(EmulatedProblem(429, f"Too many {dimension}, please wait before trying again."))


def _azure_dimension(name: bytes, limit: int, window: EmulatedWindow, now: float) -> Headers:
    return (
        (b"x-ratelimit-limit-" + name, b"%d" % limit),
        (b"x-ratelimit-remaining-" + name, b"%d" % window.remaining(now)),
        (b"x-ratelimit-reset-" + name, b"%d" % math.ceil(window.ends_in_s(now))),
    )


def _try_again(wait_s: float) -> str:
    again = go_duration(max(0.001, wait_s))
    return f"Please try again in {again}. Visit https://platform.openai.com/account/rate-limits to learn more."


def _retry_after(wait_s: float | None) -> Headers:
    # Both rounded up: a client that waits exactly as told is served.
    if wait_s is None:
        return ()
    millis = max(1, math.ceil(wait_s * 1000 - 1e-6))
    return ((b"retry-after", b"%d" % max(1, math.ceil(millis / 1000))), (b"retry-after-ms", b"%d" % millis))
