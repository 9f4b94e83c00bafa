"""What the worker needs of others: outcomes judged, and calls made of stored requests.

In this order: the outcomes; the ports of calls; and one request through the pipeline, which calls and lines share.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import orjson

from gateway.core import retry
from gateway.core.call import Call, Reply, deciding_attempt
from gateway.core.clock import Clock
from gateway.core.errors import (
    AdmissionDenied,
    CallerFault,
    DeadlineExceeded,
    GatewayError,
    InternalError,
    ShuttingDown,
    drop_frames,
)
from gateway.core.ledger import known_usd
from gateway.core.retry_budgets import attempts_by_cost
from gateway.core.types import ErrorClass, Lane, Usage
from gateway.dialects import shapes
from gateway.features.identity import KeyInUse, KeyReused
from gateway.features.run_port import RunWords
from gateway.products.jobs.model import Job, JobError, StoredAnswer
from gateway.products.jobs.rules import JobRules

# --- outcomes: done, failed for good, tried again later, put off, or broken off ---

PUT_OFF_S: Final = 5.0
"""The wait of a call that was refused by somebody who could not say for how long."""
LONGEST_PUT_OFF_S: Final = 300.0
"""The longest wait, whatever the refusal says: a limit may have been raised, a quota paid for."""
_MOST_MESSAGE: Final = 65_536
"""Longer bodies are no error messages."""
_SECRET: Final = re.compile(r"\b(?:sk|pk|rk|key|gsk|xai)[-_][\w*.-]{4,}|\bBearer\s+\S+|\bAIza[\w-]{8,}|://[^/\s@]+@")
RUN_BUDGET_EXCEEDED: Final = "run_budget_exceeded"
"""The class of errors of work whose run has had all that it may cost."""
_TRANSIENT_STATUSES: Final = frozenset((408, 409, 425, 429, 498))


class Outcome(Enum):
    """What has become of one try.

    Being refused for want of room is no attempt: the work is put off until there may be room.
    """

    DONE = "done"
    PERMANENT = "permanent"
    """It would fail again: its answer is kept as it is."""
    TRANSIENT = "transient"
    """It may succeed later, and counts as an attempt."""
    PUT_OFF = "put off"
    """There was no room for it: it has not been tried."""
    INTERRUPTED = "interrupted"
    """The worker stops: it counts as nothing."""


class WorkVerdict(NamedTuple):
    """An outcome, and how long to wait before the next try where somebody has said so."""

    outcome: Outcome
    retry_after_s: float | None = None


def verdict_of_status(status: int) -> WorkVerdict:
    """Returns what an HTTP answer means for the work that asked for it."""
    if 200 <= status < 300:
        return WorkVerdict(Outcome.DONE)
    if status >= 500 or status in _TRANSIENT_STATUSES:
        return WorkVerdict(Outcome.TRANSIENT)
    return WorkVerdict(Outcome.PERMANENT)


def verdict_of_error(error: GatewayError) -> WorkVerdict:
    """Returns what one of the gateway's own errors means for the work that met it."""
    if isinstance(error, ShuttingDown):
        return WorkVerdict(Outcome.INTERRUPTED)
    if isinstance(error, AdmissionDenied) and error.is_final:
        return WorkVerdict(Outcome.PERMANENT)
    if isinstance(error, AdmissionDenied | DeadlineExceeded | KeyInUse):  # the key's answer is being made elsewhere
        delay_s = PUT_OFF_S if error.retry_after_s is None else error.retry_after_s
        return WorkVerdict(Outcome.PUT_OFF, min(max(delay_s, 0.1), LONGEST_PUT_OFF_S))
    if isinstance(error, CallerFault) and not error.should_retry:
        return WorkVerdict(Outcome.PERMANENT)
    return WorkVerdict(Outcome.TRANSIENT, error.retry_after_s)


def failure_of(status: int, body: bytes) -> str:
    """Returns what an answer says of a failure: its status, and the message in its body, without what looks like a secret."""
    provider_error: Any = None
    if len(body) <= _MOST_MESSAGE:
        with suppress(ValueError):
            provider_error = orjson.loads(body)
    error = provider_error.get("error") if isinstance(provider_error, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str) or not message.strip():
        return f"the answer was {status}"
    return f"the answer was {status}: {_SECRET.sub('…', ' '.join(message.split()))}"


def backoff_s(rules: JobRules, attempts: int, draw: float) -> float:
    """Returns how long to wait after so many failed attempts, at least 1; `draw` is uniform from [0, 1)."""
    return retry.backoff_s(rules.backoff, attempts, draw)


def attempts_allowed(rules: JobRules, cost_usd: float | None) -> int:
    """Returns how often a job is tried whose attempt costs so much; None: it is not priced."""
    return attempts_by_cost(rules.by_cost, cost_usd, rules.attempts)


# --- ports: calls made of stored requests ---

STRICT = b"x-gateway-strict", b"true"
"""Goes with the headers of a stored call that may lose nothing on its way; it is not for providers."""


def headers_to_keep(call: Call) -> list[tuple[str, str]]:
    """Returns the headers of a call as a job keeps them."""
    headers = [*call.request.headers, STRICT] if call.route.model.on_loss == "refuse" else call.request.headers
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


class StoredRequest(NamedTuple):
    """A request as a job keeps it. No credential: the job runs on the keys of the config."""

    id: str
    """The id of the call that is made of it, for logs and traces."""
    endpoint: str
    """Such as `/v1/chat/completions`."""
    body: bytes
    headers: Sequence[tuple[bytes, bytes]]
    """The caller's headers that may go to a provider, and `STRICT`, which may not."""
    key: str
    """The name of the key that pays."""
    tenant: str
    lane: Lane
    deadline_s: float
    """Seconds from now: the job's own time that is left."""
    group_most: int = 0
    """The most inputs that go to a provider together with its own; 0: as its model has it."""
    parsed: dict[str, Any] | None = None
    """The body, read, where it is known to be one that all parsers read alike: then nobody reads it again."""
    idempotency_key: bytes | None = None
    """The request is served under the record of this key, as if its caller had sent it again: whoever runs first pays."""
    part: RunWords = RunWords()
    """The part of a run that its call is."""
    query: bytes = b""
    """The caller's query behind the path, which goes to a provider, too."""
    step: StepOfRun | None = None
    """None: it is no step."""
    is_held: bool = False
    """Nobody reads its stream as it comes: it is to be checked before anything is kept of it, whatever its model's rule is."""
    lost_tries: int = 0
    """Earlier tries of it that may have been in flight when their process died."""


class StepOfRun(NamedTuple):
    """The step of a pipeline's run that a request is made for."""

    run: str
    workflow: str
    """The pipeline, as a model."""
    step: str
    usd_per_run: float | None
    output: Mapping[str, Any] | None
    """The rule for its answer, as in the pipeline's source; None: whatever its model's policy says."""

    @property
    def words(self) -> RunWords:
        """Returns the part of its run that it is."""
        return RunWords(self.workflow, self.run, self.step)


STEP: Final = "step"
"""In `about` of a child of a run: the step that it is a part of."""
STEP_OUTPUT: Final = "output"
"""In `about` of a child: the rule for its answers."""
RUN_MODEL: Final = "pipeline_model"
"""In `about` of a child: its run's pipeline, as a model."""
RUN_USD: Final = "usd_per_run"
"""In `about` of a child: what its run may cost."""


def step_of(job: Job) -> StepOfRun | None:
    """Returns the step that a job, or a line of it, is made for; None: it is no child of a run."""
    if not job.parent:
        return None
    about = job.about
    return StepOfRun(job.parent, about[RUN_MODEL], about[STEP], about.get(RUN_USD), about.get(STEP_OUTPUT))


class MakeCall(Protocol):
    """Makes calls of stored requests, under the policy that is in force when they run."""

    async def __call__(self, request: StoredRequest) -> Call:
        """Returns the call. Raises GatewayError as the edge would, also when the key is gone or may not use the model."""
        ...


class ServeCall(Protocol):
    """The pipeline's `handle`."""

    def __call__(self, call: Call) -> Coroutine[Any, Any, Reply]:
        """Serves the call. Raises GatewayError."""
        ...


# --- one request through the pipeline for a job, to its last byte, and what that came to ---

MOST_ANSWER_BYTES = 64 * 1024 * 1024
"""A longer answer is not kept: it fails for good."""
MESSAGES = "/messages"
VERSION = (b"anthropic-version", b"2023-06-01")
"""The header of calls of Messages that name no version: the version that takes what later ones do, and `temperature` besides.
"""
JSON = ((b"content-type", b"application/json"),)
log = logging.getLogger("gateway.jobs")


class AnswerTooLarge(CallerFault):
    """The answer is longer than one that is kept: asked for again it would be so, too, and paid for again."""

    status = 502
    code = "answer_too_large"


class ServedAnswer(NamedTuple):
    """An answer as the pipeline gave it."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes

    def stored(self) -> StoredAnswer:
        """Returns the answer as stores keep it."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers]
        return StoredAnswer(self.status, headers, self.body)


@dataclass(slots=True)
class TryResult:
    """What one try of one request came to."""

    verdict: WorkVerdict
    answer: ServedAnswer | None = None
    """The answer, as the caller would have got it; None: it was broken off."""
    error: JobError | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    """The cost of its attempts; None: not priced."""


class CallServer:
    """Serves stored requests.

    A stream is read to its end: whoever fetches the result gets it as it would have come.
    """

    def __init__(
        self, make_call: MakeCall, serve: ServeCall, clock: Clock, is_holding: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_holding` returns whether the delay queue has any call, of whomever."""
        self.is_holding = is_holding
        self._make_call = make_call
        self._serve = serve
        self._clock = clock

    async def serve(
        self,
        request: StoredRequest,
        on_call: list[Call] | None = None,
        read: Callable[[Reply], Awaitable[ServedAnswer]] | None = None,
    ) -> TryResult:
        """Serves one request; cancelling it stops the call. `on_call` gets the call as soon as there is one.

        `read` reads the reply in place of `read_reply`.
        """
        call: Call | None = None
        try:
            call = await self._make_call(request)
            if on_call is not None:
                on_call.append(call)
            reply = await self._serve(call)
            answer = await (read_reply if read is None else read)(reply)
        except KeyReused as error:
            if request.idempotency_key is None:
                return self._refused(call, error, request)
            # The key was another request's when this one was taken as a job, or has become it since: it was taken.
            return await self.serve(request._replace(idempotency_key=None), on_call, read)
        except GatewayError as error:
            if isinstance(error, InternalError):
                log.exception("defect while serving %s", request.id, exc_info=error.__cause__ or error)
            drop_frames(error)
            return self._refused(call, error, request)
        except Exception:
            log.exception("defect while serving %s", request.id)  # as at the edge: this request's, and nobody else's
            return self._refused(call, InternalError(), request)
        verdict = verdict_of_status(answer.status)
        # A 502 to the caller, where the credential is ours; no try of ours mends it.
        if call.outcome == ErrorClass.AUTH:
            verdict = WorkVerdict(Outcome.PERMANENT)
        if reply.chunks is not None and call.outcome != "ok":  # the stream broke off behind its status line
            verdict = WorkVerdict(Outcome.TRANSIENT)
        served = TryResult(verdict, answer, usage=call.usage, cost_usd=known_usd(call.attempts))
        if verdict.outcome is not Outcome.DONE:
            why = failure_of(answer.status, bytes(answer.body))
            served.error = _placed(JobError(call.outcome, why, self._clock.wall()), call)
        return served

    def refused(self, error: GatewayError) -> TryResult:
        """Returns what a request has come to of which no call can be made."""
        return self._refused(None, error)

    def _refused(self, call: Call | None, error: GatewayError, request: StoredRequest | None = None) -> TryResult:
        failure = _placed(JobError(error.code or error.type, error.message, self._clock.wall()), call)
        answer = _error_answer(error, request)
        return TryResult(
            verdict_of_error(error), answer, failure, cost_usd=None if call is None else known_usd(call.attempts)
        )


def _error_answer(error: GatewayError, request: StoredRequest | None) -> ServedAnswer:
    """Returns the error as callers of the request's endpoint read it: those of Messages are Anthropic's."""
    if request is None or not is_of_messages(request.endpoint):
        body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        return ServedAnswer(error.status, JSON, orjson.dumps({"error": body}))
    shaped = shapes.error(
        "messages",
        error.message,
        status=error.status,
        type=error.type,
        code=error.code,
        param=error.param,
        request_id=request.id,
    )
    return ServedAnswer(error.status, (*JSON, (b"request-id", request.id.encode())), orjson.dumps(shaped))


def with_version(endpoint: str, headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """Returns a stored request's headers, of a call of Messages with the version of the API: a line of a batch has none."""
    if not is_of_messages(endpoint) or any(name == VERSION[0] for name, _ in headers):
        return headers
    return [*headers, VERSION]


def is_of_messages(endpoint: str) -> bool:
    """Returns whether an endpoint, such as `/v1/messages`, is that of Anthropic's Messages."""
    return endpoint.removeprefix("/v1") == MESSAGES


def _placed(error: JobError, call: Call | None) -> JobError:
    """Returns the error with where it happened: at the last target, and how far its attempt had come."""
    last = None if call is None else deciding_attempt(call)
    if call is None or last is None:
        return error
    phase = "" if last.phase is None else str(last.phase)
    return error._replace(target=last.target.name, phase=phase, cost_usd=known_usd(call.attempts) or 0.0)


async def read_reply(reply: Reply) -> ServedAnswer:
    """Returns a whole answer. Raises AnswerTooLarge."""
    body = reply.body
    if reply.chunks is not None:
        parts, size = [], 0
        try:
            async for chunk in reply.chunks:
                size += len(chunk)
                if size > MOST_ANSWER_BYTES:
                    raise AnswerTooLarge(f"The answer has more than {MOST_ANSWER_BYTES} bytes, and is not kept.")
                parts.append(chunk)
        finally:
            await reply.close()
        body = b"".join(parts)
    return ServedAnswer(reply.status, reply.shared, body)
