"""Numbers and the call log: exact, bounded by the config, without secrets."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from dataclasses import replace

import orjson
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.core.call import CallRecord
from gateway.core.metrics import Counts, Distribution, Levels, Metrics, MetricTable
from gateway.core.request_fields import OTHER
from gateway.core.retry import Attempt
from gateway.core.telemetry import QUEUED_BATCHES, CallCounter, CallLog, Telemetry
from gateway.core.types import Phase, Usage, UsageParts
from gateway.features.outcome import CacheOutcome
from gateway.features.reuse.service import log_fields
from tests.support.flow import Bench, ScriptedUpstream
from tests.support.targets import target_named

STARTED = 100.0


def record(**changes: object) -> CallRecord:
    """The account of a call that failed over once."""
    call = Bench([ScriptedUpstream()]).call(
        attempts=[
            Attempt(
                target_named("a/m"),
                STARTED,
                ended_at=STARTED + 0.2,
                error_class="overloaded",
                phase=Phase.ANSWERED,
                upstream_request_id=b"req_bad",
            ),
            Attempt(
                target_named("b/m"), STARTED + 0.2, STARTED + 0.5, STARTED + 1.0, 200, upstream_request_id=b"req_up"
            ),
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
        "retries_usd": 0.05,
        "duration_s": 1.0,
        "overhead_s": 0.0004,
        "time_to_first_byte_s": 0.3,
        "estimated_retries_usd": 0.05,
    }
    return CallRecord(**{**values, **changes})  # type: ignore[arg-type]  # fields by name, for the tests' convenience


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
    assert samples["gateway_retries_cost_usd_total[('key', 'web'), ('model', 'm')]"] == 0.05
    assert samples["gateway_request_duration_seconds_sum[('model', 'm')]"] == 1
    assert samples["gateway_calls_in_flight[]"] == 0


def served_by(*attempts: Attempt, fallbacks: int = 1) -> CallRecord:
    """The account of a call whose model has `p0/m` to `p2/m` in its plan, the last `fallbacks` of another model's."""
    bench = Bench([ScriptedUpstream(), ScriptedUpstream(), ScriptedUpstream()], fallbacks=fallbacks)
    return record(call=bench.call(attempts=list(attempts)), usage=None)


def tried(target: str, error_class: str | None = None, first_byte_s: float | None = 0.1) -> Attempt:
    """An attempt of a second; `first_byte_s` None: nothing came."""
    first_byte_at = None if first_byte_s is None else STARTED + first_byte_s
    return Attempt(target_named(target), STARTED, first_byte_at, STARTED + 1.0, error_class=error_class)


@pytest.mark.parametrize(
    ("attempts", "counted"),
    [
        ([tried("p0/m")], None),
        ([tried("p1/m")], None),
        ([tried("p0/m", "timeout"), tried("p1/m")], None),
        ([tried("p2/m")], "queue"),
        ([tried("p0/m", "timeout"), tried("p1/m", "overloaded"), tried("p2/m")], "timeout"),
    ],
)
async def test_only_a_target_that_is_not_the_models_own_is_a_fallback(
    attempts: list[Attempt], counted: str | None
) -> None:
    """Whichever of its own was chosen first; the class is what went wrong first, `queue` when nothing did."""
    telemetry, _, _ = make()

    telemetry.settled(served_by(*attempts))
    found = {name: value for name, value in scrape(telemetry).items() if name.startswith("gateway_fallbacks_total[")}

    labels = f"[('class', '{counted}'), ('model', 'm'), ('to', 'p2/m')]"
    assert found == ({f"gateway_fallbacks_total{labels}": 1} if counted else {})


PLAIN = {
    "priced": {"cost_usd": 0.25},
    "not priced": {"cost_usd": None},
    "partly cached": {"usage": Usage(100, 20, cached=40)},
    "estimated": {"usage": Usage(100, 20, estimated=True)},
    "no usage": {"usage": None},
    "cut": {"outcome": "client_gone"},
    "retries cost": {"retries_usd": 0.5},
}


@pytest.mark.parametrize("target", ["p0/m", "p2/m"])
@pytest.mark.parametrize("changes", PLAIN.values(), ids=PLAIN.keys())
async def test_a_plain_call_is_counted_as_any_other(changes: dict[str, object], target: str) -> None:
    """What is bound together counts as what is looked up; a target that is not the model's own is a fallback in either case."""
    account = replace(served_by(tried(target)), usage=Usage(7, 3), retries_usd=0.0)
    account = replace(account, **changes)  # type: ignore[arg-type]  # fields by name, for the test's convenience
    bound, looked_up = Metrics(), Metrics()

    for _ in range(3):
        CallCounter(bound).count(account)
        CallCounter(looked_up)._count_any(account)

    assert [sorted(map(str, one.family().samples)) for one in bound] == [
        sorted(map(str, one.family().samples)) for one in looked_up
    ]


async def test_a_model_that_a_reload_has_changed_is_bound_anew() -> None:
    """Its own target of yesterday may be a fallback today, under the same names."""
    metrics = Metrics()
    calls = CallCounter(metrics)
    yesterday, today = served_by(tried("p1/m")), served_by(tried("p1/m"), fallbacks=2)

    calls.count(replace(yesterday, usage=Usage(1, 1), retries_usd=0.0))
    calls.count(replace(today, usage=Usage(1, 1), retries_usd=0.0))

    assert metrics.requests.totals == {("m", "web", "ok"): 2}
    assert metrics.fallbacks.totals == {("m", "p1/m", "queue"): 1}


async def test_a_call_that_failed_everywhere_was_not_served_by_a_fallback() -> None:
    """An attempt there is in attempts_total all the same."""
    telemetry, _, _ = make()

    telemetry.settled(replace(served_by(tried("p0/m", "timeout"), tried("p2/m", "timeout")), outcome="timeout"))
    samples = scrape(telemetry)

    assert not any(name.startswith("gateway_fallbacks_total[") for name in samples)
    assert samples["gateway_attempts_total[('class', 'timeout'), ('target', 'p2/m')]"] == 1


async def test_every_attempt_that_got_a_first_byte_is_timed() -> None:
    """At its own target, counted from its own start; one without a byte tells no time."""
    telemetry, _, _ = make()

    telemetry.settled(served_by(tried("p0/m", "connection", None), tried("p1/m", "server_error", 0.2), tried("p2/m")))
    samples = scrape(telemetry)

    series = "gateway_time_to_first_byte_seconds"
    assert f"{series}_count[('target', 'p0/m')]" not in samples
    assert samples[f"{series}_count[('target', 'p1/m')]"] == samples[f"{series}_count[('target', 'p2/m')]"] == 1
    assert samples[f"{series}_sum[('target', 'p1/m')]"] == pytest.approx(0.2)


async def test_errors_that_no_rule_knows_are_counted() -> None:
    """So that the table can grow."""
    telemetry, _, _ = make()

    telemetry.settled(served_by(tried("p0/m", "unknown"), tried("p1/m", "server_error"), tried("p1/m", "unknown")))
    samples = scrape(telemetry)

    assert samples["gateway_unknown_errors_total[('target', 'p0/m')]"] == 1
    assert samples["gateway_unknown_errors_total[('target', 'p1/m')]"] == 1


async def test_denied_retries_and_moves_of_breakers_are_counted() -> None:
    """By reason, and by the state that came of it."""
    telemetry, _, _ = make()

    telemetry.retry_denied("tokens")
    telemetry.retry_denied("tokens")
    telemetry.breaker_changed("a/m", "open")
    samples = scrape(telemetry)

    assert samples["gateway_retries_denied_total[('reason', 'tokens')]"] == 2
    assert samples["gateway_breaker_transitions_total[('target', 'a/m'), ('to', 'open')]"] == 1


async def test_breakers_that_share_a_name_show_the_worst_of_them() -> None:
    """A wildcard target has one for each model that is asked for; what is gone at the next look is forgotten."""
    telemetry, _, _ = make()

    telemetry.set_breakers(
        [("a/*", "open"), ("a/*", "closed"), ("b/m", "half_open"), ("c/m", "drained"), ("a", "closed")],
        [("a/*", 500.0), ("a/*", 20.0), ("b/m", 0.0)],
    )
    samples = scrape(telemetry)
    states = [samples[f"gateway_breaker_state[('target', '{name}')]"] for name in ("a/*", "b/m", "c/m", "a")]

    assert states == [2, 1, 3, 0]
    assert samples["gateway_retry_budget_level[('target', 'a/*')]"] == 20
    assert samples["gateway_retry_budget_level[('target', 'b/m')]"] == 0
    telemetry.set_breakers([("b/m", "closed")], [])
    assert [name for name in scrape(telemetry) if "breaker_state" in name or "retry_budget" in name] == [
        "gateway_breaker_state[('target', 'b/m')]"
    ]


def spared(**changes: object) -> CallRecord:
    """The account of a call that got a kept answer; `changes` are those of its replay."""
    values: dict[str, object] = {
        "result": "semantic",
        "layer": "semantic",
        "key": b"k" * 32,
        "source": "req_0",
        "age_s": 12.34567,
        "similarity": 0.912345,
        "saved": Usage(100, 20),
        "saved_usd": 0.25,
        "tried": [("exact", "miss"), ("semantic", "hit")],
    }
    replay = CacheOutcome(**{**values, **changes})  # type: ignore[arg-type]  # fields by name, for the tests' convenience
    call = Bench([ScriptedUpstream()]).call(
        replay=replay, idempotency_key=b"IDEMPOTENCY-CANARY", cache_control=b"CONTROL-CANARY"
    )
    fields = log_fields(replay)
    return record(call=call, usage=None, cost_usd=None, retries_usd=0.0, time_to_first_byte_s=None, fields=fields)


def line_of(account: CallRecord) -> dict[str, object]:
    """Its line in the log."""
    stream = io.StringIO()
    log = CallLog(stream, "json")
    log.start()
    log.put([(1_800_000_000.0, account)])
    log.stop()
    assert "CANARY" not in stream.getvalue()
    line: dict[str, object] = orjson.loads(stream.getvalue())
    return line


def test_a_line_tells_how_a_call_was_spared() -> None:
    """By which layer, of whose answer, how old and how near that was, and what it saved; never the caller's own key."""
    line, plain = line_of(spared()), line_of(record())

    assert {name: line[name] for name in line.keys() - plain.keys()} == {
        "cache": "semantic",
        "cache_layer": "semantic",
        "saved_tokens": 120,
        "saved_usd": 0.25,
        "age_s": 12.346,
        "similarity": 0.9123,
        "source": "req_0",
    }


def test_a_line_tells_of_a_miss_that_it_was_one() -> None:
    """And nothing that there is not."""
    missed = spared(
        result="miss", layer="", source="", age_s=None, similarity=None, saved=None, saved_usd=None, tried=[]
    )

    assert line_of(missed).keys() - line_of(record()).keys() == {"cache"}


async def test_names_and_texts_are_as_prometheus_wants_them() -> None:
    """Counters end in `_total`, nothing else does; units are whole words at the end; every text is a sentence of its own."""
    telemetry, _, _ = make()
    families = list(telemetry.collect())
    texts = [family.documentation for family in families]

    for family in families:
        named = f"{family.name}_total" if family.type == "counter" else family.name
        assert re.fullmatch(r"gateway_[a-z]+(_[a-z]+)*", named), named
        assert not family.name.endswith("_total")
        assert not re.search(r"_(ms|milliseconds|sec|kb|percent|count|sum|bucket)$", family.name), named
        assert "seconds" not in family.name or family.name.endswith("_seconds"), named
        assert "usd" not in family.name or family.name.endswith("_usd"), named
        assert family.documentation.endswith("."), named
    assert len(set(texts)) == len(texts)


async def test_unknown_prices_are_counted_not_summed() -> None:
    """An unpriced call must not look like a free one."""
    telemetry, _, _ = make()

    telemetry.began()
    telemetry.settled(record(cost_usd=None, usage=Usage(1, 1, estimated=True)))
    samples = scrape(telemetry)

    assert sum(total for name, total in samples.items() if name.startswith("gateway_unpriced_calls_total[")) == 1
    assert samples["gateway_estimated_usage_total[('model', 'm'), ('target', 'b/m')]"] == 1
    assert not any(name.startswith("gateway_cost_usd_total[") for name in samples)


async def test_money_that_is_estimated_is_told_by_model_and_key() -> None:
    """What failed attempts may have cost is, unless it was reported; pass-through has no price, unless it is free."""
    telemetry, _, _ = make()
    passed = Bench([ScriptedUpstream()]).call(
        endpoint=OTHER,
        method="POST",
        path="/threads",
        attempts=[Attempt(target_named("a/m"), STARTED, STARTED, STARTED + 1.0, 200)],
    )
    ended = [
        record(retries_usd=0.0),
        record(retries_usd=0.25),  # 0.2 for answers that broke their schema
        record(cost_usd=0.6, usage=Usage(1, 1, estimated=True), retries_usd=0.0, estimated_usd=0.5),
        record(cost_usd=None, retries_usd=0.0),
        record(cost_usd=None, usage=None, retries_usd=0.0, call=passed),
        record(
            cost_usd=None,
            usage=None,
            retries_usd=0.0,
            call=replace(passed, request=replace(passed.request, method="GET")),
        ),
    ]

    for one in ended:
        telemetry.began()
        telemetry.settled(one)

    assert telemetry.costs()["m", "web"] == pytest.approx((1.35, 0.55, 2))
    samples = scrape(telemetry)
    assert samples["gateway_estimated_cost_usd_total[('key', 'web'), ('model', 'm'), ('target', 'b/m')]"] == 0.5


async def test_tokens_are_counted_by_kind_and_by_key() -> None:
    """Each part that there is some of; by model and target without the key, by key without these."""
    telemetry, _, _ = make()
    parts = UsageParts(
        reasoning=7, audio_input=30, audio_cached=10, audio_output=5, image_output=2, searches=3, images=1
    )

    for usage in (Usage(100, 20, 40), Usage(100, 20, 40, parts=parts)):
        for target in ("b/m", "c/m"):
            account = record(usage=usage)
            account.call.attempts[-1].target = target_named(target)
            telemetry.began()
            telemetry.settled(account)
    samples = {name: number for name, number in scrape(telemetry).items() if "tokens_total" in name}

    counted = {
        "input": 200,
        "output": 40,
        "cached_input": 80,
        "reasoning_output": 7,
        "audio_input": 30,
        "cached_audio_input": 10,
        "audio_output": 5,
        "image_output": 2,
    }
    by_target = {
        f"gateway_tokens_total[('kind', '{kind}'), ('model', 'm'), ('target', '{target}')]": number
        for kind, number in counted.items()
        for target in ("b/m", "c/m")
    }
    by_key = {
        f"gateway_key_tokens_total[('key', 'web'), ('kind', '{kind}')]": 2 * number for kind, number in counted.items()
    }
    assert samples == by_target | by_key


async def test_a_usage_that_cannot_be_right_is_logged_once_for_each_target(caplog: pytest.LogCaptureFixture) -> None:
    """And counted as any other."""
    telemetry, _, _ = make()
    odd = replace(record().usage or Usage(0, 0), doubt="its total is not the sum of its parts")

    for _ in range(3):
        telemetry.began()
        telemetry.settled(record(usage=odd))
    samples = scrape(telemetry)

    assert samples["gateway_tokens_total[('kind', 'input'), ('model', 'm'), ('target', 'b/m')]"] == 300
    assert [one.getMessage().partition(" ")[0] for one in caplog.records] == ["b/m"]


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
    assert first["failures"] == [
        {"target": "a/m", "class": "overloaded", "phase": "answered", "upstream_request_id": "req_bad"}
    ]
    assert (first["retries_usd"], first["retry_denied"], first["backoff_ms"]) == (0.05, None, 0)
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
    assert " failures=a/m:overloaded:answered:req_bad " in lines[0]
    assert "stream=" not in lines[0]
    assert lines[1].startswith("08:00:00.000 404 not_found id=req_2")


async def test_a_failed_call_says_in_its_line_why_it_was_not_tried_again() -> None:
    """Whoever reads it at night needs the trail, the reason and the provider's ids, and no second look-up."""
    stream = io.StringIO()
    log = CallLog(stream, "text")
    failed = [
        tried("p0/m", "connection", None),
        replace(tried("p1/m", "server_error"), upstream_request_id=b"a b\nc=1"),
    ]
    account = served_by(*failed)
    account.call.own_setbacks().deny("tokens")
    log.start()
    log.put([(1_800_000_000.0, replace(account, status=502, outcome="no_target_available"))])
    log.stop()

    (line,) = stream.getvalue().splitlines()
    assert line.startswith("08:00:00.000 502 no_target_available id=req_1")
    assert "attempts=p0/m:connection(1.0s),p1/m:server_error(1.0s)" in line
    assert "failures=p0/m:connection,p1/m:server_error:'a b\\nc=1'" in line
    assert "retry_denied=tokens" in line


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


class Parrots(MetricTable):
    """A product's metrics, which stand behind the calls that were refused."""

    after = "requests_refused_total"

    def __init__(self) -> None:
        self.spoken = Counts("parrot_words_total", "Words.", "key")
        self.awake = Levels("parrots", "Parrots that are awake.")
        self.names = ["no metric"]

    def count(self, ended: CallRecord) -> None:
        self.spoken.totals[(ended.call.route.key.name,)] += 1


def families(telemetry: Telemetry) -> list[str]:
    """The names in the order of a scrape."""
    return [family.name for family in telemetry.collect()]


async def test_metrics_of_a_product_keep_their_place_in_a_scrape() -> None:
    """Behind one of the core, those of several in the order of their registration, or at the end."""
    telemetry, _, _ = make()
    core = families(telemetry)
    first, second, last = Parrots(), Parrots(), Parrots()
    second.spoken, last.awake = Counts("second_total", "Second."), Levels("last", "Last.")
    del second.awake, last.spoken
    last.after = ""  # type: ignore[misc]  # of this one only

    for table in (last, first, second):
        telemetry.register(table)

    place = core.index("gateway_requests_refused") + 1
    mine = ["gateway_parrot_words", "gateway_parrots", "gateway_second"]
    assert families(telemetry) == [*core[:place], *mine, *core[place:], "gateway_last"]


async def test_a_product_counts_the_calls_it_had_a_part_in_and_its_defect_hurts_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    telemetry, stream, log = make()
    parrots = Parrots()

    def fail(_: CallRecord) -> None:
        raise ValueError("a defect of another product")

    telemetry.register(Parrots(), fail)
    telemetry.register(parrots, parrots.count)
    for account in (spared(), record()):
        telemetry.settled(account)
    log.start()
    telemetry.flush()
    log.stop()

    assert dict(parrots.spoken.totals) == {("web",): 1}
    assert [one.getMessage() for one in caplog.records] == ["a call could not be counted"]
    assert len(stream.getvalue().splitlines()) == 2


PLAIN_RECORD = replace(served_by(tried("p0/m")), usage=Usage(7, 3), retries_usd=0.0)


@pytest.mark.parametrize("account", [record(), PLAIN_RECORD], ids=["failed over", "plain"])
def test_products_add_fields_to_the_line_of_a_call(account: CallRecord) -> None:
    """Behind all others, whether the line is put together or made of a dictionary."""
    before = line_of(account)

    after = line_of(replace(account, fields={"parrot": "Polly", "words": 3}))

    assert after == before | {"parrot": "Polly", "words": 3}
    assert list(after)[-2:] == ["parrot", "words"]
