"""The ends of responses in the background: kept, told, and only then the job's end.

Each of the three is durable before the next one begins; whoever repeats them after a crash finds what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import orjson

from gateway.core.clock import Clock
from gateway.products.jobs.calls.ports.one_call import TryResult
from gateway.products.jobs.model.job import Job, JobEnd, JobError, JobState
from gateway.products.jobs.rules import JobRules
from gateway.products.jobs.runner import tally_of
from gateway.products.jobs.store.jobs import JobStore
from gateway.products.jobs.worker.running import RunningWork, until_done
from gateway.products.responses.rules.response_object.asked import items_of
from gateway.products.responses.rules.response_object.response_object import PREVIOUS, STORES, ended
from gateway.products.responses.rules.response_object.stored_response import ASKED, STATUS, StoredResponse
from gateway.products.responses.runner.model_run import ModelRun


class ResponseEnds:
    """Ends responses."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        rules_of: Callable[[Job], JobRules],
        on_end: Callable[[str, float], None],
    ) -> None:
        """`on_end` hears of each end: the job's id, and until when its log is kept."""
        self._store = store
        self._clock = clock
        self._rules_of = rules_of
        self._on_end = on_end

    async def end(
        self,
        running: RunningWork,
        model: ModelRun,
        response: Mapping[str, Any],
        state: JobState,
        error: JobError | None = None,
        served: TryResult | None = None,
    ) -> None:
        """Ends a response with what it has come to."""
        job = running.work.job
        rules, stores = self._rules_of(job), job.about[ASKED][STORES]
        kept = StoredResponse(
            id=job.id,
            tenant=job.tenant,
            created_at=job.created_at,
            keep_until=self._clock.wall() + (rules.keep_responses_s if stores else rules.keep_background_s),
            previous_id=job.about[ASKED][PREVIOUS],
            body=orjson.dumps(response),
            input_items=orjson.dumps(items_of(orjson.loads(running.work.payload).get("input"))),
        )
        await model.flush()  # of what is kept nothing is missing in the log but its end, which any reader can make
        await until_done(lambda: self._store.responses.put(kept), self._clock)
        await model.end(response)
        self._on_end(job.id, kept.keep_until)
        await self._finish(running, response, state, error, served)

    async def fail(
        self,
        running: RunningWork,
        model: ModelRun,
        error: JobError,
        final: Mapping[str, Any] | None = None,
        served: TryResult | None = None,
    ) -> None:
        """Ends a response as failed; `final` is what the provider has said of that."""
        if final is None:
            answer = b"" if served is None or served.answer is None else served.answer.body
            final = ended(model.events.so_far(), "failed", _error_of(answer, error))
        await self.end(running, model, final, JobState.FAILED, error, served)

    async def finish_kept(self, running: RunningWork, kept: StoredResponse) -> None:
        """Ends the job of a response that a worker has kept, and then was not heard of again."""
        response = orjson.loads(kept.body)
        state = {"failed": JobState.FAILED, "cancelled": JobState.CANCELLED}.get(response["status"], JobState.SUCCEEDED)
        if running.ends_as is JobState.EXPIRED and state is JobState.FAILED:
            state = JobState.EXPIRED
        self._on_end(kept.id, kept.keep_until)
        await self._finish(running, response, state, None, None)

    async def _finish(
        self,
        running: RunningWork,
        response: Mapping[str, Any],
        state: JobState,
        error: JobError | None,
        served: TryResult | None,
    ) -> None:
        usage, cost_usd = (None, None) if served is None else (served.usage, served.cost_usd)
        tally = tally_of(is_ok=state is JobState.SUCCEEDED, usage=usage, cost_usd=cost_usd)
        marks = {STATUS: response["status"]}
        end = JobEnd(state, error, tally=tally, marks=marks, is_attempt=served is not None)
        await running.finish(self._store, end)


def _error_of(answer: bytes, error: JobError) -> dict[str, Any]:
    """Returns the error of a response: the words of the answer that refused it, else those of the job."""
    with suppress(ValueError):
        said = orjson.loads(answer) if answer else None
        told = said.get("error") if isinstance(said, dict) else None
        if isinstance(told, dict) and isinstance(told.get("message"), str):
            return {"code": str(told.get("code") or "server_error"), "message": told["message"]}
    return {"code": "server_error", "message": error.message}
