"""The call log: one structured line per call, without any prompt or secret.

Records are handed over on the hot path and formatted and written by a thread, in batches: a blocked standard output never
blocks a call. When its reader is too slow, lines are dropped and counted, never queued without bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

from gateway.call import Settled

LOG_BATCH_LIMIT = 20_000

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


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def _fields(at: float, record: Settled | Refused) -> dict[str, Any]:
    stamp = _stamp(at)
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
