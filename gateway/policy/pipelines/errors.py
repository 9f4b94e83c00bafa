"""What callers of pipelines are told when there is no answer."""

from __future__ import annotations

from gateway.errors import GatewayError


class PipelineFailed(GatewayError):
    """A step has failed for good, and the plan does not accept that. To send the call again would pay for all steps again."""

    status = 502
    code = "run_failed"
    should_retry = False


class PipelineUnfinished(GatewayError):
    """The caller's time is over before the run's; the run goes on."""

    status = 504
    code = "run_unfinished"
    should_retry = False
