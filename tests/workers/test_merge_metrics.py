"""The metrics of several workers as one set: what is summed, what is not, and that no counter goes back."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from gateway.workers.worker import (
    ADDED,
    LEAST,
    MOST,
    Family,
    Fleet,
    Gathered,
    counter,
    dump,
    gauge,
    merge,
)
from tests.support.metrics import whole_telemetry


def calls(total: float, in_flight: float = 0.0) -> list[Family]:
    """What a worker tells that has served so many calls."""
    return [
        counter("gateway_requests", "Calls.", total),
        gauge("gateway_calls_in_flight", "Calls now.", in_flight),
    ]


def value(families: list[Family], name: str) -> float | None:
    """Of the one sample of this name."""
    found = [value for *_, samples in families for sample, _, value in samples if sample == name]
    return found[0] if found else None


def test_counters_are_summed_by_their_labels() -> None:
    """Each combination on its own, wherever it was met."""
    parts = []
    for number in (1, 2):
        registry = CollectorRegistry()
        requests = Counter("gateway_requests", "Calls.", ["key"], registry=registry)
        requests.labels("web").inc(number)
        requests.labels(f"only-{number}").inc()
        parts.append(dump(registry))

    text = generate_latest(Gathered(merge(parts))).decode()

    assert 'gateway_requests_total{key="web"} 3.0' in text
    assert 'gateway_requests_total{key="only-1"} 1.0' in text
    assert 'gateway_requests_total{key="only-2"} 1.0' in text


def test_histograms_are_summed_bucket_by_bucket() -> None:
    """In either format, with their buckets in order, as if one process had seen it all."""
    seen = ([0.2, 3.0], [0.3, 30.0], [0.2])
    parts, whole = [], CollectorRegistry()
    in_one = Histogram("seconds", "How long.", ["model"], buckets=(0.25, 1, 10), registry=whole)
    for values in seen:
        registry = CollectorRegistry()
        histogram = Histogram("seconds", "How long.", ["model"], buckets=(0.25, 1, 10), registry=registry)
        for one in values:
            histogram.labels("m").observe(one)
            in_one.labels("m").observe(one)
        parts.append(dump(registry))

    merged = Gathered(merge(parts))

    assert without_birth(generate_latest(merged)) == without_birth(generate_latest(whole))
    assert without_birth(openmetrics(merged)) == without_birth(openmetrics(whole))


def openmetrics(what: Collector) -> bytes:
    """Its exposition in the newer format."""
    text: bytes = generate_openmetrics(what)  # type: ignore[no-untyped-call]  # as the library has it
    return text


def without_birth(text: bytes) -> list[str]:
    """Its lines but those about when a series began."""
    return [line for line in text.decode().splitlines() if "_created" not in line]


def test_a_gauge_has_the_rule_of_its_name() -> None:
    """A part of each is added up; of the others the worst is shown."""
    parts = []
    for level in (1.0, 3.0):
        registry = CollectorRegistry()
        for name in (
            "gateway_queue_depth",
            "gateway_state_up",
            "gateway_breaker_state",
            "gateway_jobs_depth",
            "unheard_of",
        ):
            Gauge(name, "Now.", registry=registry).set(level)
        parts.append(dump(registry))

    merged = merge(parts)

    assert [value(merged, f"gateway_{name}") for name in ("queue_depth", "state_up", "breaker_state")] == [4, 1, 3]
    assert value(merged, "gateway_jobs_depth") == 3  # all workers look at one store
    assert value(merged, "unheard_of") == 3


def test_every_gauge_of_the_gateway_has_a_rule() -> None:
    """None is added or compared by chance: a new one is put into ADDED, LEAST or MOST."""
    gauges = {family.name for family in whole_telemetry().registry.collect() if family.type == "gauge"}

    assert gauges - (ADDED | LEAST | MOST) == set()
    assert len(ADDED | LEAST | MOST) == len(ADDED) + len(LEAST) + len(MOST)


def test_a_worker_that_died_takes_no_count_with_it() -> None:
    """What it told last stays, under that of the worker in its place; its gauges do not."""
    fleet = Fleet()
    fleet.report(1, calls(10, in_flight=2))
    fleet.report(2, calls(5, in_flight=1))

    fleet.depart(1)
    alone = fleet.total({2})
    fleet.report(1, calls(1))
    with_another = fleet.total({1, 2})
    fleet.depart(1)

    assert [value(alone, "gateway_requests_total"), value(alone, "gateway_calls_in_flight")] == [15, 1]
    assert value(with_another, "gateway_requests_total") == 16
    assert value(fleet.total({2}), "gateway_requests_total") == 16


def test_a_worker_that_is_late_counts_with_what_it_told_last() -> None:
    """Its gauges are left out, since nobody knows them now."""
    fleet = Fleet()
    fleet.report(1, calls(10, in_flight=2))
    fleet.report(2, calls(5, in_flight=1))

    total = fleet.total({2})

    assert [value(total, "gateway_requests_total"), value(total, "gateway_calls_in_flight")] == [15, 1]


def test_one_that_never_told_anything_may_die() -> None:
    """Before anybody has asked."""
    fleet = Fleet()

    fleet.depart(1)

    assert fleet.total(()) == []
