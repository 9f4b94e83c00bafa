"""What goes wrong at a provider: the classes of failure, the progress of the attempt, and the failure of one attempt.

No client sees any of this as it is: the flow tries again or elsewhere, and turns the last failure into a `GatewayError`.
"""

from __future__ import annotations

from enum import StrEnum

from gateway.core.errors import InvalidRequest


class ErrorClass(StrEnum):
    """The kinds of failure, whatever words the provider used."""

    RATE_LIMIT_REQUESTS = "rate_limit_requests"
    RATE_LIMIT_TOKENS = "rate_limit_tokens"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    BAD_REQUEST = "bad_request"
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    CONTENT_POLICY = "content_policy"
    AUTH = "auth"
    PERMISSION = "permission"
    MODEL_NOT_FOUND = "model_not_found"
    """The failure concerns a model that the config names, so the operator has to mend it."""
    NOT_FOUND = "not_found"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    CONFLICT = "conflict"
    MALFORMED_RESPONSE = "malformed_response"
    STREAM_INTERRUPTED = "stream_interrupted"
    UNKNOWN = "unknown"


class Phase(StrEnum):
    """The progress of an attempt when it failed: it decides what may be tried again without paying twice."""

    NOTHING_SENT = "nothing_sent"
    SENT = "sent"
    ANSWERED = "answered"
    STREAMING = "streaming"


class UpstreamFailed(Exception):
    """One attempt got no usable answer; `detail` is for logs and errors and carries no secret."""

    def __init__(
        self, error_class: ErrorClass, phase: Phase, detail: str, *, is_lasting: bool = False, fault: str | None = None
    ) -> None:
        """`is_lasting`: the same call would fail there again. `fault`: so would every call, until the operator mends this."""
        super().__init__(f"{error_class} ({phase}): {detail}")
        self.is_lasting = is_lasting or fault is not None
        self.fault = fault
        self.error_class = error_class
        self.phase = phase
        self.detail = detail


class Unsayable(UpstreamFailed):
    """The call cannot be put into the target's language, which says nothing of the target: another one may serve it."""

    def __init__(self, phase: Phase, message: str, param: str | None, code: str | None) -> None:
        """`message`, `param` and `code` are for the caller."""
        super().__init__(ErrorClass.BAD_REQUEST, phase, message, is_lasting=True)
        self._param = param
        self._code = code

    def refusal(self) -> InvalidRequest:
        """Returns what the caller is told if no other target can serve the call."""
        return InvalidRequest(self.detail, param=self._param, code=self._code)
