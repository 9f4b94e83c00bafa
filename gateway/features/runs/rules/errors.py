"""What is said of runs that cannot be read, and to calls of runs that have had enough."""

from __future__ import annotations

from gateway.core.errors import AdmissionDenied, GatewayError


class RunsUnavailable(GatewayError):
    """Runs cannot be read or changed now; calls go on, and what they add is counted later."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "runs_unavailable"

    def __init__(self, message: str, *, is_kept: bool = False) -> None:
        """`is_kept`: the change that was to be added need not be brought again; whoever keeps runs finds out about it."""
        super().__init__(message)
        self.is_kept = is_kept


class RunBudgetExceeded(AdmissionDenied):
    """The run has cost, or called, as much as its workflow allows; to come again would change nothing."""

    status = 429
    type = "rate_limit_error"
    should_retry: bool | None = False
    code = "run_budget_exceeded"


class RunBudgetReserved(RunBudgetExceeded):
    """What is left of the run's money is reserved by its calls in flight; when they have ended, some of it may be left."""

    should_retry = True
