"""The providers' ways to count a call and to report it: limits, headers and 429 bodies of one API key and model.

OpenAI refills continuously and names Go durations; Azure counts calls in 10 s windows and tokens in 60 s windows;
Anthropic refills continuously, limits output tokens as they are produced and names RFC 3339 instants; Google and Amazon
announce nothing. It must not send anything. Invariant: a refused call spends nothing. Source: the providers' rate-limit
pages and captured answers.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote
from zlib import crc32

import orjson

from gateway.emulator.answers.reply import Headers
from gateway.emulator.app.call import EmulatedBucket, EmulatedCall, EmulatedWindow, go_duration
from gateway.emulator.config.config import EmulatedLimits, EmulatorConfig
from gateway.emulator.problems import EmulatedProblem, EmulatedRefusal, ProblemError, google_quota, invalid_credential

# Who calls: the key of a call in each provider's manner, and AWS's signatures.
#
# It must not know limits. Sources: the providers' pages on authentication, and AWS's on Signature Version 4.


_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/,\s]+)/(\d{8}/[^/]+/[^/]+/aws4_request),\s*SignedHeaders=([^,\s]+),\s*Signature=(\w+)"
)
_OWN = {"messages": b"x-api-key", "generate": b"x-goog-api-key"}
_MUST_SIGN = frozenset({"host", "x-amz-date"})


def key_of(call: EmulatedCall) -> str:
    """Returns the key of a call: of AWS's signature the id of the key, or nothing."""
    bearer = call.header(b"authorization").decode("latin-1")
    if call.dialect == "converse" and (signed := _SIGNED.fullmatch(bearer)):
        return str(signed[1])
    own = call.header(_OWN.get(call.dialect, b""))
    if own:
        return own.decode("latin-1")
    params = dict(parse_qsl(call.scope.get("query_string", b"").decode("latin-1")))
    if call.dialect == "generate" and params.get("key"):
        return str(params["key"])
    return bearer[7:].strip() if bearer[:7].lower() == "bearer " else ""


def let_in(call: EmulatedCall, wanted: str) -> None:
    """Raises ProblemError unless the call has the key `wanted`; `ID:SECRET` is one that AWS's calls are signed with."""
    key = key_of(call)
    signed = _SIGNED.fullmatch(call.header(b"authorization").decode("latin-1"))
    if call.dialect == "converse" and signed is not None and ":" in wanted:
        wanted, _, secret = wanted.partition(":")
        if key == wanted and signature_of(call, secret, signed[2], signed[3].split(";")) != signed[4]:
            text = "The request signature we calculated does not match the signature you provided."
            rule = "Check your AWS Secret Access Key and signing method."
            raise ProblemError(EmulatedProblem(403, f"{text} {rule}", kind="InvalidSignatureException"))
    if key != wanted:
        raise ProblemError(invalid_credential(call.dialect, call.path, is_missing=not key))


def signature_of(call: EmulatedCall, secret: str, scope: str, names: Sequence[str]) -> str:
    """Returns the signature that the call should have over the headers of these `names`, in hex."""
    if not set(names) >= _MUST_SIGN:
        return ""
    headers = "".join(f"{name}:{' '.join(call.header(name.encode()).decode('latin-1').split())}\n" for name in names)
    query = sorted(parse_qsl(call.scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    canonical_query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query)
    path = quote(call.scope.get("raw_path", b"").decode("latin-1").partition("?")[0], safe="/-_.~")
    digest = hashlib.sha256(call.body).hexdigest()
    request = "\n".join((call.method, path, canonical_query, headers, ";".join(names), digest))
    when = call.header(b"x-amz-date").decode("latin-1")
    text_to_sign = "\n".join(("AWS4-HMAC-SHA256", when, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text_to_sign.encode(), "sha256").hex()


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
    """Two continuously refilling buckets; reset headers tell the time until full."""

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
        if self._requests and (wait_s := self._requests.wait_s(1, now)):
            return self._refuse("requests", self._reached("requests", self._requests, 1, wait_s, now), now, wait_s)
        if self._tokens and (wait_s := self._tokens.wait_s(cost, now)):
            return self._refuse("tokens", self._reached("tokens", self._tokens, cost, wait_s, now), now, wait_s)
        if self._requests:
            self._requests.spend(1, now)
        if self._tokens:
            self._tokens.spend(cost, now)
        return None

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

    def _reached(self, kind: str, bucket: EmulatedBucket, cost: int, wait_s: float, now: float) -> str:
        return (
            f"Rate limit reached for {self._model} in organization org-emulator on {kind} per min ({kind[0].upper()}PM):"
            f" Limit {bucket.per_minute}, Used {bucket.used(now)}, Requested {cost}. {_try_again(wait_s)}"
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
        if self._calls and self._calls.remaining(now) < 1:
            return self._refuse("call", self._calls.ends_in_s(now), demand, now)
        if self._tokens and self._tokens.remaining(now) < cost:
            return self._refuse("token", self._tokens.ends_in_s(now), demand, now)
        if self._calls:
            self._calls.spend(1, now)
        if self._tokens:
            self._tokens.spend(cost, now)
        return None

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


# Frames of `application/vnd.amazon.eventstream`, as Bedrock streams.
#
# A frame is a prelude (length of the whole and of the headers, CRC of both), headers, a payload, and a CRC over all before.
# Source: "Event stream encoding" in the Amazon Transcribe and Bedrock documentation.


EVENT_STREAM = b"application/vnd.amazon.eventstream"
_STRING = 7


def event(kind: str, payload: Mapping[str, Any]) -> bytes:
    """Returns the frame of one event."""
    return frame_of(
        {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}, orjson.dumps(payload)
    )


def exception(kind: str, payload: bytes) -> bytes:
    """Returns the frame of an exception in the middle of a stream; `payload` is its JSON."""
    return frame_of(
        {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}, payload
    )


def frame_of(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns one frame."""
    head = b"".join(
        struct.pack(f"!B{len(name)}sBH", len(name), name.encode(), _STRING, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(head) + len(payload), len(head))
    frame = prelude + struct.pack("!I", crc32(prelude)) + head + payload
    return frame + struct.pack("!I", crc32(frame))


# The headers by which each provider tells who it is, and what it calls a request.


_ORGANIZATION: Headers = ((b"openai-organization", b"org-emulator"), (b"openai-version", b"2020-10-01"))


def identity_of(dialect: str, draw: int) -> tuple[str, str, Headers]:
    """Returns the dialect, the id of a request made from a `draw` of 128 bits, and the headers of its answer."""
    drawn = f"{draw:032x}"
    name = f"req_{drawn}"
    match dialect:
        case "messages":
            return dialect, name, ((b"request-id", name.encode()), (b"anthropic-organization-id", b"org-emulator"))
        case "generate":
            return dialect, drawn, ((b"server-timing", b"gfet4t7; dur=1"), (b"x-frame-options", b"SAMEORIGIN"))
        case "converse":
            parts = (drawn[:8], drawn[8:12], drawn[12:16], drawn[16:20], drawn[20:])
            name = "-".join(parts)
            return dialect, name, ((b"x-amzn-requestid", name.encode()),)
    headers = ((b"x-request-id", name.encode()), *_ORGANIZATION)
    if dialect == "azure":
        headers += ((b"apim-request-id", drawn.encode()), (b"x-ms-region", b"Emulated Central"))
    elif dialect == "anthropic":
        headers += ((b"request-id", name.encode()),)
    return dialect, name, headers


# A provider's cache of prompts: the prefixes it has seen, for as long as it keeps them.
#
# It must not know how a request marks a prefix. Unlike a provider it has no smallest size, so that short prompts show it.
# Invariant: of one call, what is read, what is written and the rest add up to the whole prompt.


_MOST = 2000


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a prompt; the prompt up to its end is kept for `keep_s` seconds (None: not asked for)."""

    text: str
    keep_s: float | None = None


@dataclass(frozen=True, slots=True)
class CacheUse:
    """Tokens of a prompt: read from the cache, written into it (of these for an hour: `hourly`), and the others."""

    fresh: int
    read: int = 0
    written: int = 0
    hourly: int = 0

    @property
    def total(self) -> int:
        return self.fresh + self.read + self.written


class PromptCache:
    """The prefixes of each model; `wall` returns epoch seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._until: dict[bytes, float] = {}

    def use(self, model: str, segments: Sequence[Segment]) -> CacheUse:
        """Reads the longest known prefix, and keeps the marked ones."""
        digest = blake2b(model.encode("utf-8", "replace"), digest_size=16)
        now, length, read, written, hourly = self._wall(), 0, 0, 0, 0
        for segment in segments:
            digest.update(segment.text.encode("utf-8", "replace"))
            length += len(segment.text)
            if segment.keep_s is None:
                continue
            prefix = digest.digest()
            if self._until.get(prefix, 0.0) > now:
                read = written = tokens(length)
                hourly = 0
            else:
                hourly += (tokens(length) - written) if segment.keep_s > 300 else 0
                written = tokens(length)
            self._keep(prefix, now + segment.keep_s)
        return CacheUse(tokens(length) - written, read, written - read, hourly)

    def _keep(self, prefix: bytes, until: float) -> None:
        self._until.pop(prefix, None)
        if len(self._until) >= _MOST:
            del self._until[next(iter(self._until))]
        self._until[prefix] = until


def tokens(length: int) -> int:
    """Four characters make a token."""
    return (length + 3) // 4


# Signatures of thoughts, as a provider makes them: opaque, and valid for one text alone.
#
# A thought that comes back is checked, so that a conversion that loses or alters one is found out. The key is fixed, so that
# every emulator of a provider takes the others' signatures, as the provider's clouds do.


CLAUDE, GEMINI = b"emulated-claude", b"emulated-gemini"
UNCHECKED = "skip_thought_signature_validator"
"""What Google documents for calls that another model made."""


def sign(issuer: bytes, text: str) -> str:
    """Returns the signature of a thought, as base64."""
    return b64encode(issuer + b":" + blake2b(text.encode("utf-8", "replace"), key=issuer).digest()).decode()


def is_gemini(signature: str, text: str) -> bool:
    """Tells whether Gemini takes `signature` for `text`; it is bytes in proto-JSON, so both alphabets of base64 will do."""
    encoded = signature.translate(_URL_SAFE)
    return encoded in (sign(GEMINI, text), b64encode(UNCHECKED.encode()).decode()) or signature == UNCHECKED


_URL_SAFE = str.maketrans("-_", "+/")
