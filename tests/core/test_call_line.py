"""The log's JSON lines, byte for byte: what is put together from prepared text says what a plain dictionary would."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.call import Call, CallRecord
from gateway.core.retry import Attempt
from gateway.core.telemetry import MOST_ATTEMPTS, CallLog
from gateway.core.types import Phase, Usage, UsageParts
from gateway.features.outcome import OUTCOME
from tests.core.test_telemetry import record, spared
from tests.rows import rows
from tests.support.flow import Bench, ScriptedUpstream, changed
from tests.support.targets import target_named

CALL = Bench([ScriptedUpstream()]).call()
WHEN = 1_800_000_000.123


PARTS = {
    "reasoning": "reasoning_tokens",
    "audio_input": "audio_input_tokens",
    "audio_cached": "audio_cached_tokens",
    "audio_output": "audio_output_tokens",
    "image_input": "image_input_tokens",
    "image_cached": "image_cached_tokens",
    "image_output": "image_output_tokens",
    "video_input": "video_input_tokens",
    "video_output": "video_output_tokens",
    "searches": "searches",
    "characters": "characters",
    "audio_s": "audio_s",
    "images": "images",
}
"""The fields of parts, in the order of a line."""


def reference(at: float, one: CallRecord, worker: int | None) -> bytes:
    """The line, written down field by field."""
    call, usage = one.call, one.usage
    last = call.attempts[-1] if call.attempts else None
    shown = call.attempts[-MOST_ATTEMPTS:]
    second, millisecond = divmod(round(at * 1000), 1000)
    line: dict[str, Any] = {
        "time": f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{millisecond:03d}Z",
        "event": "call",
        "id": call.request.id,
        "key": call.route.key.name,
        "tenant": call.request.tenant,
        "endpoint": call.request.endpoint.name,
        "model": call.request.model_name[:100] or call.request.path[:200],
        "stream": call.request.stream,
        "lane": call.request.lane,
        "status": one.status,
        "outcome": one.outcome,
        "target": last.target.name if last else None,
        "attempts": [str(attempt) for attempt in shown],
        "failures": [failure(attempt) for attempt in shown if attempt.error_class is not None],
        "upstream_request_id": text(last.upstream_request_id) if last else None,
        "input_tokens": usage.input if usage else None,
        "output_tokens": usage.output if usage else None,
        "cached_tokens": usage.cached if usage else None,
        "usage_estimated": usage.estimated if usage else None,
        "cost_usd": one.cost_usd,
        "retries_usd": one.retries_usd or None,
        "retry_denied": call.denied,
        "duration_ms": round(one.duration_s * 1000, 2),
        "first_byte_ms": None if one.time_to_first_byte_s is None else round(one.time_to_first_byte_s * 1000, 2),
        "queue_ms": round(call.queue_s * 1000, 2),
        "backoff_ms": round(call.backoff_s * 1000, 2),
        "overhead_ms": round(one.overhead_s * 1000, 2),
        "policy": call.route.policy.version,
    }
    if usage is not None and usage.estimated and one.outcome != "ok":
        line["cost_estimated"] = "left" if one.outcome == "client_gone" else "broken_off"
    if one.estimated_retries_usd < one.retries_usd:
        line["retries_estimated_usd"] = one.estimated_retries_usd
    if usage is not None:
        if usage.cache_written:
            line["cache_written_tokens"] = usage.cache_written
        if usage.cache_written_1h:
            line["cache_written_1h_tokens"] = usage.cache_written_1h
        line |= {name: number for part, name in PARTS.items() if (number := getattr(usage.parts, part))}
        if usage.tier:
            line["service_tier"] = usage.tier
    replay = OUTCOME.find(call)
    if replay is not None:
        told = {
            "cache": replay.result,
            "cache_layer": replay.layer or None,
            "saved_tokens": replay.saved.input + replay.saved.output if replay.saved else None,
            "saved_usd": replay.saved_usd,
            "age_s": None if replay.age_s is None else round(replay.age_s, 3),
            "similarity": None if replay.similarity is None else round(replay.similarity, 4),
            "source": replay.source or None,
        }
        line |= {name: value for name, value in told.items() if value is not None}
    if worker is not None:
        line["worker"] = worker
    return orjson.dumps(line) + b"\n"


def failure(attempt: Attempt) -> dict[str, Any]:
    told = {
        "target": attempt.target.name,
        "class": attempt.error_class,
        "phase": attempt.phase,
        "detail": attempt.detail,
        "upstream_request_id": text(attempt.upstream_request_id),
    }
    return {name: value for name, value in told.items() if value is not None}


def text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")


def line_of(at: float, one: CallRecord, worker: int | None = None) -> bytes:
    stream = io.StringIO()
    log = CallLog(stream, "json", worker)
    log.start()
    log.put([(at, one)])
    log.stop()
    return stream.getvalue().encode()


def served(**changes: object) -> CallRecord:
    """The account of a plain call: one attempt, its answer, its tokens."""
    attempt = Attempt(target_named("p0/m"), 100.0, 100.2, 100.5, 200, upstream_request_id=b"req_up-1")
    values: dict[str, Any] = {"attempts": [attempt], "id": "req_0123456789abcdef"}
    of_record = {one.name for one in fields(CallRecord)}
    of_call = {name: changes.pop(name) for name in list(changes) if name not in of_record}
    account = CallRecord(
        changed(CALL, **(values | of_call)), 200, "ok", Usage(117, 46), 0.000123, 0.0, 0.5123456, 0.0002, 0.2
    )
    return replace(account, **changes)  # type: ignore[arg-type]  # fields by name, for the tests' convenience


def attempted(**changes: object) -> list[Attempt]:
    return [replace(Attempt(target_named("p0/m"), 100.0, 100.2, 100.5, 200), **changes)]  # type: ignore[arg-type]  # as above


RECORDED = {
    "plain": served(),
    "a failover": record(),
    "spared": spared(),
    "a miss": spared(result="miss", layer="", source="", age_s=None, similarity=None, saved=None, saved_usd=None),
    "nothing tried": served(attempts=[], usage=None, cost_usd=None, time_to_first_byte_s=None, outcome="queue_full"),
    "not priced": served(cost_usd=None),
    "free": served(cost_usd=0.0),
    "cheap": served(cost_usd=1.25e-7),
    "dear": served(cost_usd=12345.678901),
    "estimated": served(usage=Usage(1, 2, 1, estimated=True)),
    "no usage": served(usage=None),
    "retries cost": served(retries_usd=1e-6, estimated_retries_usd=1e-6),
    "retries cost what was reported": served(retries_usd=1e-6),
    "no retry": served(denied="tokens"),
    "no id": served(attempts=attempted()),
    "an odd id": served(attempts=attempted(upstream_request_id=b'a"b\\c\xe9\x01')),
    "no status": served(attempts=attempted(status=None)),
    "failed": served(
        attempts=attempted(error_class="timeout", phase=Phase.SENT, detail="late", status=None), status=504
    ),
    "held": served(queue_s=1.23456, backoff_s=0.1),
    "the client's own id": served(id='x"\\\u00e9\u2028', echo_request_id=True),
    "a long model": served(model_name='m"é' * 90),
    "no model": served(model_name="", path="/files/" + "x" * 300),
    "a tenant": served(tenant='t"1', stream=True, lane="batch"),
    "client gone": served(status=499, outcome="client_gone"),
    "left": served(status=499, outcome="client_gone", usage=Usage(1, 2, estimated=True)),
    "a tier": served(usage=Usage(1, 2, tier="flex")),
    "an odd tier": served(usage=Usage(1, 2, tier='f"\\é')),
    "reasoning": served(usage=Usage(1, 9, parts=UsageParts(reasoning=8))),
    "written for an hour": served(usage=Usage(9, 2, cache_written=8, cache_written_1h=7)),
    "every part": served(usage=Usage(99, 99, parts=UsageParts(*range(1, 14)))),
    "an instant": served(duration_s=0.0, overhead_s=0.0, time_to_first_byte_s=None),
    "days": served(duration_s=1e6, time_to_first_byte_s=86400.0),
}


@rows("worker", [None, 3])
@rows("one", RECORDED.values(), ids=RECORDED.keys())
def test_a_recorded_call_has_the_same_line(one: CallRecord, worker: int | None) -> None:
    """The same keys in the same order, the same bytes; twice, as the second may take what the first has prepared."""
    expected = reference(WHEN, one, worker)

    assert line_of(WHEN, one, worker) == expected
    assert line_of(WHEN, one, worker) == expected


SECONDS = st.floats(0, 1e5, allow_subnormal=False)


@given(
    account=st.builds(
        served,
        status=st.sampled_from([200, 201, 400]),
        usage=st.none() | st.builds(Usage, st.integers(0, 2**53), st.integers(0, 9), st.integers(0, 9), st.booleans()),
        cost_usd=st.none() | st.floats(0, 1e4),
        duration_s=SECONDS,
        overhead_s=SECONDS,
        queue_s=SECONDS,
        backoff_s=SECONDS,
        time_to_first_byte_s=st.none() | SECONDS,
        id=st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        echo_request_id=st.just(True),
        attempts=st.builds(
            attempted,
            upstream_request_id=st.none() | st.binary(max_size=9),
            status=st.sampled_from([200, 204]),
        ),
    ),
    at=st.floats(1e9, 4e9),
)
def test_any_call_has_the_same_line(account: CallRecord, at: float) -> None:
    """Whatever the numbers are, and whatever clients and providers call theirs."""
    assert line_of(at, account) == reference(at, account, None)


def test_what_is_prepared_for_one_call_is_not_said_of_another() -> None:
    """Neither of another key nor of a model of the same name, a stream, or a target with another status."""
    call = served().call
    other: list[Call] = [
        changed(call, tenant="other"),
        changed(call, stream=True),
        replace(served().call, attempts=attempted(status=201)),
        replace(served().call, attempts=attempted(target=target_named("p1/m"))),
    ]

    for call in other:
        one = replace(served(), call=call)
        assert line_of(WHEN, one) == reference(WHEN, one, None)
