"""One request through the pipeline for a job, to its last byte, and what that came to: shared by calls and lines.

It must not know jobs' stores. A stream is read to its end: whoever fetches the result gets it as it would have come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from gateway.core.call import Call, Reply
from gateway.core.clock import Clock
from gateway.core.errors import CallerFault, GatewayError, InternalError, KeyReused
from gateway.core.ledger.settle import known_usd
from gateway.core.types.words import Usage
from gateway.dialects.sse import shapes
from gateway.products.jobs.calls.ports.outcomes import (
    Outcome,
    WorkVerdict,
    failure_of,
    verdict_of_error,
    verdict_of_status,
)
from gateway.products.jobs.calls.ports.ports import MakeCall, ServeCall, StoredRequest
from gateway.products.jobs.model.job import JobError, StoredAnswer

MOST_ANSWER_BYTES = 64 * 1024 * 1024
"""A longer answer is not kept: it fails for good."""
MESSAGES = "/messages"
VERSION = (b"anthropic-version", b"2023-06-01")
"""Said of calls of Messages that name none: the version that takes what later ones do, and `temperature` besides."""
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
    """As the caller would have got it; None: it was broken off."""
    error: JobError | None = None
    usage: Usage | None = None
    cost_usd: float | None = None
    """What its attempts have cost; None: not priced."""


class CallServer:
    """Serves stored requests."""

    def __init__(
        self, make_call: MakeCall, serve: ServeCall, clock: Clock, is_holding: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_holding` tells whether the delay queue has any call, of whomever."""
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
            call.task = asyncio.current_task()
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
            return self._refused(call, error, request)
        except Exception:
            log.exception("defect while serving %s", request.id)  # as at the edge: this request's, and nobody else's
            return self._refused(call, InternalError(), request)
        verdict = verdict_of_status(answer.status)
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
        told = _placed(JobError(error.code or error.type, error.message, self._clock.wall()), call)
        answer = _error_answer(error, request)
        return TryResult(
            verdict_of_error(error), answer, told, cost_usd=None if call is None else known_usd(call.attempts)
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
    """Tells whether an endpoint, such as `/v1/messages`, is that of Anthropic's Messages."""
    return endpoint.removeprefix("/v1") == MESSAGES


def _placed(error: JobError, call: Call | None) -> JobError:
    """Returns the error with where it happened: at the last target, and how far its attempt had come."""
    if call is None or not call.attempts:
        return error
    last = call.attempts[-1]
    phase = "" if last.phase is None else str(last.phase)
    return error._replace(target=last.target, phase=phase, cost_usd=known_usd(call.attempts) or 0.0)


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
