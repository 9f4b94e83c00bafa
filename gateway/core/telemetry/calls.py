"""What one ended call adds to the metrics.

Most calls of a key to a model are served by one attempt at one target, and differ in nothing but numbers: for these the labels
and rows to add to are kept together. It must not know when calls are counted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from gateway.core.call import Call, Replay, Settled
from gateway.core.metrics import OVERHEAD_SECONDS, SECONDS, Labels, Metrics
from gateway.core.snapshot.snapshot.snapshot import Model
from gateway.core.types.provider_errors import ErrorClass
from gateway.features.runs.metrics import RunCounter

NOTHING_FAILED = "queue"
"""Why a call went to a fallback at once: its own targets had no room in time, or were left alone."""


def _is_own(call: Call, name: str) -> bool:
    """Whether the call's model has the target among its own: any of these may be chosen first."""
    own = call.model.targets
    return name == own[0].name or name in [target.name for target in own]


@dataclass(frozen=True, slots=True)
class PlainSeries:
    """Where a plain call of a key to one of its model's own targets is counted: labels of totals, rows of histograms."""

    model: Model
    request: Labels
    attempt: Labels
    input: Labels
    output: Labels
    cached: Labels
    cost: Labels
    unpriced: Labels
    duration: list[float]
    overhead: list[float]
    first_byte: list[float]


class CallCounter:
    """Counts ended calls."""

    __slots__ = ("_metrics", "_plain", "_runs")

    def __init__(self, metrics: Metrics, runs: RunCounter | None = None) -> None:
        self._metrics = metrics
        self._runs = RunCounter(metrics) if runs is None else runs
        self._plain: dict[Labels, PlainSeries] = {}  # by model, key and target: as many as the config can name

    def count(self, record: Settled) -> None:
        """Count one call."""
        call, usage = record.call, record.usage
        attempts = call.attempts
        if (
            len(attempts) != 1
            or record.outcome != "ok"
            or usage is None
            or usage.estimated
            or call.replay is not None
            or record.retries_usd
        ):
            self._count_any(record)
            return
        (attempt,) = attempts
        series = self._plain.get((call.model.name, call.key.name, attempt.target))
        if series is None or series.model is not call.model:
            if not _is_own(call, attempt.target):
                self._count_any(record)
                return
            series = self._bind(call, attempt.target)
        if attempt.error_class is not None or attempt.first_byte_at is None or attempt.gaps or usage.cache_written:
            self._count_any(record)
            return
        metrics, cost_usd = self._metrics, record.cost_usd
        metrics.requests.totals[series.request] += 1
        metrics.attempts.totals[series.attempt] += 1
        tokens = metrics.tokens.totals
        tokens[series.input] += usage.input
        tokens[series.output] += usage.output
        if usage.cached:
            tokens[series.cached] += usage.cached
        if cost_usd is None:
            metrics.unpriced.totals[series.unpriced] += 1
        else:
            metrics.cost.totals[series.cost] += cost_usd
        first_byte_s = attempt.first_byte_at - attempt.started_at
        duration, overhead, first_byte = series.duration, series.overhead, series.first_byte
        duration[bisect_left(SECONDS, record.duration_s)] += 1
        duration[-1] += record.duration_s
        overhead[bisect_left(OVERHEAD_SECONDS, record.overhead_s)] += 1
        overhead[-1] += record.overhead_s
        first_byte[bisect_left(SECONDS, first_byte_s)] += 1
        first_byte[-1] += first_byte_s

    def _bind(self, call: Call, target: str) -> PlainSeries:
        """The place for such calls; a reload brings another model of the same name, whose targets may be others."""
        metrics, model, key = self._metrics, call.model.name, call.key.name
        series = self._plain[model, key, target] = PlainSeries(
            call.model,
            (model, key, "ok"),
            (target, "ok"),
            (model, target, "input"),
            (model, target, "output"),
            (model, target, "cached_input"),
            (model, target, key),
            (model, target),
            metrics.duration.series_of((model,)),
            metrics.overhead.series_of(()),
            metrics.first_byte.series_of((target,)),
        )
        return series

    def _count_any(self, record: Settled) -> None:
        call = record.call
        model, key = call.model.name, call.key.name
        self._metrics.requests.totals[model, key, record.outcome] += 1
        self._metrics.duration.observe((model,), record.duration_s)
        self._metrics.overhead.observe((), record.overhead_s)
        for attempt in call.attempts:
            error_class = attempt.error_class
            self._metrics.attempts.totals[attempt.target, error_class or "ok"] += 1
            for gap in attempt.gaps:
                self._metrics.lossy_fields.totals[attempt.target, gap.field, gap.how] += 1
            if error_class is not None and error_class == ErrorClass.UNKNOWN:
                self._metrics.unknown.totals[(attempt.target,)] += 1
            if attempt.first_byte_at is not None:  # of each that got one, whatever came of it
                self._metrics.first_byte.observe((attempt.target,), attempt.first_byte_at - attempt.started_at)
        if len(call.attempts) > 1 and record.outcome == "ok":
            self._runs.recovered(record)
        if record.retries_usd:
            self._metrics.retries_cost.totals[model, key] += record.retries_usd
        if call.replay is not None:
            self._count_replay(call.replay, model, key)
        if call.attempts:
            target = call.attempts[-1].target
            if record.outcome == "ok" and not _is_own(call, target):
                self._metrics.fallbacks.totals[model, target, call.attempts[0].error_class or NOTHING_FAILED] += 1
            self._count_usage(record, model, key, target)

    def _count_replay(self, replay: Replay, model: str, key: str) -> None:
        requests = self._metrics.cache.totals
        for said in replay.tried:
            requests[said] += 1
        saved = replay.saved
        if saved is None:
            return
        self._metrics.saved_tokens.totals[replay.layer, model, "input"] += saved.input
        self._metrics.saved_tokens.totals[replay.layer, model, "output"] += saved.output
        if replay.saved_usd is not None:
            self._metrics.saved_usd.totals[replay.layer, model, key] += replay.saved_usd

    def _count_usage(self, record: Settled, model: str, key: str, target: str) -> None:
        usage = record.usage
        if usage is None:
            return
        tokens = self._metrics.tokens.totals
        tokens[model, target, "input"] += usage.input
        tokens[model, target, "output"] += usage.output
        if usage.cached:
            tokens[model, target, "cached_input"] += usage.cached
        if usage.cache_written:
            tokens[model, target, "cache_write_input"] += usage.cache_written
        if usage.estimated:
            self._metrics.estimated.totals[model, target] += 1
        if record.cost_usd is None:
            self._metrics.unpriced.totals[model, target] += 1
        else:
            self._metrics.cost.totals[model, target, key] += record.cost_usd
