"""What the client gets where no answer keeps the rule."""

from __future__ import annotations

from gateway.core.errors import CallerFault


class OutputInvalid(CallerFault):
    """The model's answer breaks the schema that was asked for, and neither a retry nor a repair has helped.

    What the rule allows has been tried: a job or a line that meets it has failed for good.
    """

    status = 502
    type = "server_error"
    code = "output_invalid"
