"""Makes one set of metrics of those of all workers. Pure: what they told comes in, what a scraper reads goes out.

Counters and histograms are summed, a gauge by the rule that it has here. Invariant: no counter of the fleet ever goes
back, whichever worker dies or is late: of one that did not answer, what it told last still counts, and of one that has
died for good. What it counted since it was last asked is lost with it; its gauges are forgotten at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from operator import add
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""Name, documentation, type and samples, each of these a name, its labels and a value: as it goes over a channel."""

SUMMED = frozenset({"counter", "histogram"})
"""The types whose samples are running totals."""

ADDED = frozenset(
    {
        "gateway_calls_in_flight",
        "gateway_queue_depth",
        "gateway_queue_bytes",
        "gateway_upstream_connections",
        "process_virtual_memory_bytes",
        "process_resident_memory_bytes",
        "process_open_fds",
    }
)
"""Gauges of which every worker has a part."""
LEAST = frozenset(
    {
        "gateway_limit_level",
        "gateway_retry_budget_level",
        "gateway_state_up",
        "process_start_time_seconds",
        "process_max_fds",
    }
)
"""Gauges of which the worst, or the first, is the least."""
MOST = frozenset(
    {
        "gateway_queue_oldest_seconds",
        "gateway_limit_capacity",
        "gateway_estimate_error_ratio",
        "gateway_breaker_state",
        "gateway_suspect",
        "gateway_shed_level",
        "gateway_config_version",
        "gateway_state_deaf",
        "gateway_event_loop_lag_seconds",
        "gateway_cache_entries",
        "gateway_cache_bytes",
        "gateway_objects",
        "gateway_replicas",
    }
)
"""Gauges of which the worst, or the last, is the most, or which tell all workers the same; any that has no rule, too."""

_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Fleet:
    """What all workers have counted, as far as they have told."""

    def __init__(self) -> None:
        self._told: dict[int, list[Family]] = {}
        self._departed: list[Family] = []

    def tell(self, number: int, families: list[Family]) -> None:
        """These are the numbers of a worker now."""
        self._told[number] = families

    def depart(self, number: int) -> None:
        """A worker has died, and another begins at nothing: its totals stay."""
        totals = [family for family in self._told.pop(number, []) if family[2] in SUMMED]
        self._departed = merge([self._departed, totals])

    def total(self, answered: Collection[int]) -> list[Family]:
        """The numbers of all, where the gauges of those that did not answer are left out."""
        told = (
            families if number in answered else [family for family in families if family[2] in SUMMED]
            for number, families in self._told.items()
        )
        return merge([*told, self._departed])


class Gathered(Collector):
    """Families that an exposition format can be made of, as it is of a registry."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """All of them."""
        for name, text, kind, samples in self._families:
            metric = Metric(name, text, kind)
            for sample, labels, value in samples:
                metric.add_sample(sample, labels, value)
            yield metric


def dump(registry: Collector) -> list[Family]:
    """The numbers of one worker."""
    return [
        (one.name, one.documentation, one.type, [(sample.name, sample.labels, sample.value) for sample in one.samples])
        for one in registry.collect()
    ]


def gauge(name: str, text: str, value: float) -> Family:
    """A gauge without labels."""
    return name, text, "gauge", [(name, {}, value)]


def counter(name: str, text: str, value: float) -> Family:
    """A counter without labels; its sample is called `<name>_total`."""
    return name, text, "counter", [(f"{name}_total", {}, value)]


def merge(parts: Iterable[list[Family]]) -> list[Family]:
    """One family of all that have the same name; families and samples in the order in which they are met."""
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
    """What a worker told, out of its message."""
    return [(name, text, kind, samples) for name, text, kind, samples in message["families"]]
