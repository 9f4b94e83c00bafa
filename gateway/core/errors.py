"""The errors that the core answers with, in one tree, and the two with which a process cannot start.

    GatewayError                    answered to the client in OpenAI's error shape
    ├── CallerFault            4xx  the request itself is wrong, or asks for what HTTP servers answer with 501 and 505
    │   ├── InvalidRequest     400
    │   ├── BodyTooComplex     400
    │   ├── Unauthorised       401
    │   ├── Forbidden          403
    │   ├── NotFound           404
    │   ├── MethodNotAllowed   405
    │   ├── BodyTimeout        408
    │   ├── BodyTooLarge       413
    │   ├── RequestExceedsLimits 413  asks for more than a limit ever holds
    │   ├── HeadersTooLarge    431
    │   ├── NotSupported       501  a protocol or a transfer coding that is not spoken here
    │   └── VersionNotSupported 505
    ├── AdmissionDenied        503  good as it is, but cannot be let through, now or in time
    │   ├── KeyRateLimited     429  the caller's own limit
    │   ├── BudgetExceeded     429  the caller's own budget for the day
    │   ├── CircuitOpen        503  every target is left alone after failures
    │   ├── QueueFull          503  the delay queue holds all it may
    │   ├── WaitTooLong        503  its turn would come after its deadline: refused at once
    │   ├── QueueDeadlineExceeded 504  its deadline passed while it was held
    │   ├── QuotaExhausted     503  every target has used up what its account may spend
    │   └── GatewayOverloaded  503  the gateway sheds this lane to stay fast for the ones above
    ├── NoTargetAvailable      502  every target of the plan failed
    ├── ProviderCredentialRefused 502  the provider refused the gateway's own credential
    ├── TargetsTimedOut        504  the last target of the plan ran out of time
    ├── DeadlineExceeded       504  the caller's own deadline passed before an answer began
    ├── ShuttingDown           503  the process is draining
    ├── BackupFailed           503  the state file could not be copied for an operator
    └── InternalError          500  a defect of ours: logged with its traceback, shown without
    ConfigError                     the config cannot be used; happens while loading only, never on a request
    StoreUnusable                   the place where state is kept cannot be used; at start only

Products derive theirs from these, each beside its own code. What goes wrong at a provider, which no client sees as it is, is
in `types.py`.
"""

from __future__ import annotations

from math import inf

MAX_RETRY_AFTER_S = 60.0
"""SDKs retry by themselves up to this delay. Older ones ignore a longer one and come back too early, others sleep for hours."""


def drop_frames(error: BaseException) -> None:
    """Forget the frames that an error and its causes have passed, to be called by whoever keeps it or handles it for good.

    They hold the bodies of requests and answers, and one that has the error in a variable is a circle, which stays in memory
    until the oldest generation is collected.
    """
    passed: BaseException | None = error
    while passed is not None:
        passed.__traceback__ = None
        passed = passed.__cause__ or passed.__context__


class GatewayError(Exception):
    """An error that the client sees, in OpenAI's shape; `message` names the field and the remedy."""

    status = 500
    type = "server_error"
    code: str | None = None

    should_retry: bool | None = None
    """The value of `x-should-retry` for SDKs; None: the header is absent, and SDKs decide by the status."""
    retry_after_s: float | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code


class CallerFault(GatewayError):
    """The request cannot be served as it was sent; sending it again changes nothing."""

    status = 400
    type = "invalid_request_error"
    should_retry: bool | None = False


class InvalidRequest(CallerFault):
    """The body or a header is malformed."""

    code = "invalid_request"


class BodyTooComplex(CallerFault):
    """The body has more values than allowed, or nests them too deeply."""

    code = "body_too_complex"


class Unauthorised(CallerFault):
    """The request has no key, or one that the gateway does not know."""

    status = 401
    code = "invalid_api_key"


class Forbidden(CallerFault):
    """The key is valid, but may not use this."""

    status = 403
    code = "model_not_allowed"


class NotFound(CallerFault):
    """There is no such path or model."""

    status = 404
    code = "not_found"


class MethodNotAllowed(CallerFault):
    """The path exists, but not with this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeout(CallerFault):
    """The request body did not arrive in time."""

    status = 408
    should_retry: bool | None = True
    retry_after_s = 1.0
    code = "request_body_timeout"


class BodyTooLarge(CallerFault):
    """The request body is over the cap."""

    status = 413
    code = "request_too_large"


class RequestExceedsLimits(CallerFault):
    """The call asks for more than a limit ever holds, so it would wait for ever; `limit` names that limit."""

    status = 413
    code = "request_exceeds_limits"

    def __init__(self, message: str, *, param: str | None = None, limit: str | None = None) -> None:
        super().__init__(message, param=param)
        self.limit = limit


class HeadersTooLarge(CallerFault):
    """The request line and headers are over the cap."""

    status = 431
    code = "headers_too_large"


class NotSupported(CallerFault):
    """The request uses a protocol or a transfer coding that this server does not speak (RFC 9110, 15.6.2); `code` names it."""

    status = 501


class VersionNotSupported(CallerFault):
    """The request uses a version of HTTP that this port does not speak (RFC 9110, 15.6.6)."""

    status = 505
    code = "http_version_not_supported"


class AdmissionDenied(GatewayError):
    """The call cannot be let through, now or in time.

    `retry_after_s` is when it could be, None where the class has no better idea; `limit` names what is in its way, such as
    "openai/gpt-4o requests_per_min". SDKs are only told to come back where they would come back in time.
    """

    status = 503
    should_retry: bool | None = True
    code = "admission_denied"
    is_final: bool = False
    """Whenever the call came again, it would be denied: durable work does not wait for better times."""

    def __init__(self, message: str, *, retry_after_s: float | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.limit = limit
        if retry_after_s is not None:
            self.retry_after_s = retry_after_s
        self.should_retry = bool(self.should_retry) and (self.retry_after_s or inf) <= MAX_RETRY_AFTER_S


class KeyRateLimited(AdmissionDenied):
    """The key has used up its limit."""

    status = 429
    type = "rate_limit_error"
    code = "key_rate_limited"


class BudgetExceeded(AdmissionDenied):
    """The key has spent its budget for the day, or what is left of it does not pay for the call."""

    status = 429
    type = "rate_limit_error"
    should_retry: bool | None = False
    code = "budget_exceeded"


class BudgetReserved(BudgetExceeded):
    """The rest of the key's budget is reserved by its calls in flight; when they have ended, some of it may be left."""

    should_retry = True
    code = "budget_reserved"


class CircuitOpen(AdmissionDenied):
    """Every target that could serve the call is left alone, after failures or by hand; `retry-after` is the next probe."""

    code = "circuit_open"


class QueueFull(AdmissionDenied):
    """The call would have to wait, and no more calls can be held."""

    retry_after_s = 1.0
    code = "queue_full"


class WaitTooLong(AdmissionDenied):
    """The call's turn would come after its deadline, so it is refused before it has waited."""

    code = "queue_wait_exceeds_deadline"


class QueueDeadlineExceeded(AdmissionDenied):
    """The call's deadline passed while it was held."""

    status = 504
    type = "timeout_error"
    retry_after_s = 1.0
    code = "queue_deadline_exceeded"


class QuotaExhausted(AdmissionDenied):
    """Every target that could serve the call is out of quota, which comes back at a reset or with a payment, not by a retry."""

    should_retry: bool | None = False
    code = "quota_exhausted"


class GatewayOverloaded(AdmissionDenied):
    """The gateway is short of memory or time and serves higher lanes only."""

    retry_after_s = 1.0
    code = "gateway_overloaded"


class NoTargetAvailable(GatewayError):
    """Every target of the plan was tried and none answered."""

    status = 502
    should_retry: bool | None = False
    code = "no_target_available"


class ProviderCredentialRefused(GatewayError):
    """The provider refused the gateway's own credential: the caller's key is good, and the operator has to act."""

    status = 502
    should_retry: bool | None = False
    code = "provider_credential_refused"

    def __init__(self, provider: str) -> None:
        """`provider` is its name in the config."""
        super().__init__(
            f"The provider '{provider}' refused the gateway's own credential; your key is not at fault. "
            "The gateway's operator has to replace the credential."
        )


class TargetsTimedOut(NoTargetAvailable):
    """Every target of the plan was tried and none answered; the last one ran out of time."""

    status = 504
    type = "timeout_error"
    code = "upstream_timeout"


class DeadlineExceeded(GatewayError):
    """The caller's own deadline passed before an answer began.

    An SDK that has told its timeout tries again by itself after it, as it does without a gateway.
    """

    status = 504
    type = "timeout_error"
    should_retry: bool | None = True
    code = "deadline_exceeded"


class ShuttingDown(GatewayError):
    """The process takes no new calls; another replica, or this one after its restart, does."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 1.0
    code = "shutting_down"


class BackupFailed(GatewayError):
    """The state file could not be copied; the file itself is unchanged."""

    status = 503
    code = "backup_failed"


class InternalError(GatewayError):
    """A defect of the gateway."""

    should_retry: bool | None = False
    code = "internal_error"

    def __init__(self, message: str = "The gateway failed on this request; its log has the details.") -> None:
        super().__init__(message)


class ConfigError(Exception):
    """The config cannot be used; `problems` lists every problem as one printable line."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StoreUnusable(Exception):
    """The place where state is kept cannot be used; raised at start only, with the place and the remedy in the message."""
