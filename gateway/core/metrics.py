"""The metrics of the gateway: what kinds there are, and the table of all of them.

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
from typing import Any

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


def _counter(name: str, text: str, *labels: str) -> Any:
    return field(default_factory=lambda: Counts(name, text, *labels))


def _gauge(name: str, text: str, *labels: str) -> Any:
    return field(default_factory=lambda: Levels(name, text, *labels))


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Any:
    return field(default_factory=lambda: Distribution(name, text, bounds, *labels))


@dataclass(slots=True)
class Metrics:
    """All metrics, in the order of a scrape: name without `gateway_`, what is counted, and the labels."""

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
    cache: Counts = _counter(
        "cache_requests_total", "Calls that a layer was asked to spare a provider, by what it said.", "layer", "result"
    )
    saved_tokens: Counts = _counter(
        "cache_saved_tokens_total", "Tokens that no provider had to be asked for.", "layer", "model", "kind"
    )
    saved_usd: Counts = _counter(
        "cache_saved_usd_total", "US dollars that were not spent a second time.", "layer", "model", "key"
    )
    cache_entries: Levels = _gauge("cache_entries", "What the store keeps now.", "kind")
    cache_bytes: Levels = _gauge("cache_bytes", "What that takes, in bytes.", "kind")
    records_lost: Counts = _counter(
        "records_forgotten_early_total",
        "Answers of calls with an Idempotency-Key that were forgotten before their time for want of room.",
    )
    realtime_sessions: Levels = _gauge("realtime_sessions", "Realtime sessions that are open.", "target")
    realtime_frames: Counts = _counter(
        "realtime_frames_total", "Frames of realtime sessions, by who has sent them.", "target", "from"
    )
    realtime_errors: Counts = _counter(
        "realtime_errors_total", "Error events and failed responses of realtime sessions.", "target"
    )
    response_sockets: Levels = _gauge("responses_websockets", "WebSockets of Responses that are open.")
    objects: Levels = _gauge("objects", "Objects at providers of which it is known whose they are.")
    objects_lost: Counts = _counter(
        "objects_forgotten_total", "Objects of which that was forgotten for want of room: their tenants get 404."
    )
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
    thinking: Counts = _counter(
        "remembered_thinking_total",
        "Turns without their signed thinking that were looked for in the memory of it: hit, miss, changed, foreign.",
        "result",
    )
    thinking_bytes: Levels = _gauge("remembered_thinking_bytes", "Memory that signed thinking is kept in.")
    shed_level: Levels = _gauge("shed_level", "Lanes that are being shed: 0 none, 3 all but critical.")
    jobs: Counts = _counter("jobs_total", "Durable jobs that have ended, by how.", "kind", "outcome")
    jobs_depth: Levels = _gauge("jobs_depth", "Pieces of jobs: ready, for later, claimed.", "segment", "lane", "state")
    jobs_oldest: Levels = _gauge(
        "jobs_oldest_seconds", "How long the oldest of them could have begun.", "segment", "lane", "state"
    )
    dead_letters: Levels = _gauge("dlq_depth", "Dead letters: work that failed for good.", "kind", "class")
    dead_oldest: Levels = _gauge("dlq_oldest_seconds", "How long the oldest of them is there.", "kind", "class")
    replays: Counts = _counter(
        "dlq_replays_total", "Dead letters that were run again, by how that ended.", "class", "outcome"
    )
    job_waits: Distribution = _histogram("job_wait_seconds", "From a job's time to its begin.", SECONDS)
    job_runs: Distribution = _histogram("job_run_seconds", "From a job's begin to its end.", SECONDS, "kind")
    job_attempts: Counts = _counter(
        "job_attempts_total", "Attempts of jobs and lines with another behind them.", "class"
    )
    lossy_fields: Counts = _counter(
        "lossy_fields_total", "Fields of calls that did not reach a target as they were said.", "target", "field", "how"
    )
    output_checks: Counts = _counter(
        "output_checks_total", "Answers that were checked against a schema.", "model", "result"
    )
    groups: Counts = _counter("groups_total", "Requests to providers that were made of several calls.", "model")
    grouped_calls: Counts = _counter("grouped_calls_total", "Calls that such requests were made of.", "model")
    jobs_degraded: Counts = _counter(
        "jobs_degraded_total", "Calls that became jobs where they would have been refused.", "code"
    )
    job_lines: Counts = _counter("job_lines_total", "Lines of batches with a result.", "outcome")
    job_claims_lost: Counts = _counter(
        "job_leases_lost_total", "Pieces of work that were taken over from this gateway."
    )
    brakes: Counts = _counter("batch_brakes_total", "Batches slowed down to single tries.", "class")
    runs_early: Counts = _counter(
        "run_records_early_total", "Runs with steps, and steps, that were forgotten before their time for want of room."
    )
    responses_early: Counts = _counter(
        "kept_responses_early_total", "Kept responses that were forgotten before their time for want of room."
    )
    native_parts: Levels = _gauge("native_parts", "Parts of batches at providers' own Batch APIs now.", "state")
    webhooks: Counts = _counter(
        "webhook_deliveries_total", "Attempts to tell webhooks something, by what they came to.", "endpoint", "result"
    )
    workflow_calls: Counts = _counter(
        "workflow_calls_total", "Calls of workflows, by how they ended.", "workflow", "task", "result"
    )
    workflow_runs: Counts = _counter(
        "workflow_runs_total", "Runs that have ended, by how, once each.", "workflow", "outcome"
    )
    workflow_rescued: Counts = _counter(
        "workflow_rescued_runs_total", "Of those, that succeeded although an attempt of a call went wrong.", "workflow"
    )
    workflow_corrected: Counts = _counter(
        "workflow_runs_corrected_total", "Runs of which another word came later.", "workflow", "was", "now"
    )
    workflow_used: Counts = _counter(
        "workflow_used_total", "Runs of which somebody told whether they could be used.", "workflow", "usable"
    )
    workflow_cost: Counts = _counter(
        "workflow_cost_usd_total", "US dollars that calls of workflows have cost.", "workflow", "task"
    )
    workflow_saved: Counts = _counter("workflow_saved_usd_total", "US dollars that caches saved.", "workflow")
    workflow_seconds: Distribution = _histogram(
        "workflow_run_seconds", "From a run's first call to its last.", RUN_SECONDS, "workflow"
    )
    workflow_run_cost: Distribution = _histogram(
        "workflow_run_cost_usd", "US dollars that a run has cost, failed attempts included.", USD, "workflow"
    )
    workflow_unknown: Levels = _gauge(
        "workflow_unknown_names", "Names of workflows and tasks that calls have used and nobody has declared."
    )
    workflow_lost: Counts = _counter(
        "workflow_runs_forgotten_total", "Runs that were forgotten before their time for want of room."
    )
    success: Counts = _counter(
        "success_ratio_total", "Calls of runs, runs, and runs told of, by whether they were good.", "level", "ok"
    )
    degraded: Counts = _counter(
        "degraded_calls_total", "Calls that asked for less because their model was slow.", "model"
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
    state_up: Levels = _gauge("state_up", "Whether the store that replicas share can be reached.")
    state_deaf: Levels = _gauge("state_deaf", "Whether it can be reached, but what other replicas tell is not heard.")
    replicas: Levels = _gauge("replicas", "Gateways that share it, as last known.")
    state_operations: Counts = _counter(
        "state_operations_total", "Round trips to the shared store that were asked for."
    )
    state_failures: Counts = _counter("state_failures_total", "Those that brought no answer in time.")
    state_changes: Counts = _counter("state_changes_total", "How often the shared store went and came back.", "to")

    def __iter__(self) -> Iterator[Counts | Levels | Distribution]:
        return (getattr(self, one.name) for one in fields(self))
