"""What a call says of the step that it is: read from its headers, and under which ids the step is known."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.core.errors import InvalidRequest
from gateway.core.snapshot.snapshot.request import Request
from gateway.features.reuse.rules.keys.keys import digest, fingerprint, owner_of
from gateway.features.runs.rules.workflow import StepAsk
from gateway.features.runs.step.part import ID_CHARS, STEP, is_id

ON_CHANGE = b"x-gateway-step-on-change"
REPLAYED = (b"x-gateway-step-replayed", b"true")


def read_step(index: Mapping[bytes, bytes], run: str) -> StepAsk:
    """Returns the step of a call that names one; `run` is the run that it names, empty for none. Raises InvalidRequest."""
    if b"prefer" in index and b"respond-async" in index[b"prefer"].lower():
        raise not_a_step("'Prefer: respond-async'", "prefer")
    step = index[STEP].decode("latin-1")
    if not is_id(step):
        raise InvalidRequest(
            f"The header 'x-gateway-step' must have 1 to 128 of {ID_CHARS}.",
            param="x-gateway-step",
            code="invalid_value",
        )
    if not run:
        raise InvalidRequest(
            "The header 'x-gateway-step' needs the run whose step it is: send 'x-gateway-run', too.",
            param="x-gateway-run",
            code="missing_field",
        )
    on_change = index.get(ON_CHANGE, b"refuse")
    if on_change not in (b"refuse", b"rerun"):
        raise InvalidRequest(
            "The header 'x-gateway-step-on-change' must be 'refuse' or 'rerun'.",
            param=ON_CHANGE.decode(),
            code="invalid_value",
        )
    return StepAsk(run, step, on_change == b"rerun")


def not_a_step(what: str, param: str) -> InvalidRequest:
    """Returns the error for a call that becomes a job and names a step: its answer is not there to be kept with it."""
    return InvalidRequest(
        f"A step is answered here, and no job: send {what} with an Idempotency-Key, or 'x-gateway-step' without it.",
        param=param,
        code="step_not_async",
    )


def no_step() -> InvalidRequest:
    """Returns the refusal of a step where there is no call whose answer could be kept."""
    return InvalidRequest(
        "The header 'x-gateway-step' is for calls of models, which are answered at once: send this request without it. Jobs "
        "and batches are made once with an 'Idempotency-Key'.",
        param=STEP.decode(),
        code="no_step",
    )


def step_record(tenant: str, ask: StepAsk) -> bytes:
    """Returns the id of the record by which a step is claimed while it runs, as that of an `Idempotency-Key`."""
    return (
        digest(b"step", tenant.encode(), ask.run.encode(), ask.step.encode()) + digest(b"tenant", tenant.encode())[:8]
    )


def step_fingerprint(request: Request) -> bytes:
    """Returns the digest of all that a repetition of a step must repeat: who asks, the path, and the whole body."""
    return digest(fingerprint(request), owner_of(request))
