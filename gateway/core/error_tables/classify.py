"""Classifies a provider's error answer: phase, status, headers and body -> a diagnosis, by a table of ordered rules.

The first rule that holds decides. It must not know any provider: all of that is in the tables.
Invariant: total. Every answer has a diagnosis, and it is `unknown` only where even the status tells nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from gateway.core.error_tables.body import (
    BODY_BYTES,
    ErrorBody,
    Json,
    error_object,
    is_openai_shaped,
    read_body,
    read_error,
    resets_at,
    status_in,
)
from gateway.core.error_tables.rules import ErrorAnswer, ErrorRule, Scope, answer_of
from gateway.core.limits.headers.provider_headers import never_fits, retry_delay_s
from gateway.core.limits.headers.reset_times import parse_reset
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.provider_errors import ErrorClass, Phase

__all__ = ["Diagnosis", "ErrorTable", "Scope", "error_object", "in_band_status", "is_openai_shaped"]

_HINT_BYTES = 2_048
_DAY_S = 86_400.0
_STATUS_OF = {
    ErrorClass.BAD_REQUEST: 400,
    ErrorClass.CONTEXT_LENGTH_EXCEEDED: 400,
    ErrorClass.CONTENT_POLICY: 400,
    ErrorClass.AUTH: 401,
    ErrorClass.PERMISSION: 403,
    ErrorClass.MODEL_NOT_FOUND: 404,
    ErrorClass.NOT_FOUND: 404,
    ErrorClass.CONFLICT: 409,
    ErrorClass.PAYLOAD_TOO_LARGE: 413,
    ErrorClass.RATE_LIMIT_REQUESTS: 429,
    ErrorClass.RATE_LIMIT_TOKENS: 429,
    ErrorClass.QUOTA_EXHAUSTED: 429,
    ErrorClass.OVERLOADED: 503,
    ErrorClass.TIMEOUT: 504,
}
_RATE_LIMITS = frozenset((ErrorClass.RATE_LIMIT_REQUESTS, ErrorClass.RATE_LIMIT_TOKENS))
_LIMITS = _RATE_LIMITS | {ErrorClass.QUOTA_EXHAUSTED}
_PASSES = _LIMITS | {ErrorClass.OVERLOADED, ErrorClass.SERVER_ERROR, ErrorClass.TIMEOUT, ErrorClass.CONNECTION}
"""The classes that may pass with time. A delay named with any other error is a word of the request."""
_NO_RULE = ErrorRule("", ErrorClass.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The class of a failure, its scope, and the time at which it may be over."""

    error_class: ErrorClass
    scope: Scope = "target"
    delay_s: float | None = None
    """The least delay in seconds: the server's most exact hint, or the one that the rule knows."""
    never_fits: bool = False
    """The call asks for more than a limit of the target ever holds."""
    rule: str = ""
    """The rule that matched: its table and its name."""


@dataclass(frozen=True, slots=True)
class ErrorTable:
    """The rules of one kind of provider in order, the rules for all providers last."""

    rules: tuple[ErrorRule, ...] = ()
    kind: str = ""
    """The kind of headers to expect, as `provider_of` names it."""

    def diagnose(
        self, phase: Phase, status: int | None, headers: RawHeaders, body: bytes, wall_now: float, kind: str = ""
    ) -> Diagnosis:
        """Returns the diagnosis of an answer; `body` may be anything, header names are lower case, `wall_now` is epoch seconds.

        An error inside a 2xx is read as such; a 2xx without one is taken for broken, as its caller has found it to be.
        """
        read = read_body(body)
        if read.error is not None and status is not None and status < 300:
            return self._diagnose_in_band(phase, read, headers, wall_now, kind)
        return self._told(answer_of(phase, status, headers, read.wording), read.error, body, wall_now, kind)

    def diagnose_error(
        self, phase: Phase, status: int | None, error: Json, headers: RawHeaders, wall_now: float, kind: str = ""
    ) -> Diagnosis:
        """Returns the diagnosis of an error object inside an answer; a `status` below 400 tells nothing of it."""
        read = read_error(error)
        if status is None or status < 400:
            return self._diagnose_in_band(phase, read, headers, wall_now, kind)
        return self._told(answer_of(phase, status, headers, read.wording), error, _as_bytes(error), wall_now, kind)

    def rule_for(self, answer: ErrorAnswer) -> ErrorRule | None:
        """Returns the first rule that holds."""
        return next((rule for rule in self.rules if rule.holds(answer)), None)

    def rule_named(self, name: str) -> ErrorRule | None:
        """Returns the rule that a diagnosis names."""
        return next((rule for rule in self.rules if rule.name == name), None)

    def _diagnose_in_band(
        self, phase: Phase, read: ErrorBody, headers: RawHeaders, wall_now: float, kind: str
    ) -> Diagnosis:
        """Returns the diagnosis by the status and the words of the error; with neither it is a failure of the server."""
        error = read.error or {}
        answer = answer_of(phase, status_in(error), headers, read.wording, is_in_band=True)
        if self.rule_for(answer) is None:
            answer = answer_of(phase, 500, headers, read.wording)
        return self._told(answer, error, _as_bytes(error), wall_now, kind)

    def _told(self, answer: ErrorAnswer, error: Json | None, body: bytes, wall_now: float, kind: str) -> Diagnosis:
        """Returns the verdict of the first rule that holds, with the server's hints about coming back."""
        rule = self.rule_for(answer) or _NO_RULE
        hinted = _hints_in(body)
        status = 429 if rule.error_class in _LIMITS else answer.status or 0
        told_s = None
        if rule.error_class in _PASSES:
            told_s = retry_delay_s(status, answer.headers, hinted, wall_now, kind or self.kind)
        if told_s is None and error is not None and (instant := resets_at(error)) is not None:
            told_s = parse_reset(instant, wall_now)
        return Diagnosis(
            rule.error_class,
            rule.scope,
            _at_least(rule, told_s, wall_now),
            rule.never_fits or (rule.error_class in _RATE_LIMITS and never_fits(hinted)),
            rule.name,
        )


def in_band_status(error: Json, diagnosis: Diagnosis) -> int:
    """Returns the HTTP status for an error inside a 200: its own, else that of its class; always 400 to 599."""
    own = status_in(error)
    return own if own is not None and own != 500 else _STATUS_OF.get(diagnosis.error_class, 502)


def _at_least(rule: ErrorRule, told_s: float | None, wall_now: float) -> float | None:
    """Returns the longest delay: the server's, which is never undercut, the rule's, or until the daily reset without one."""
    if told_s is None and rule.resets_daily_at_s is not None:
        told_s = (rule.resets_daily_at_s - wall_now) % _DAY_S
    if rule.delay_s is None or told_s is None:
        return told_s if told_s is not None else rule.delay_s
    return max(told_s, rule.delay_s)


def _hints_in(body: bytes) -> bytes:
    """Returns the parts of a body that may hold hints: the beginning, and the end, where Google puts its delay."""
    at = body.find(b'"retryDelay"', _HINT_BYTES, BODY_BYTES)
    return body[:_HINT_BYTES] + (body[at : at + 64] if at >= 0 else b"")


def _as_bytes(error: Json) -> bytes:
    """Returns the error as JSON, for the hints in it; nothing where it is nested too deeply to be written."""
    try:
        return orjson.dumps(error)
    except (orjson.JSONEncodeError, RecursionError):
        return b""
