"""Numbers and the call log: exact, bounded by the config, without secrets."""

from __future__ import annotations

import asyncio
import io
import threading

import orjson
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.call import Attempt, Settled, Usage
from gateway.calllog import QUEUED_BATCHES, CallLog
from gateway.telemetry import Distribution, Telemetry
from tests.flow.support import Bench, ScriptedUpstream

STARTED = 100.0


def record(**changes: object) -> Settled:
    """The account of a call that failed over once."""
    call = Bench([ScriptedUpstream()]).call(
        attempts=[
            Attempt("a/m", STARTED, ended_at=STARTED + 0.2, error_class="overloaded"),
            Attempt("b/m", STARTED + 0.2, STARTED + 0.5, STARTED + 1.0, 200, upstream_request_id=b"req_up"),
        ],
        body=b'{"model":"m","messages":[{"content":"PROMPT-CANARY"}]}',
        headers=[(b"x", b"HEADER-CANARY")],
        credential=b"Bearer CREDENTIAL-CANARY",
    )
    values: dict[str, object] = {
        "call": call,
        "status": 200,
        "outcome": "ok",
        "usage": Usage(100, 20, cached=40),
        "cost_usd": 0.25,
        "duration_s": 1.0,
        "overhead_s": 0.0004,
        "time_to_first_byte_s": 0.3,
    }
    return Settled(**{**values, **changes})  # type: ignore[arg-type]  # fields by name, for the tests' convenience


def scrape(telemetry: Telemetry) -> dict[str, float]:
    """All samples, as `name{labels}`."""
    text = generate_latest(telemetry.registry).decode()
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gateway_")
    }


def make() -> tuple[Telemetry, io.StringIO, CallLog]:
    """Telemetry whose log goes into a buffer."""
    stream = io.StringIO()
    log = CallLog(stream, "json")
    return Telemetry(log, wall=lambda: 1_800_000_000.123), stream, log


async def test_every_number_of_a_call_is_there_at_the_next_scrape() -> None:
    """Batches are an inner matter: a scrape sees everything that has ended."""
    telemetry, _, _ = make()

    telemetry.began()
    telemetry.settled(record())
    samples = scrape(telemetry)

    assert samples["gateway_requests_total[('key', 'web'), ('model', 'm'), ('outcome', 'ok')]"] == 1
    assert samples["gateway_attempts_total[('class', 'overloaded'), ('target', 'a/m')]"] == 1
    assert samples["gateway_attempts_total[('class', 'ok'), ('target', 'b/m')]"] == 1
    assert samples["gateway_fallbacks_total[('class', 'overloaded'), ('model', 'm'), ('to', 'b/m')]"] == 1
    assert samples["gateway_tokens_total[('kind', 'input'), ('model', 'm'), ('target', 'b/m')]"] == 100
    assert samples["gateway_tokens_total[('kind', 'cached_input'), ('model', 'm'), ('target', 'b/m')]"] == 40
    assert samples["gateway_cost_usd_total[('key', 'web'), ('model', 'm'), ('target', 'b/m')]"] == 0.25
    assert samples["gateway_time_to_first_byte_seconds_count[('target', 'b/m')]"] == 1
    assert samples["gateway_request_duration_seconds_sum[('model', 'm')]"] == 1
    assert samples["gateway_calls_in_flight[]"] == 0


async def test_unknown_prices_are_counted_not_summed() -> None:
    """An unpriced call must not look like a free one."""
    telemetry, _, _ = make()

    telemetry.began()
    telemetry.settled(record(cost_usd=None, usage=Usage(1, 1, estimated=True)))
    samples = scrape(telemetry)

    assert samples["gateway_unpriced_calls_total[('model', 'm'), ('target', 'b/m')]"] == 1
    assert samples["gateway_estimated_usage_total[('model', 'm'), ('target', 'b/m')]"] == 1
    assert not any(name.startswith("gateway_cost_usd_total[") for name in samples)


@pytest.mark.parametrize(("value", "buckets"), [(0.5, [1, 1, 1]), (1.0, [1, 1, 1]), (1.5, [0, 1, 1]), (9.0, [0, 0, 1])])
def test_buckets_are_cumulative_and_closed_above(value: float, buckets: list[int]) -> None:
    """`le` means less or equal, as Prometheus has it."""
    histogram = Distribution("x", "text", (1.0, 2.0))

    histogram.observe((), value)
    samples = {(s.name, s.labels.get("le")): s.value for s in histogram.family().samples}

    assert [samples["gateway_x_bucket", bound] for bound in ("1.0", "2.0", "+Inf")] == buckets
    assert samples["gateway_x_sum", None] == value


async def test_a_line_tells_the_call_and_no_secret() -> None:
    """Everything an operator asks for, nothing that was in the prompt or in a credential."""
    telemetry, stream, log = make()

    telemetry.began()
    telemetry.settled(record())
    telemetry.refused("req_2", "/v1/nothing", 404, "not_found")
    log.start()
    telemetry.flush()
    log.stop()
    first, second = map(orjson.loads, stream.getvalue().splitlines())

    assert first["time"] == "2027-01-15T08:00:00.123Z"
    assert first["attempts"] == ["a/m:overloaded(0.2s)", "b/m:200"]
    assert (first["input_tokens"], first["output_tokens"], first["cost_usd"]) == (100, 20, 0.25)
    assert first["upstream_request_id"] == "req_up"
    assert (second["event"], second["status"], second["path"]) == ("refused", 404, "/v1/nothing")
    assert "CANARY" not in stream.getvalue()


async def test_text_lines_are_one_per_call() -> None:
    """For eyes instead of machines."""
    stream = io.StringIO()
    log = CallLog(stream, "text")
    log.start()
    log.put([(1_800_000_000.0, record()), (1_800_000_000.0, ("req_2", "/v1/x\n", 404, "not_found"))])
    log.stop()

    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("08:00:00.000 200 ok id=req_1")
    assert lines[1].startswith("08:00:00.000 404 not_found id=req_2")


async def test_a_stuck_reader_loses_lines_and_nothing_else() -> None:
    """A full pipe must never stop a call: what cannot be queued is dropped and counted."""
    blocked, entered = threading.Event(), threading.Event()

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            entered.set()
            blocked.wait(10)
            return len(text)

    log = CallLog(Stuck(), "json")
    log.start()
    log.put([(0.0, record())])
    await asyncio.to_thread(entered.wait, 10)
    for _ in range(QUEUED_BATCHES + 3):
        log.put([(0.0, record())])

    assert log.dropped == 3
    blocked.set()


async def test_a_closed_reader_is_no_error() -> None:
    """`gateway serve | head -1` goes on serving."""
    stream = io.StringIO()
    log = CallLog(stream, "json")
    stream.close()
    log.start()

    log.put([(0.0, record())])
    log.stop()

    assert log.dropped == 1
