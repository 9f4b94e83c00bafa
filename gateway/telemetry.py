"""Numbers. Implements `ports.Meter`; the only place with prometheus.

Label values come from the config only (model entries, key names, targets), never from a request. Everything is counted in
plain dictionaries by the one thread that runs the loop, and becomes Prometheus families when it is scraped: a number costs
a call a look-up and an addition, no lock and no label handling.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.call import Call, Replay, Settled
from gateway.calllog import CallLog, Refused
from gateway.errors import ErrorClass
from gateway.ports import StoreHealth
from gateway.words import Lane

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 5.0)

STATES = ("closed", "half_open", "open", "drained")
"""Of breakers, by their number in the metric."""

NOTHING_FAILED = "queue"
"""Why a call went to a fallback at once: its own targets had no room in time, or were left alone."""

FLUSH_S = 0.05
FLUSH_RECORDS = 32

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

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value."""
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = [0.0] * (len(self._bounds) + 2)
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


def _is_own(call: Call, name: str) -> bool:
    """Whether the call's model has the target among its own: any of these may be chosen first."""
    own = call.model.targets
    return name == own[0].name or name in [target.name for target in own]


def _nothing() -> None:
    return None


class Telemetry(Collector):
    """All metrics of the process. Every method is for the loop's thread."""

    def __init__(self, call_log: CallLog, wall: Callable[[], float]) -> None:
        self._log = call_log
        self._wall = wall
        self._pending: list[tuple[float, Settled | Refused]] = []
        self._requests = Counts("requests_total", "Calls, by how they ended.", "model", "key", "outcome")
        self._refused = Counts("requests_refused_total", "Requests turned away before they became calls.", "code")
        self._duration = Distribution(
            "request_duration_seconds", "From the request's last byte to the end.", SECONDS, "model"
        )
        self._overhead = Distribution("overhead_seconds", "Time per call that was the gateway's own.", OVERHEAD_SECONDS)
        self._first_byte = Distribution(
            "time_to_first_byte_seconds",
            "From an attempt's start to its first byte or event, where it got one.",
            SECONDS,
            "target",
        )
        self._attempts = Counts("attempts_total", "Tries at a target, by result.", "target", "class")
        self._fallbacks = Counts(
            "fallbacks_total", "Calls served by a target that is not the model's own.", "model", "to", "class"
        )
        self._tokens = Counts("tokens_total", "Tokens used.", "model", "target", "kind")
        self._cost = Counts("cost_usd_total", "US dollars spent.", "model", "target", "key")
        self._unpriced = Counts(
            "unpriced_calls_total", "Calls with tokens whose price is not known.", "model", "target"
        )
        self._estimated = Counts("estimated_usage_total", "Calls whose tokens were estimated.", "model", "target")
        self._cache = Counts(
            "cache_requests_total",
            "Calls that a layer was asked to spare a provider, by what it said.",
            "layer",
            "result",
        )
        self._saved_tokens = Counts(
            "cache_saved_tokens_total", "Tokens that no provider had to be asked for.", "layer", "model", "kind"
        )
        self._saved_usd = Counts(
            "cache_saved_usd_total", "US dollars that were not spent a second time.", "layer", "model", "key"
        )
        self._cache_entries = Levels("cache_entries", "What the store keeps now.", "kind")
        self._cache_bytes = Levels("cache_bytes", "What that takes, in bytes.", "kind")
        self._records_lost = Counts(
            "records_forgotten_early_total",
            "Answers of calls with an Idempotency-Key that were forgotten before their time for want of room.",
        )
        self._objects = Levels("objects", "Objects at providers of which it is known whose they are.")
        self._objects_lost = Counts(
            "objects_forgotten_total", "Objects of which that was forgotten for want of room: their tenants get 404."
        )
        self._waits = Distribution(
            "queue_wait_seconds", "Time that held calls spent in the delay queue.", SECONDS, "lane"
        )
        self._queue_depth = Levels("queue_depth", "Calls in the delay queue now.", "model", "lane")
        self._queue_oldest = Levels("queue_oldest_seconds", "Age of the longest held call.", "lane")
        self._queue_bytes = Levels("queue_bytes", "Bodies of the calls in the delay queue, in bytes.")
        self._limit_level = Levels("limit_level", "What is free of a limit now.", "limit")
        self._limit_capacity = Levels("limit_capacity", "The most that a limit ever holds.", "limit", "source")
        self._pauses = Counts("pauses_total", "How often a target was left alone after a 429.", "target")
        self._estimate_error = Levels(
            "estimate_error_ratio", "Mean error of the input tokens estimated, as a part of the real ones.", "target"
        )
        self._denied = Counts(
            "retries_denied_total", "Attempts that would have been made, had they been allowed.", "reason"
        )
        self._retry_level = Levels(
            "retry_budget_level", "Retry tokens that are left; the least under the name.", "target"
        )
        self._suspect = Levels("suspect", "1: nothing is heard of the target any more.", "target")
        self._breaker_state = Levels(
            "breaker_state",
            "0 closed, 1 half open, 2 open, 3 drained; of targets and of accounts, the worst under the name.",
            "target",
        )
        self._breaker_moves = Counts("breaker_transitions_total", "Changes of a breaker's state.", "target", "to")
        self._retries_cost = Counts(
            "retries_cost_usd_total", "US dollars that failed attempts may have cost, as estimated.", "model", "key"
        )
        self._unknown = Counts("unknown_errors_total", "Provider errors that no rule knows.", "target")
        self._shed = Counts("requests_shed_total", "Requests refused because the gateway was overloaded.", "lane")
        self._shed_level = Levels("shed_level", "Lanes that are being shed: 0 none, 3 all but critical.")
        self._dropped = Counts("log_lines_dropped_total", "Call log lines lost to a slow reader.")
        self._reload_errors = Counts("config_reload_errors_total", "Reloads that were refused.")
        self._config_version = Levels("config_version", "Version of the policy snapshot in force.")
        self._in_flight = Levels("calls_in_flight", "Calls in the gateway now.")
        self._loop_lag = Levels("event_loop_lag_seconds", "How late the event loop ran last.")
        self._connections = Levels("upstream_connections", "Connections to providers.", "provider", "state")
        self._state_up = Levels("state_up", "Whether the store that replicas share can be reached.")
        self._state_deaf = Levels("state_deaf", "Whether it can be reached, but what other replicas tell is not heard.")
        self._replicas = Levels("replicas", "Gateways that share it, as last known.")
        self._state_operations = Counts(
            "state_operations_total", "Round trips to the shared store that were asked for."
        )
        self._state_failures = Counts("state_failures_total", "Those that brought no answer in time.")
        self._state_changes = Counts("state_changes_total", "How often the shared store went and came back.", "to")
        self._in_flight.values[()] = 0
        self._reload_errors.totals[()] = 0
        self.before_scrape: Callable[[], None] = _nothing
        """Called before each scrape, to set what nobody keeps up to date in between."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All families, for a scrape."""
        self.flush()
        self.before_scrape()
        self._dropped.totals[()] = self._log.dropped
        for metric in vars(self).values():
            if isinstance(metric, Counts | Levels | Distribution):
                yield metric.family()

    def began(self) -> None:
        """A call is in the gateway."""
        self._in_flight.values[()] += 1

    def waited(self, lane: str, seconds: float) -> None:
        """A call has left the delay queue."""
        self._waits.observe((lane,), seconds)

    def settled(self, record: Settled) -> None:
        """One call has ended; it is counted and logged with the next batch."""
        self._in_flight.values[()] -= 1
        self._put(record)

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """A request was turned away before it became a call."""
        self._refused.totals[(code or "unknown",)] += 1
        self._put((request_id, path, status, code))

    def retry_denied(self, reason: str) -> None:
        """An attempt that would have been made was not."""
        self._denied.totals[(reason,)] += 1

    def breaker_changed(self, name: str, state: str) -> None:
        """The breaker of a target or an account has moved."""
        self._breaker_moves.totals[name, state] += 1

    def flush(self) -> None:
        """Count and log what has come in. In batches it costs a call half of what it would cost one by one."""
        pending, self._pending = self._pending, []
        for _, record in pending:
            if isinstance(record, Settled):
                self._count(record)
        if pending:
            self._log.put(pending)

    def _put(self, record: Settled | Refused) -> None:
        self._pending.append((self._wall(), record))
        if len(self._pending) == 1:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        elif len(self._pending) == FLUSH_RECORDS:  # a longer batch would make one call wait for all of it
            asyncio.get_running_loop().call_soon(self.flush)

    def _count(self, record: Settled) -> None:
        call = record.call
        model, key = call.model.name, call.key.name
        self._requests.totals[model, key, record.outcome] += 1
        self._duration.observe((model,), record.duration_s)
        self._overhead.observe((), record.overhead_s)
        for attempt in call.attempts:
            error_class = attempt.error_class
            self._attempts.totals[attempt.target, error_class or "ok"] += 1
            if error_class is not None and error_class == ErrorClass.UNKNOWN:
                self._unknown.totals[(attempt.target,)] += 1
            if attempt.first_byte_at is not None:  # of each that got one, whatever came of it
                self._first_byte.observe((attempt.target,), attempt.first_byte_at - attempt.started_at)
        if record.retries_usd:
            self._retries_cost.totals[model, key] += record.retries_usd
        if call.replay is not None:
            self._count_replay(call.replay, model, key)
        if call.attempts:
            target = call.attempts[-1].target
            if record.outcome == "ok" and not _is_own(call, target):
                self._fallbacks.totals[model, target, call.attempts[0].error_class or NOTHING_FAILED] += 1
            self._count_usage(record, model, key, target)

    def set_policy(self, version: int) -> None:
        """This version is in force now."""
        self._config_version.values[()] = version

    def reload_failed(self) -> None:
        """A new config could not be used."""
        self._reload_errors.totals[()] += 1

    def set_queue(
        self,
        depth: Mapping[tuple[str, Lane], int],
        oldest_s: Mapping[Lane, float],
        size: int,
        pauses: Mapping[str, int],
    ) -> None:
        """The delay queue as it is now: depth by model and lane, age by lane, bytes; pauses so far by target."""
        self._queue_depth.values = {(model, lane): calls for (model, lane), calls in depth.items()}
        self._queue_oldest.values = {(lane,): age_s for lane, age_s in oldest_s.items()}
        self._queue_bytes.values[()] = size
        self._pauses.totals.update({(target,): count for target, count in pauses.items()})

    def set_limits(
        self, levels: Mapping[str, float], capacities: Mapping[tuple[str, str], float], errors: Mapping[str, float]
    ) -> None:
        """Every limit as it is now: level by name, capacity by name and source; the estimator's error by target."""
        self._limit_level.values = {(limit,): level for limit, level in levels.items()}
        self._limit_capacity.values = {(limit, source): most for (limit, source), most in capacities.items()}
        self._estimate_error.values = {(target,): error for target, error in errors.items()}

    def set_breakers(self, states: Iterable[tuple[str, str]], retry_tokens: Iterable[tuple[str, float]]) -> None:
        """The state of every breaker, and the retry tokens left; a name that comes more than once has the worst of them."""
        worst: dict[Labels, float] = {}
        for name, state in states:
            worst[(name,)] = max(float(STATES.index(state)), worst.get((name,), 0.0))
        least: dict[Labels, float] = {}
        for name, level in retry_tokens:
            least[(name,)] = min(level, least.get((name,), level))
        self._breaker_state.values, self._retry_level.values = worst, least

    def set_suspects(self, suspects: Iterable[tuple[str, bool]]) -> None:
        """Which targets are suspect; of a name that comes more than once, whether any is."""
        seen: dict[Labels, float] = {}
        for name, is_suspect in suspects:
            seen[(name,)] = max(float(is_suspect), seen.get((name,), 0.0))
        self._suspect.values = seen

    def set_shedding(self, level: int, totals: Mapping[Lane, int]) -> None:
        """How many lanes are shed now, and how many requests were so far."""
        self._shed_level.values[()] = level
        self._shed.totals.update({(lane,): total for lane, total in totals.items()})

    def set_store(self, stats: Mapping[str, Mapping[str, int]]) -> None:
        """What the store keeps now, as it tells it: entries and bytes of answers, records and vectors."""
        self._cache_entries.values = {(kind,): sizes["entries"] for kind, sizes in stats.items()}
        self._cache_bytes.values = {(kind,): sizes["bytes"] for kind, sizes in stats.items()}
        self._records_lost.totals[()] = stats.get("records", {}).get("early", 0)

    def set_objects(self, entries: int, lost: int) -> None:
        """Of how many objects the store knows whose they are, and of how many it has had to forget that."""
        self._objects.values[()] = entries
        self._objects_lost.totals[()] = lost

    def state_changed(self, is_up: bool) -> None:
        """The store that replicas share has gone out of reach, or is back."""
        self._state_changes.totals["up" if is_up else "gone",] += 1

    def set_state(self, health: StoreHealth) -> None:
        """How the store that replicas share is now; where there is none, nobody calls this."""
        self._state_up.values[()] = float(health.is_up)
        self._state_deaf.values[()] = float(health.is_deaf)
        self._replicas.values[()] = health.replicas
        self._state_operations.totals[()] = health.operations
        self._state_failures.totals[()] = health.failures
        for to in ("up", "gone"):
            self._state_changes.totals.setdefault((to,), 0.0)

    def set_loop_lag(self, seconds: float) -> None:
        """How late the loop ran."""
        self._loop_lag.values[()] = seconds

    def set_connections(self, stats: Mapping[str, Mapping[str, int]]) -> None:
        """Connections by provider and state; called about once a second."""
        self._connections.values = {
            (provider, state): count for provider, states in stats.items() for state, count in states.items()
        }

    def _count_replay(self, replay: Replay, model: str, key: str) -> None:
        requests = self._cache.totals
        for said in replay.tried:
            requests[said] += 1
        saved = replay.saved
        if saved is None:
            return
        self._saved_tokens.totals[replay.layer, model, "input"] += saved.input
        self._saved_tokens.totals[replay.layer, model, "output"] += saved.output
        if replay.saved_usd is not None:
            self._saved_usd.totals[replay.layer, model, key] += replay.saved_usd

    def _count_usage(self, record: Settled, model: str, key: str, target: str) -> None:
        usage = record.usage
        if usage is None:
            return
        tokens = self._tokens.totals
        tokens[model, target, "input"] += usage.input
        tokens[model, target, "output"] += usage.output
        if usage.cached:
            tokens[model, target, "cached_input"] += usage.cached
        if usage.estimated:
            self._estimated.totals[model, target] += 1
        if record.cost_usd is None:
            self._unpriced.totals[model, target] += 1
        else:
            self._cost.totals[model, target, key] += record.cost_usd
