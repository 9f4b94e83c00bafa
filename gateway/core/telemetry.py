"""Numbers, and the log line of a call. Implements `ports.Meter`.

First what one ended call adds to the metrics (`CallCounter`; the metrics themselves are a table, `metrics.py`), then what
is counted as it happens, what is set before a scrape, and the scrape itself (`Telemetry`), then the call log. Products
register tables of their own, and add fields to records. Invariant: no prompt and no secret is in a line of the log.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TextIO

import orjson
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from gateway.core.call import Call, CallRecord, deciding_attempt
from gateway.core.health.target_health import CLIENT_GONE
from gateway.core.metrics import OVERHEAD_SECONDS, SECONDS, Labels, Metrics, MetricTable
from gateway.core.openai.usage import costs_nothing
from gateway.core.retry import Attempt
from gateway.core.snapshot import Model
from gateway.core.types import ALL_TEXT, ErrorClass, Lane, Usage

# --- what one ended call adds to the metrics ---


log = logging.getLogger("gateway")
RECOVER_WITHIN_S: dict[Lane, float] = {"critical": 30.0, "interactive": 30.0, "batch": 600.0, "background": 21_600.0}
"""Seconds after its first failed attempt within which a call of the lane is to have its answer: seconds, minutes, hours."""
NOTHING_FAILED = "queue"
"""Why a call went to a fallback at once: its own targets had no room in time, or were left alone."""


def _is_own(call: Call, name: str) -> bool:
    """Whether the call's model has the target among its own: any of these may be chosen first."""
    own = call.route.model.targets
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
    duration: list[float]
    overhead: list[float]
    first_byte: list[float]


TOKEN_KINDS = {
    "reasoning": "reasoning_output",
    "audio_input": "audio_input",
    "audio_cached": "cached_audio_input",
    "audio_output": "audio_output",
    "image_input": "image_input",
    "image_cached": "cached_image_input",
    "image_output": "image_output",
    "video_input": "video_input",
    "video_output": "video_output",
}
"""The kinds of tokens that are parts of a usage, by the field of `UsageParts`."""


class CallCounter:
    """Counts ended calls; it must not know when calls are counted.

    Most calls of a key to a model are served by one attempt at one target, and differ in nothing but numbers: for these the
    labels and rows to add to are kept together.
    """

    __slots__ = ("_doubted", "_metrics", "_plain")

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._doubted: set[tuple[str, str]] = set()
        """The targets that have been logged for what they report, and the reasons."""
        self._plain: dict[Labels, PlainSeries] = {}  # by model, key and target: as many as the config can name

    def count(self, record: CallRecord) -> None:
        """Count one call."""
        call, usage = record.call, record.usage
        attempts = call.attempts
        if (
            len(attempts) != 1
            or record.outcome != "ok"
            or usage is None
            or usage.estimated
            or usage.doubt
            or record.retries_usd
            or (call.setbacks is not None and call.setbacks.skips)
        ):
            self._count_any(record)
            return
        (attempt,) = attempts
        series = self._plain.get((call.route.model.name, call.route.key.name, attempt.target.name))
        if series is None or series.model is not call.route.model:
            if not _is_own(call, attempt.target.name):
                self._count_any(record)
                return
            series = self._bind(call, attempt.target.name)
        if attempt.error_class is not None or attempt.first_byte_at is None or attempt.gaps or usage.cache_written:
            self._count_any(record)
            return
        if usage.parts is not ALL_TEXT:
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
            metrics.unpriced.totals[series.cost] += 1
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
        metrics, model, key = self._metrics, call.route.model.name, call.route.key.name
        series = self._plain[model, key, target] = PlainSeries(
            call.route.model,
            (model, key, "ok"),
            (target, "ok"),
            (model, target, "input", key),
            (model, target, "output", key),
            (model, target, "cached_input", key),
            (model, target, key),
            metrics.duration.series_of((model,)),
            metrics.overhead.series_of(()),
            metrics.first_byte.series_of((target,)),
        )
        return series

    def _count_any(self, record: CallRecord) -> None:
        call = record.call
        model, key = call.route.model.name, call.route.key.name
        self._metrics.requests.totals[model, key, record.outcome] += 1
        self._metrics.duration.observe((model,), record.duration_s)
        self._metrics.overhead.observe((), record.overhead_s)
        for attempt in call.attempts:
            error_class = attempt.error_class
            self._metrics.attempts.totals[attempt.target.name, error_class or "ok"] += 1
            for gap in attempt.gaps:
                self._metrics.lossy_fields.totals[attempt.target.name, gap.field, gap.how] += 1
            if error_class is not None and error_class == ErrorClass.UNKNOWN:
                self._metrics.unknown.totals[(attempt.target.name,)] += 1
            if attempt.first_byte_at is not None:  # of each that got one, whatever came of it
                self._metrics.first_byte.observe((attempt.target.name,), attempt.first_byte_at - attempt.started_at)
        for skip in (call.skips or {}).values():
            self._metrics.skips.totals[skip.target, skip.reason] += 1
        if len(call.attempts) > 1 and record.outcome == "ok":
            self._count_recovery(record)
        if record.retries_usd:
            self._metrics.retries_cost.totals[model, key] += record.retries_usd
            self._metrics.estimated_retries_cost.totals[model, key] += record.estimated_retries_usd
        last = deciding_attempt(call)
        if last is not None:
            target = last.target.name
            if record.outcome == "ok" and not _is_own(call, target):
                self._metrics.fallbacks.totals[model, target, call.attempts[0].error_class or NOTHING_FAILED] += 1
            self._count_usage(record, model, key, target)

    def _count_recovery(self, record: CallRecord) -> None:
        """Counts a call that has a good answer after an attempt of it has failed: how long that took, and was to take."""
        call = record.call
        failed_at = next((one.ended_at for one in call.attempts if one.error_class is not None), None)
        if failed_at is None:
            return
        took_s = max(0.0, call.request.received_at + record.duration_s - failed_at)
        self._metrics.recovery.observe((call.request.lane,), took_s)
        in_time = "true" if took_s <= RECOVER_WITHIN_S[call.request.lane] else "false"
        self._metrics.recoveries.totals[call.request.lane, in_time] += 1

    def _count_usage(self, record: CallRecord, model: str, key: str, target: str) -> None:
        usage, call = record.usage, record.call
        if usage is None:
            is_paid = record.outcome == "ok" and call.request.endpoint.request == "any"
            if is_paid and not costs_nothing(call.request.endpoint, call.request.method, call.request.path):
                self._metrics.unpriced.totals[model, target, key] += 1
            return
        tokens = self._metrics.tokens.totals
        tokens[model, target, "input", key] += usage.input
        tokens[model, target, "output", key] += usage.output
        if usage.cached:
            tokens[model, target, "cached_input", key] += usage.cached
        if usage.cache_written:
            tokens[model, target, "cache_write_input", key] += usage.cache_written
        if usage.parts is not ALL_TEXT:
            for part, kind in TOKEN_KINDS.items():
                if number := getattr(usage.parts, part):
                    tokens[model, target, kind, key] += number
        if usage.estimated:
            self._metrics.estimated.totals[model, target] += 1
        if usage.doubt and (target, usage.doubt) not in self._doubted:
            self._doubted.add((target, usage.doubt))
            log.warning(
                "%s reports a usage that can't be right: %s. Its calls may cost more or less than is counted here: "
                "compare them with its bill. This is logged once.",
                target,
                usage.doubt,
            )
        if record.cost_usd is None:
            self._metrics.unpriced.totals[model, target, key] += 1
            return
        self._metrics.cost.totals[model, target, key] += record.cost_usd
        if usage.estimated:
            known_usd = record.estimated_usd
            self._metrics.estimated_cost.totals[model, target, key] += (
                record.cost_usd if known_usd is None else known_usd
            )


CostTotals = Mapping[tuple[str, str], tuple[float, float, int]]
"""The costs by model and key: US dollars, those of them that are estimated, and the calls whose cost is not known."""
STATES = ("closed", "half_open", "open", "drained")
"""The states of breakers, by their number in the metric."""

FLUSH_S = 0.05
FLUSH_RECORDS = 32


def _any_of(named: Iterable[tuple[str, bool]]) -> dict[Labels, float]:
    """Returns by name 1 if any of the values under it is true, else 0."""
    seen: dict[Labels, float] = {}
    for name, value in named:
        seen[(name,)] = max(float(value), seen.get((name,), 0.0))
    return seen


class Telemetry(Collector):
    """All metrics of the process. Every method is for the loop's thread."""

    def __init__(self, call_log: CallLog, wall: Callable[[], float]) -> None:
        self._log = call_log
        self._wall = wall
        self._pending: list[tuple[float, CallRecord | Refused]] = []
        self.metrics = self._metrics = Metrics()
        """The metrics of the core, for products that count in them, too."""
        self._calls = CallCounter(self._metrics)
        self._tables: list[MetricTable] = []
        self._counters: list[Callable[[CallRecord], None]] = []
        self._in_flight = self._metrics.in_flight.values
        self._in_flight[()] = 0
        self._metrics.reload_errors.totals[()] = 0
        self.before_scrape: list[Callable[[], None]] = []
        """Called before each scrape, to set what nobody keeps up to date in between."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.registry.register(self)

    def register(self, table: MetricTable, count: Callable[[CallRecord], None] | None = None) -> None:
        """Adds the metrics of a product to each scrape, behind those of earlier products at the same place.

        `count` is called, in batches, with each ended call in which a product had a part.
        """
        self._tables.append(table)
        if count is not None:
            self._counters.append(count)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]:
        """All families, for a scrape."""
        self.flush()
        for fill in self.before_scrape:
            fill()
        self._metrics.key_tokens.totals = self._metrics.tokens.by_key()
        self._metrics.dropped.totals[()] = self._log.dropped
        last = [one for table in self._tables if not table.after for one in table]
        for metric in (*self._metrics, *last):
            family = metric.family()
            yield family
            after = family.name.removeprefix("gateway_") + ("_total" if family.type == "counter" else "")
            yield from [one.family() for table in self._tables if table.after == after for one in table]

    def costs(self) -> CostTotals:
        """Returns what calls have cost since the start, by model and key."""
        self.flush()
        rows: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        metrics = self._metrics
        for place, counts in enumerate((metrics.cost, metrics.estimated_cost, metrics.unpriced)):
            for (model, _, key), total in counts.totals.items():
                rows[model, key][place] += total
        for place, retries in enumerate((metrics.retries_cost, metrics.estimated_retries_cost)):
            for names, usd in retries.totals.items():
                rows[names[0], names[1]][place] += usd
        return {names: (usd, estimated_usd, int(unpriced)) for names, (usd, estimated_usd, unpriced) in rows.items()}

    def began(self) -> None:
        """A call is in the gateway."""
        self._in_flight[()] += 1

    def waited(self, lane: str, seconds: float) -> None:
        """A call has left the delay queue."""
        self._metrics.waits.observe((lane,), seconds)

    def withdrew(self) -> None:
        """A call has become something else."""
        self._metrics.in_flight.values[()] -= 1

    def settled(self, record: CallRecord) -> None:
        """One call has ended; it is counted and logged with the next batch."""
        self._in_flight[()] -= 1
        self._put(record)

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """A request was turned away before it became a call."""
        self._metrics.refused.totals[(code or "unknown",)] += 1
        self._put((request_id, path, status, code))

    def retry_denied(self, reason: str) -> None:
        """An attempt that would have been made was not."""
        self._metrics.denied.totals[(reason,)] += 1

    def breaker_changed(self, name: str, state: str) -> None:
        """The breaker of a target or an account has moved."""
        self._metrics.breaker_moves.totals[name, state] += 1

    def flush(self) -> None:
        """Count and log what has come in. In batches it costs a call half of what it would cost one by one."""
        pending, self._pending = self._pending, []
        for _, record in pending:
            if isinstance(record, CallRecord):
                self._calls.count(record)
                call = record.call
                if call.slots is not None:  # some product has had a part in it
                    self._count_products(record)
        if pending:
            self._log.put(pending)

    def _count_products(self, record: CallRecord) -> None:
        """Lets each product count the call; a defect of one hurts neither the others nor the call log."""
        for count in self._counters:
            try:
                count(record)
            except Exception:
                log.exception("a call could not be counted")

    def _put(self, record: CallRecord | Refused) -> None:
        pending = self._pending
        pending.append((self._wall(), record))
        waiting = len(pending)
        if waiting == 1:
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)
        elif waiting == FLUSH_RECORDS:  # a longer batch would make one call wait for all of it
            asyncio.get_running_loop().call_soon(self.flush)

    def set_policy(self, version: int) -> None:
        """This version is in force now."""
        self._metrics.config_version.values[()] = version

    def reload_failed(self) -> None:
        """A new config could not be used."""
        self._metrics.reload_errors.totals[()] += 1

    def set_queue(
        self,
        depth: Mapping[tuple[str, Lane], int],
        oldest_s: Mapping[Lane, float],
        size: int,
        pauses: Mapping[str, int],
    ) -> None:
        """The delay queue as it is now: depth by model and lane, age by lane, bytes; pauses so far by target."""
        self._metrics.queue_depth.values = {(model, lane): calls for (model, lane), calls in depth.items()}
        self._metrics.queue_oldest.values = {(lane,): age_s for lane, age_s in oldest_s.items()}
        self._metrics.queue_bytes.values[()] = size
        self._metrics.pauses.totals.update({(target,): count for target, count in pauses.items()})

    def set_limits(
        self, levels: Mapping[str, float], capacities: Mapping[tuple[str, str], float], errors: Mapping[str, float]
    ) -> None:
        """Every limit as it is now: level by name, capacity by name and source; the estimator's error by target."""
        self._metrics.limit_level.values = {(limit,): level for limit, level in levels.items()}
        self._metrics.limit_capacity.values = {(limit, source): most for (limit, source), most in capacities.items()}
        self._metrics.estimate_error.values = {(target,): error for target, error in errors.items()}

    def set_breakers(self, states: Iterable[tuple[str, str]], retry_tokens: Iterable[tuple[str, float]]) -> None:
        """The state of every breaker, and the retry tokens left; a name that comes more than once has the worst of them."""
        worst: dict[Labels, float] = {}
        for name, state in states:
            worst[(name,)] = max(float(STATES.index(state)), worst.get((name,), 0.0))
        least: dict[Labels, float] = {}
        for name, level in retry_tokens:
            least[(name,)] = min(level, least.get((name,), level))
        self._metrics.breaker_state.values, self._metrics.retry_level.values = worst, least

    def set_budgets(self, budgets: Iterable[tuple[str, float, float]]) -> None:
        """The budget of every key that has one, and what is left of it today, in US dollars."""
        rows = list(budgets)
        self._metrics.budget.values = {(name,): usd for name, usd, _ in rows}
        self._metrics.budget_left.values = {(name,): left_usd for name, _, left_usd in rows}

    def set_suspects(self, suspects: Iterable[tuple[str, bool]]) -> None:
        """Sets the targets that are suspect; of a name that comes more than once, whether any is."""
        self._metrics.suspect.values = _any_of(suspects)

    def set_spent_quotas(self, spent: Iterable[tuple[str, bool]]) -> None:
        """Sets the targets whose quota is spent; of a name that comes more than once, whether any is."""
        self._metrics.quota_spent.values = _any_of(spent)

    def set_shedding(self, level: int, totals: Mapping[Lane, int]) -> None:
        """How many lanes are shed now, and how many requests were so far."""
        self._metrics.shed_level.values[()] = level
        self._metrics.shed.totals.update({(lane,): total for lane, total in totals.items()})

    def set_loop_lag(self, seconds: float) -> None:
        """How late the loop ran."""
        self._metrics.loop_lag.values[()] = seconds

    def set_connections(self, stats: Mapping[str, Mapping[str, int]]) -> None:
        """Connections by provider and state; called about once a second."""
        self._metrics.connections.values = {
            (provider, state): count for provider, states in stats.items() for state, count in states.items()
        }


# --- the call log: one structured line per call, without any prompt or secret ---

QUEUED_BATCHES = 500
MOST_ATTEMPTS = 50
"""The most attempts of one call in its line, the last ones."""

Refused = tuple[str, str, int, str | None]
"""Request id, path, status and code of a request that never became a call."""


class CallLog:
    """Takes call records and writes their lines; `start` and `stop` it.

    Lines are formatted in batches outside of any call, and written by a thread, because a write may block: a stuck reader
    never stops a call. When it is too slow, lines are dropped and counted.
    """

    def __init__(self, stream: TextIO, style: str, worker: int | None = None) -> None:
        self._stream = stream
        fixed = {} if worker is None else {"worker": worker}
        self._format: Callable[[float, CallRecord | Refused], str] = (
            JsonLines(fixed).line if style == "json" else partial(_text_line, fixed)
        )
        self._batches: queue.Queue[str | None] = queue.Queue(QUEUED_BATCHES)
        self._thread = threading.Thread(target=self._write, name="call-log", daemon=True)
        self.dropped = 0
        """Lines lost to a slow reader."""

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, records: Sequence[tuple[float, CallRecord | Refused]]) -> None:
        """Write records, each with its wall time in seconds."""
        try:
            self._batches.put_nowait("".join([self._format(at, record) for at, record in records]))
        except queue.Full:
            self.dropped += len(records)

    def stop(self, timeout_s: float = 2.0) -> None:
        """Write what is left, waiting no longer than `timeout_s` for a stuck reader."""
        # A full queue has a stuck reader, who would not get to the end mark either.
        if self._thread.is_alive() and not self._batches.full():
            self._batches.put_nowait(None)
            self._thread.join(timeout_s)

    def _write(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._stream.write(batch)
                self._stream.flush()
            except (OSError, ValueError):  # the reader has gone: calls matter more than their log
                self.dropped += batch.count("\n")


@lru_cache(maxsize=4)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _stamp(at: float) -> str:
    second, millisecond = divmod(round(at * 1000), 1000)
    return f"{_second(second)}.{millisecond:03d}Z"


def _fields(at: float, record: CallRecord | Refused) -> dict[str, Any]:
    stamp = _stamp(at)
    if isinstance(record, tuple):
        request_id, path, status, code = record
        return {"time": stamp, "event": "refused", "id": request_id, "path": path[:200], "status": status, "code": code}
    call, usage = record.call, record.usage
    last = deciding_attempt(call)
    return {
        "time": stamp,
        "event": "call",
        "id": call.request.id,
        "key": call.route.key.name,
        "tenant": call.request.tenant,
        "endpoint": call.request.endpoint.name,
        # A caller may send names and paths of any length.
        "model": call.request.model_name[:100] or call.request.path[:200],
        "stream": call.request.stream,
        "lane": call.request.lane,
        "status": record.status,
        "outcome": record.outcome,
        "target": last.target.name if last else None,
        "attempts": [str(attempt) for attempt in call.attempts[-MOST_ATTEMPTS:]],
        "failures": [
            _failure(attempt) for attempt in call.attempts[-MOST_ATTEMPTS:] if attempt.error_class is not None
        ],
        "upstream_request_id": _text(last.upstream_request_id) if last else None,
        "input_tokens": usage.input if usage else None,
        "output_tokens": usage.output if usage else None,
        "cached_tokens": usage.cached if usage else None,
        "usage_estimated": usage.estimated if usage else None,
        "cost_usd": record.cost_usd,
        "retries_usd": record.retries_usd or None,
        "retry_denied": call.denied,
        "duration_ms": round(record.duration_s * 1000, 2),
        "first_byte_ms": None if record.time_to_first_byte_s is None else round(record.time_to_first_byte_s * 1000, 2),
        "queue_ms": round(call.queue_s * 1000, 2),
        "backoff_ms": round(call.backoff_s * 1000, 2),
        "overhead_ms": round(record.overhead_s * 1000, 2),
        "policy": call.route.policy.version,
        **_estimate(record),
        **_estimated_retries(record),
        **_written(usage),
        **_parts(usage),
        **_skipped(call),
        **({"lossy": [f"{gap.field}({gap.how})" for gap in last.gaps]} if last is not None and last.gaps else {}),
        **(record.fields or {}),
    }


def _skipped(call: Call) -> dict[str, list[dict[str, str]]]:
    """Which targets it went past, and what kept it away from each."""
    skips = [{"target": skip.target, "reason": skip.reason} for skip in (call.skips or {}).values()]
    return {"skipped": skips[:MOST_ATTEMPTS]} if skips else {}


def _estimate(record: CallRecord) -> dict[str, str]:
    """Why the cost is an estimate, where the answer has not come to its end."""
    if record.usage is None or not record.usage.estimated or record.outcome == "ok":
        return {}
    return {"cost_estimated": "left" if record.outcome == CLIENT_GONE else "broken_off"}


def _estimated_retries(record: CallRecord) -> dict[str, float]:
    """The part of `retries_usd` that no provider has reported a usage for, where it is another."""
    estimated_usd = record.estimated_retries_usd
    return {} if estimated_usd >= record.retries_usd else {"retries_estimated_usd": estimated_usd}


def _written(usage: Usage | None) -> dict[str, Any]:
    return {"cache_written_tokens": usage.cache_written} if usage is not None and usage.cache_written else {}


def _parts(usage: Usage | None) -> dict[str, float | str]:
    """The parts of its usage that may have prices of their own, what is billed by other units than tokens, and the tier."""
    if usage is None or (usage.parts is ALL_TEXT and not usage.tier and not usage.cache_written_1h):
        return {}
    parts = usage.parts
    fields: dict[str, float | str] = {
        "cache_written_1h_tokens": usage.cache_written_1h,
        "reasoning_tokens": parts.reasoning,
        "audio_input_tokens": parts.audio_input,
        "audio_cached_tokens": parts.audio_cached,
        "audio_output_tokens": parts.audio_output,
        "image_input_tokens": parts.image_input,
        "image_cached_tokens": parts.image_cached,
        "image_output_tokens": parts.image_output,
        "video_input_tokens": parts.video_input,
        "video_output_tokens": parts.video_output,
        "searches": parts.searches,
        "characters": parts.characters,
        "audio_s": round(parts.audio_s, 3),
        "images": parts.images,
        "service_tier": usage.tier,
    }
    return {name: value for name, value in fields.items() if value}


def _failure(attempt: Attempt) -> dict[str, str]:
    """What went wrong, how far it had come, and by which id the provider knows of it."""
    failure = {
        "target": attempt.target.name,
        "class": attempt.error_class,
        "phase": attempt.phase,
        "detail": attempt.detail,
        "upstream_request_id": _text(attempt.upstream_request_id),
    }
    return {name: value for name, value in failure.items() if value is not None}


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None


class JsonLines:
    """Makes lines of JSON; each ends with `fixed`, the fields that every line of this process has.

    The line of a plain call (one attempt, which served it) is put together from text that is the same for many calls and
    the few values that are not; all other lines are dictionaries first.
    """

    __slots__ = ("_end", "_fixed")

    def __init__(self, fixed: Mapping[str, int]) -> None:
        self._fixed = fixed
        self._end = "," + orjson.dumps(fixed).decode()[1:] + "\n" if fixed else "}\n"

    def line(self, at: float, record: CallRecord | Refused) -> str:
        """One record, in the form and order of `_fields`."""
        if isinstance(record, tuple):
            return self._any_line(at, record)
        call, usage = record.call, record.usage
        request = call.request
        attempts = call.attempts
        if len(attempts) != 1 or usage is None or record.retries_usd:
            return self._any_line(at, record)
        (attempt,) = attempts
        if attempt.error_class is not None or attempt.gaps or usage.cache_written or request.endpoint.tokens == "none":
            return self._any_line(at, record)
        if usage.parts is not ALL_TEXT or usage.tier or (usage.estimated and record.outcome != "ok"):
            return self._any_line(at, record)
        setbacks = call.setbacks
        if record.fields is not None or (setbacks is not None and (setbacks.skips or setbacks.denied)):
            return self._any_line(at, record)
        queue_s, backoff_s = (0.0, 0.0) if setbacks is None else (setbacks.queue_s, setbacks.backoff_s)
        second, millisecond = divmod(round(at * 1000), 1000)
        provided_id, cost_usd, first_byte_s = attempt.upstream_request_id, record.cost_usd, record.time_to_first_byte_s
        who = _who(
            call.route.key.name,
            request.tenant,
            request.endpoint.name,
            request.model_name[:100] or request.path[:200],
            request.stream,
            request.lane,
        )
        return (
            f'{{"time":"{_second(second)}.{millisecond:03d}Z","event":"call","id":{orjson.dumps(request.id).decode()},'
            f'{who},{_how(record.status, record.outcome, attempt.target.name, attempt.status)},"upstream_request_id":'
            f"{'null' if provided_id is None else orjson.dumps(provided_id.decode('latin-1')).decode()},"
            f'"input_tokens":{usage.input},"output_tokens":{usage.output},"cached_tokens":{usage.cached},'
            f'"usage_estimated":{"true" if usage.estimated else "false"},'
            f'"cost_usd":{"null" if cost_usd is None else orjson.dumps(cost_usd).decode()},'
            f'"retries_usd":null,"retry_denied":null,"duration_ms":{round(record.duration_s * 1000, 2)},'
            f'"first_byte_ms":{"null" if first_byte_s is None else round(first_byte_s * 1000, 2)},'
            f'"queue_ms":{round(queue_s * 1000, 2)},"backoff_ms":{round(backoff_s * 1000, 2)},'
            f'"overhead_ms":{round(record.overhead_s * 1000, 2)},"policy":{call.route.policy.version}{self._end}'
        )

    def _any_line(self, at: float, record: CallRecord | Refused) -> str:
        return orjson.dumps({**_fields(at, record), **self._fixed}).decode() + "\n"


@lru_cache(maxsize=1024)
def _who(key: str, tenant: str, endpoint: str, model: str, stream: bool, lane: str) -> str:
    """The part of a line that tells whose call it is, and what was asked for: the same for most calls of a client."""
    fields = {"key": key, "tenant": tenant, "endpoint": endpoint, "model": model, "stream": stream, "lane": lane}
    return _json(fields)[1:-1]


@lru_cache(maxsize=1024)
def _how(status: int, outcome: str, target: str, answered: int | None) -> str:
    """The part with the end of a call of one attempt, and its target."""
    attempts = [f"{target}:{answered}"]
    return _json({"status": status, "outcome": outcome, "target": target, "attempts": attempts, "failures": []})[1:-1]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _text_line(fixed: Mapping[str, int], at: float, record: CallRecord | Refused) -> str:
    fields = {**_fields(at, record), **fixed}
    stamp = str(fields.pop("time"))[11:23]
    fields.pop("event")
    head = f"{stamp} {fields.pop('status')} {fields.get('outcome') or fields.get('code')}"
    shown = (
        f"{name}={_shown(value)}"
        for name, value in fields.items()
        if value not in (None, [], "") and value is not False and name != "outcome"
    )
    return f"{head} {' '.join(shown)}\n"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value))
    if isinstance(value, dict):
        return ":".join(map(_shown, value.values()))
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)  # a client must not forge fields or lines
