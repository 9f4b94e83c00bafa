"""The metrics of the gateway: what kinds there are, the table of those of the core, and what such a table of a product is.

Everything is counted in plain dictionaries and lists by the one thread that runs the loop, and becomes Prometheus families when
it is scraped: a number costs a call a look-up and an addition, no lock and no label handling. Label values come from the config
only (model entries, key names, targets), never from a request. It must not know what is counted when.
"""

# ruff: noqa: RUF009  # what the table calls makes fields: each `Metrics` counts for itself

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
RUN_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 86_400.0)
USD = (0.0001, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 50.0)
OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)

Labels = tuple[str, ...]


class Counts:
    """A counter: a running total for each combination of labels."""

    __slots__ = ("_labels", "_name", "_text", "totals")

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name = f"gateway_{name}"
        self._text = text
        self._labels = labels
        self.totals: defaultdict[Labels, float] = defaultdict(float)

    def family(self) -> CounterMetricFamily:
        """Its present state."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, total in self.totals.items():
            family.add_metric(labels, total)
        return family


class TokenTotals(Counts):
    """Tokens by model, target, kind and key: a call adds to one total of each kind, and a scrape adds these up both ways."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("tokens_total", "Tokens used.", "model", "target", "kind")

    def family(self) -> CounterMetricFamily:
        """The present totals of all keys together."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, total in self._summed(lambda labels: labels[:3]).items():
            family.add_metric(labels, total)
        return family

    def by_key(self) -> defaultdict[Labels, float]:
        """Returns the present totals by key and kind."""
        return self._summed(lambda labels: (labels[3], labels[2]))

    def _summed(self, group: Callable[[Labels], Labels]) -> defaultdict[Labels, float]:
        totals: defaultdict[Labels, float] = defaultdict(float)
        for labels, total in self.totals.items():
            totals[group(labels)] += total
        return totals


class Levels:
    """A gauge: a present value for each combination of labels."""

    __slots__ = ("_labels", "_name", "_text", "values")

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._name = f"gateway_{name}"
        self._text = text
        self._labels = labels
        self.values: dict[Labels, float] = {}

    def family(self) -> GaugeMetricFamily:
        """Its present state."""
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self.values.items():
            family.add_metric(labels, value)
        return family


class Distribution:
    """A histogram: how many values fell into each bucket, for each combination of labels."""

    __slots__ = ("_bounds", "_labels", "_name", "_series", "_text")

    def __init__(self, name: str, text: str, bounds: tuple[float, ...], *labels: str) -> None:
        self._name = f"gateway_{name}"
        self._text = text
        self._bounds = bounds
        self._labels = labels
        self._series: dict[Labels, list[float]] = {}

    def series_of(self, labels: Labels) -> list[float]:
        """How many values of these labels are in each bucket, and behind them their sum; the same list for ever."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
        return series

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value."""
        series = self.series_of(labels)
        series[bisect_left(self._bounds, value)] += 1
        series[-1] += value

    def family(self) -> HistogramMetricFamily:
        """Its present state: cumulative buckets and the sum, which is kept behind them."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [*(str(bound) for bound in self._bounds), "+Inf"]
        for labels, series in self._series.items():
            below, buckets = 0.0, []
            for name, count in zip(names, series, strict=False):
                below += count
                buckets.append((name, below))
            family.add_metric(labels, buckets, series[-1])
        return family


Metric: TypeAlias = Counts | Levels | Distribution


def _counter(name: str, text: str, *labels: str) -> Any:
    return field(default_factory=lambda: Counts(name, text, *labels))


def _gauge(name: str, text: str, *labels: str) -> Any:
    return field(default_factory=lambda: Levels(name, text, *labels))


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Any:
    return field(default_factory=lambda: Distribution(name, text, bounds, *labels))


@dataclass(slots=True)
class Metrics:
    """The metrics of the core, in the order of a scrape: name without `gateway_`, what is counted, and the labels."""

    requests: Counts = _counter("requests_total", "Calls, by how they ended.", "model", "key", "outcome")
    refused: Counts = _counter("requests_refused_total", "Requests turned away before they became calls.", "code")
    duration: Distribution = _histogram(
        "request_duration_seconds", "From the request's last byte to the end.", SECONDS, "model"
    )
    overhead: Distribution = _histogram(
        "overhead_seconds", "Time per call that was the gateway's own.", OVERHEAD_SECONDS
    )
    first_byte: Distribution = _histogram(
        "time_to_first_byte_seconds",
        "From an attempt's start to its first byte or event, where it got one.",
        SECONDS,
        "target",
    )
    attempts: Counts = _counter("attempts_total", "Tries at a target, by result.", "target", "class")
    skips: Counts = _counter("target_skips_total", "Calls that went past a target, by why.", "target", "reason")
    fallbacks: Counts = _counter(
        "fallbacks_total", "Calls served by a target that is not the model's own.", "model", "to", "class"
    )
    tokens: TokenTotals = field(default_factory=TokenTotals)
    key_tokens: Counts = _counter("key_tokens_total", "Tokens used, by key.", "key", "kind")
    cost: Counts = _counter("cost_usd_total", "US dollars spent.", "model", "target", "key")
    estimated_cost: Counts = _counter(
        "estimated_cost_usd_total", "US dollars spent, by usage that was estimated.", "model", "target", "key"
    )
    unpriced: Counts = _counter(
        "unpriced_calls_total", "Calls of which it is not known what they cost.", "model", "target", "key"
    )
    budget: Levels = _gauge("budget_usd", "US dollars that a key may spend a day.", "key")
    budget_left: Levels = _gauge("budget_left_usd", "What is left of that today, beside what is reserved.", "key")
    estimated: Counts = _counter("estimated_usage_total", "Calls whose tokens were estimated.", "model", "target")
    waits: Distribution = _histogram(
        "queue_wait_seconds", "Time that held calls spent in the delay queue.", SECONDS, "lane"
    )
    queue_depth: Levels = _gauge("queue_depth", "Calls in the delay queue now.", "model", "lane")
    queue_oldest: Levels = _gauge("queue_oldest_seconds", "Age of the longest held call.", "lane")
    queue_bytes: Levels = _gauge("queue_bytes", "Bodies of the calls in the delay queue, in bytes.")
    limit_level: Levels = _gauge("limit_level", "What is free of a limit now.", "limit")
    limit_capacity: Levels = _gauge("limit_capacity", "The most that a limit ever holds.", "limit", "source")
    pauses: Counts = _counter("pauses_total", "How often a target was left alone after a 429.", "target")
    estimate_error: Levels = _gauge(
        "estimate_error_ratio", "Mean error of the input tokens estimated, as a part of the real ones.", "target"
    )
    denied: Counts = _counter(
        "retries_denied_total", "Attempts that would have been made, had they been allowed.", "reason"
    )
    retry_level: Levels = _gauge(
        "retry_budget_level", "Retry tokens that are left; the least under the name.", "target"
    )
    quota_spent: Levels = _gauge("quota_spent", "1: the quota of the target's account is spent.", "target")
    suspect: Levels = _gauge("suspect", "1: nothing is heard of the target any more.", "target")
    breaker_state: Levels = _gauge(
        "breaker_state",
        "0 closed, 1 half open, 2 open, 3 drained; of targets and of accounts, the worst under the name.",
        "target",
    )
    breaker_moves: Counts = _counter("breaker_transitions_total", "Changes of a breaker's state.", "target", "to")
    retries_cost: Counts = _counter(
        "retries_cost_usd_total", "US dollars that attempts beside the one that served may have cost.", "model", "key"
    )
    estimated_retries_cost: Counts = _counter(
        "estimated_retries_cost_usd_total", "Of these, what no provider has reported a usage for.", "model", "key"
    )
    unknown: Counts = _counter("unknown_errors_total", "Provider errors that no rule knows.", "target")
    shed: Counts = _counter("requests_shed_total", "Requests refused because the gateway was overloaded.", "lane")
    shed_level: Levels = _gauge("shed_level", "Lanes that are being shed: 0 none, 3 all but critical.")
    lossy_fields: Counts = _counter(
        "lossy_fields_total", "Fields of calls that did not reach a target as they were said.", "target", "field", "how"
    )
    recovery: Distribution = _histogram(
        "recovery_seconds", "From a call's first failed attempt to its good end.", RUN_SECONDS, "lane"
    )
    recoveries: Counts = _counter(
        "recoveries_total", "Those calls, by whether that was as soon as their lane wants it.", "lane", "in_time"
    )
    dropped: Counts = _counter("log_lines_dropped_total", "Call log lines lost to a slow reader.")
    reload_errors: Counts = _counter("config_reload_errors_total", "Reloads that were refused.")
    config_version: Levels = _gauge("config_version", "Version of the policy snapshot in force.")
    in_flight: Levels = _gauge("calls_in_flight", "Calls in the gateway now.")
    loop_lag: Levels = _gauge("event_loop_lag_seconds", "How late the event loop ran last.")
    connections: Levels = _gauge("upstream_connections", "Connections to providers.", "provider", "state")

    def __iter__(self) -> Iterator[Metric]:
        return (getattr(self, one.name) for one in fields(self))


class MetricTable:
    """The metrics of one product: those of its attributes that are some, in this order. The product counts in them itself."""

    after: ClassVar[str] = ""
    """The metric of the core, without `gateway_`, that they follow, so that a scrape keeps its order; empty: they come last."""

    def __iter__(self) -> Iterator[Metric]:
        return (one for one in vars(self).values() if isinstance(one, Metric))
