"""Merges the metrics of all workers into one set; pure.

Counters and histograms are summed; gauges are merged by the rules in this module. Invariant: no counter of the fleet ever goes
back, whichever worker dies or is late: the last report of a late or dead worker still counts. A dead worker's counts since
its last report are lost with it; its gauges are dropped at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import add
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""A metric family as a channel carries it: name, documentation, type, and samples of name, labels and value."""

SUMMED = frozenset({"counter", "histogram"})
"""The types whose samples are running totals."""

ADDED = frozenset(
    {
        "gateway_calls_in_flight",
        "gateway_queue_depth",
        "gateway_queue_bytes",
        "gateway_native_parts",
        "gateway_realtime_sessions",
        "gateway_remembered_thinking_bytes",
        "gateway_upstream_connections",
        "gateway_responses_websockets",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
)
"""Gauges that are summed, because every worker has a part."""
LEAST = frozenset(
    {
        "gateway_budget_left_usd",
        "gateway_limit_level",
        "gateway_retry_budget_level",
        "gateway_state_up",
        "process_start_time_seconds",
        "process_max_fds",
    }
)
"""Gauges of which the least counts, because it is the worst or the first."""
MOST = frozenset(
    {
        "gateway_budget_usd",
        "gateway_queue_oldest_seconds",
        "gateway_jobs_depth",
        "gateway_jobs_oldest_seconds",
        "gateway_dlq_depth",
        "gateway_dlq_oldest_seconds",
        "gateway_limit_capacity",
        "gateway_estimate_error_ratio",
        "gateway_breaker_state",
        "gateway_quota_spent",
        "gateway_suspect",
        "gateway_shed_level",
        "gateway_config_version",
        "gateway_state_deaf",
        "gateway_event_loop_lag_seconds",
        "gateway_cache_entries",
        "gateway_cache_bytes",
        "gateway_objects",
        "gateway_replicas",
        "gateway_workflow_unknown_names",
    }
)
"""Gauges of which the most counts: the worst, the last, or the same in all workers; the rule of any other gauge, too."""

_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Fleet:
    """The metrics that all workers have reported."""

    def __init__(self) -> None:
        self._reports: dict[int, list[Family]] = {}
        self._departed: list[Family] = []

    def report(self, number: int, families: list[Family]) -> None:
        """Takes the present metrics of a worker."""
        self._reports[number] = families

    def depart(self, number: int) -> None:
        """Keeps the totals of a worker that has died, whose successor begins at 0."""
        totals = [family for family in self._reports.pop(number, []) if family[2] in SUMMED]
        self._departed = merge([self._departed, totals])

    def total(self, answered: Collection[int]) -> list[Family]:
        """Returns the merged metrics, without the gauges of workers that did not answer."""
        counted = (
            families if number in answered else [family for family in families if family[2] in SUMMED]
            for number, families in self._reports.items()
        )
        return merge([*counted, self._departed])


class Gathered(Collector):
    """A collector of given families, from which prometheus_client renders an exposition format."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Yields the families."""
        for name, text, kind, samples in self._families:
            metric = Metric(name, text, kind)
            for sample, labels, value in samples:
                metric.add_sample(sample, labels, value)
            yield metric


def dump(registry: Collector) -> list[Family]:
    """Returns the metrics of one worker."""
    return [
        (one.name, one.documentation, one.type, [(sample.name, sample.labels, sample.value) for sample in one.samples])
        for one in registry.collect()
    ]


def gauge(name: str, text: str, value: float) -> Family:
    """Returns a gauge without labels."""
    return name, text, "gauge", [(name, {}, value)]


def counter(name: str, text: str, value: float) -> Family:
    """Returns a counter without labels; its sample is called `<name>_total`."""
    return name, text, "counter", [(f"{name}_total", {}, value)]


def merge(parts: Iterable[list[Family]]) -> list[Family]:
    """Merges families of the same name; families and samples keep the order of their first occurrence."""
    known: dict[str, tuple[str, str, _Samples]] = {}
    for name, text, kind, samples in (family for part in parts for family in part):
        _, _, values = known.setdefault(name, (text, kind, {}))
        combine = _rule(name, kind)
        for sample, labels, value in samples:
            at = sample, tuple(labels.items())
            values[at] = combine(values[at], value) if at in values else value
    return [
        (name, text, kind, [(sample, dict(labels), value) for (sample, labels), value in values.items()])
        for name, (text, kind, values) in known.items()
    ]


def _rule(name: str, kind: str) -> Callable[[float, float], float]:
    if kind in SUMMED or name in ADDED:
        return add
    return min if name in LEAST else max


def families_of(message: Mapping[str, Any]) -> list[Family]:
    """Returns the families of a worker's message."""
    return [(name, text, kind, samples) for name, text, kind, samples in message["families"]]
