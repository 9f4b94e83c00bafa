"""The refusals of durable work: it cannot be kept now, is less safe than the config asks for, or there is no store of it."""

from __future__ import annotations

from typing import Any

from gateway.core.errors import CallerFault, GatewayError


class JobsUnavailable(GatewayError):
    """Jobs cannot be kept now: the message says what is wrong for everybody, the log has the remedy. Plain calls go on."""

    status = 503
    should_retry: bool | None = True
    retry_after_s = 5.0
    code = "jobs_unavailable"


class OutcomeUnknown(JobsUnavailable):
    """Nobody answered whether it was done: the message says what may be there, and how to ask for it again."""


class NotDurable(JobsUnavailable):
    """It was done, but is not as safe as the config asks for: `result` is what it came to."""

    result: Any = None


class JobsOff(CallerFault):
    """This gateway takes no jobs."""

    status = 404
    code = "jobs_off"
