"""Numbers and the call log. Implements `ports.Meter`; the only place with prometheus.

Label values come from the config only (model entries, key names, targets), never from a request. Children are bound once
and kept, so a call pays one dictionary look-up per number. Log lines are handed to a thread in batches: a blocked standard
output never blocks a call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector

from gateway.call import Settled

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
OVERHEAD_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5)
LOG_BATCH_LIMIT = 20_000


class _Children(dict[tuple[str, ...], Any]):
    """A metric's labelled children, bound at their first use; their number is bounded by the config."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self._metric = metric

    def __missing__(self, labels: tuple[str, ...]) -> Any:
        child = self[labels] = self._metric.labels(*labels)
        return child


class Telemetry:
    """All metrics of the process, and its call log."""

    def __init__(self, call_log: CallLog) -> None:
        disable_created_metrics()  # a second series per counter and child, which nobody graphs
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        self._log = call_log

        def counter(name: str, text: str, *labels: str) -> _Children:
            return _Children(Counter(f"gateway_{name}", text, labels, registry=registry))

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> _Children:
            return _Children(Histogram(f"gateway_{name}", text, labels, buckets=buckets, registry=registry))

        self._requests = counter("requests_total", "Calls, by how they ended.", "model", "key", "outcome")
        self._refused = counter("requests_refused_total", "Requests turned away before they became calls.", "code")
        self._duration = histogram(
            "request_duration_seconds", "From the request's last byte to the end.", SECONDS, "model"
        )
        self._overhead = Histogram(
            "gateway_overhead_seconds",
            "Time per call that was the gateway's own.",
            buckets=OVERHEAD_SECONDS,
            registry=registry,
        )
        self._first_byte = histogram(
            "time_to_first_byte_seconds", "From an attempt's start to its first byte or event.", SECONDS, "target"
        )
        self._attempts = counter("attempts_total", "Tries at a target, by result.", "target", "class")
        self._fallbacks = counter(
            "fallbacks_total", "Calls served by another than the first target.", "model", "to", "class"
        )
        self._tokens = counter("tokens_total", "Tokens used.", "model", "target", "kind")
        self._cost = counter("cost_usd_total", "US dollars spent.", "model", "target", "key")
        self._unpriced = counter(
            "unpriced_calls_total", "Calls with tokens whose price is not known.", "model", "target"
        )
        self._estimated = counter("estimated_usage_total", "Calls whose tokens were estimated.", "model", "target")
        self._in_flight = Gauge("gateway_calls_in_flight", "Calls in the gateway now.", registry=registry)
        self._connections = Gauge(
            "gateway_upstream_connections", "Connections to providers.", ("provider", "state"), registry=registry
        )
        self.loop_lag = Gauge("gateway_event_loop_lag_seconds", "How late the event loop ran last.", registry=registry)
        self.config_version = Gauge("gateway_config_version", "Policy snapshots installed so far.", registry=registry)
        self.reload_errors = Counter(
            "gateway_config_reload_errors_total", "Reloads that were refused.", registry=registry
        )
        self._log_dropped = Counter(
            "gateway_log_lines_dropped_total", "Call log lines lost to a slow reader.", registry=registry
        )

    def began(self) -> None:
        """A call is in the gateway."""
        self._in_flight.inc()

    def settled(self, record: Settled) -> None:
        """One call has ended."""
        call = record.call
        model, key = call.model.name, call.key.name
        self._in_flight.dec()
        self._requests[model, key, record.outcome].inc()
        self._duration[(model,)].observe(record.duration_s)
        self._overhead.observe(record.overhead_s)
        for attempt in call.attempts:
            self._attempts[attempt.target, attempt.error_class or "ok"].inc()
        if call.attempts:
            target = call.attempts[-1].target
            if record.time_to_first_byte_s is not None:
                self._first_byte[(target,)].observe(record.time_to_first_byte_s)
            if len(call.attempts) > 1 and record.outcome == "ok":
                self._fallbacks[model, target, call.attempts[0].error_class or "unknown"].inc()
            if record.usage is not None:
                self._count_usage(record, model, key, target)
        if not self._log.put(record):
            self._log_dropped.inc()

    def refused(self, request_id: str, path: str, status: int, code: str | None) -> None:
        """A request was turned away before it became a call."""
        self._refused[(code or "unknown",)].inc()
        if not self._log.put((request_id, path, status, code)):
            self._log_dropped.inc()

    def set_connections(self, stats: Mapping[str, Mapping[str, int]]) -> None:
        """Connections by provider and state; called about once a second."""
        for provider, states in stats.items():
            for state, count in states.items():
                self._connections.labels(provider, state).set(count)

    def _count_usage(self, record: Settled, model: str, key: str, target: str) -> None:
        usage = record.usage
        if usage is None:
            return
        self._tokens[model, target, "input"].inc(usage.input)
        self._tokens[model, target, "output"].inc(usage.output)
        if usage.cached:
            self._tokens[model, target, "cached_input"].inc(usage.cached)
        if usage.estimated:
            self._estimated[model, target].inc()
        if record.cost_usd is None:
            self._unpriced[model, target].inc()
        else:
            self._cost[model, target, key].inc(record.cost_usd)


Refused = tuple[str, str, int, str | None]


class CallLog:
    """One structured line per call, without any prompt or secret; written by a thread of its own."""

    def __init__(self, stream: TextIO, style: str, wall: Callable[[], float], *, pause_s: float = 0.1) -> None:
        self._stream = stream
        self._format = _json_line if style == "json" else _text_line
        self._wall = wall
        self._pause_s = pause_s
        self._lines: list[tuple[float, Settled | Refused]] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="call-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, record: Settled | Refused) -> bool:
        """Hand over one record; False when the reader is so slow that it has to be dropped."""
        lines = self._lines
        if len(lines) >= LOG_BATCH_LIMIT:
            return False
        lines.append((self._wall(), record))
        return True

    def stop(self, timeout_s: float = 2.0) -> None:
        """Write what is left, waiting no longer than `timeout_s` for a stuck reader."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._pause_s)
            self._flush()
        self._flush()

    def _flush(self) -> None:
        batch, self._lines = self._lines, []
        if not batch:
            return
        try:
            self._stream.write("".join(self._format(at, record) for at, record in batch))
            self._stream.flush()
        except (OSError, ValueError):  # the reader went away, or the stream is closed: calls matter more than their log
            return


def _fields(at: float, record: Settled | Refused) -> dict[str, Any]:
    stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    if isinstance(record, tuple):
        request_id, path, status, code = record
        return {"time": stamp, "event": "refused", "id": request_id, "path": path[:200], "status": status, "code": code}
    call, usage = record.call, record.usage
    last = call.attempts[-1] if call.attempts else None
    return {
        "time": stamp,
        "event": "call",
        "id": call.id,
        "key": call.key.name,
        "tenant": call.key.tenant,
        "endpoint": call.endpoint.name,
        "model": call.model_name[:100] or call.path[:200],
        "stream": call.stream,
        "lane": call.lane,
        "status": record.status,
        "outcome": record.outcome,
        "target": last.target if last else None,
        "attempts": [str(attempt) for attempt in call.attempts],
        "upstream_request_id": last.upstream_request_id if last else None,
        "input_tokens": usage.input if usage else None,
        "output_tokens": usage.output if usage else None,
        "cached_tokens": usage.cached if usage else None,
        "usage_estimated": usage.estimated if usage else None,
        "cost_usd": record.cost_usd,
        "duration_ms": round(record.duration_s * 1000, 2),
        "first_byte_ms": None if record.time_to_first_byte_s is None else round(record.time_to_first_byte_s * 1000, 2),
        "overhead_ms": round(record.overhead_s * 1000, 2),
        "policy": call.policy.version,
    }


def _json_line(at: float, record: Settled | Refused) -> str:
    return orjson.dumps(_fields(at, record)).decode() + "\n"


def _text_line(at: float, record: Settled | Refused) -> str:
    fields = _fields(at, record)
    stamp = str(fields.pop("time"))[11:23]
    fields.pop("event")
    head = f"{stamp} {fields.pop('status')} {fields.get('outcome') or fields.get('code')}"
    shown = (
        f"{name}={_shown(value)}" for name, value in fields.items() if value not in (None, [], "") and name != "outcome"
    )
    return f"{head} {' '.join(shown)}\n"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
