"""How requests about steps of runs are refused, in OpenAI's shape."""

from __future__ import annotations

from gateway.core.errors import CallerFault, GatewayError


class StepChanged(CallerFault):
    """The step of this run was asked another question before."""

    status = 422
    code = "step_changed"


class StepTooLarge(GatewayError):
    """The step's answer is larger than one may be that is kept; it is not given, and asking again would be paid again."""

    status = 502
    should_retry: bool | None = False
    code = "step_too_large"


class StepRunning(CallerFault):
    """The step is being run for somebody else; its answer is there later."""

    status = 409
    should_retry: bool | None = True
    retry_after_s: float | None = 1.0
    code = "step_in_progress"
