"""Which calls may become jobs: those of clients whose answer has not begun, and never those that a job makes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from gateway.core.call import Call, CallRoute, Reply
from gateway.core.errors import AdmissionDenied
from gateway.core.snapshot import Key, with_settings
from gateway.dialects.endpoints import CHAT
from gateway.products.jobs.respond_async import AsyncAnswers, may_become_job
from gateway.products.jobs.rules import ACCEPTS_202
from gateway.products.jobs.service import JobService
from tests.support.flow import Bench, ScriptedUpstream


def test_the_call_of_a_job_becomes_no_job() -> None:
    """Else one that is refused would be taken again and again, each time as a new job."""
    bench = Bench([ScriptedUpstream()])
    key = with_settings(Key("web", "web", b""), {ACCEPTS_202: True})
    route = CallRoute(bench.policy, key, bench.policy.models["m"], CHAT, False)

    assert may_become_job(route, frozenset())
    assert not may_become_job(replace(route, is_internal=True), frozenset((b"prefer",)))


async def test_a_refusal_stays_one_where_the_answer_can_have_no_status() -> None:
    """As of a turn on a WebSocket."""
    bench = Bench([ScriptedUpstream()])
    answers = AsyncAnswers(cast(JobService, None), bench.pipeline.accounts, bench.clock)
    call = bench.call(idempotency_key=b"k")
    call.is_begun = True

    async def refuse(_call: Call) -> Reply:
        raise AdmissionDenied("No room.")

    with pytest.raises(AdmissionDenied):
        await answers.serve(call, refuse)
