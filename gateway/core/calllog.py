"""The call log: one structured line per call, without any prompt or secret.

Lines are formatted in batches outside of any call, and written by a thread, because a write may block: a stuck reader never
stops a call. When it is too slow, lines are dropped and counted. The JSON line of a plain call (one attempt, which served
it) is put together from text that is the same for many calls and the few values that are not; all other lines are
dictionaries first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TextIO

import orjson

from gateway.core.call import CacheOutcome, Call, CallRecord, OutputCheck
from gateway.core.health.target_health import CLIENT_GONE
from gateway.core.types import ALL_TEXT, Attempt, Usage
from gateway.features.runs.rules import RunPart

QUEUED_BATCHES = 500
MOST_ATTEMPTS = 50
"""Of one call in its line, the last ones."""

Refused = tuple[str, str, int, str | None]
"""Request id, path, status and code of a request that never became a call."""


class CallLog:
    """Where call records go; `start` and `stop` it."""

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
    last = call.attempts[-1] if call.attempts else None
    return {
        "time": stamp,
        "event": "call",
        "id": call.id,
        "key": call.key.name,
        "tenant": call.tenant,
        "endpoint": call.endpoint.name,
        "model": call.model_name[:100] or call.path[:200],
        "stream": call.stream,
        "lane": call.lane,
        "status": record.status,
        "outcome": record.outcome,
        "target": last.target if last else None,
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
        "policy": call.policy.version,
        **_estimate(record),
        **_estimated_retries(record),
        **_written(usage),
        **_parts(usage),
        **_run(call.part),
        **_skipped(call),
        **({} if call.lowered is None else {"degraded": list(call.lowered.fields)}),
        **({"lossy": [f"{gap.field}({gap.how})" for gap in last.gaps]} if last is not None and last.gaps else {}),
        **_output(call.output_check),
        **_replay(call.replay),
    }


def _run(part: RunPart | None) -> dict[str, str]:
    """Which part of which run it was, as it said."""
    if part is None:
        return {}
    fields = {"workflow": part.workflow, "run": part.run, "task": part.task}
    return {name: value for name, value in fields.items() if value}


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


def _output(check: OutputCheck | None) -> dict[str, str]:
    """What came of the check of its answer, and the rule that one of its answers broke."""
    if check is None or check.result is None:
        return {}
    return {"output": str(check.result)} | ({"output_rule": str(check.violation)} if check.violation else {})


def _replay(replay: CacheOutcome | None) -> dict[str, Any]:
    """How it was spared its provider, or not; neither the caller's idempotency key nor that of the answer."""
    if replay is None:
        return {}
    saved = replay.saved
    fields = {
        "cache": replay.result,
        "cache_layer": replay.layer or None,
        "saved_tokens": saved.input + saved.output if saved else None,
        "saved_usd": replay.saved_usd,
        "age_s": _rounded(replay.age_s, 3),
        "similarity": _rounded(replay.similarity, 4),
        "source": replay.source or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _rounded(value: float | None, places: int) -> float | None:
    return None if value is None else round(value, places)


def _failure(attempt: Attempt) -> dict[str, str]:
    """What went wrong, how far it had come, and by which id the provider knows of it."""
    failure = {
        "target": attempt.target,
        "class": attempt.error_class,
        "phase": attempt.phase,
        "detail": attempt.detail,
        "upstream_request_id": _text(attempt.upstream_request_id),
    }
    return {name: value for name, value in failure.items() if value is not None}


def _text(value: bytes | None) -> str | None:
    return value.decode("latin-1") if value is not None else None


class JsonLines:
    """Makes lines of JSON; each ends with `fixed`, the fields that every line of this process has."""

    __slots__ = ("_end", "_fixed")

    def __init__(self, fixed: Mapping[str, int]) -> None:
        self._fixed = fixed
        self._end = "," + orjson.dumps(fixed).decode()[1:] + "\n" if fixed else "}\n"

    def line(self, at: float, record: CallRecord | Refused) -> str:
        """One record, in the form and order of `_fields`."""
        if isinstance(record, tuple):
            return self._any_line(at, record)
        call, usage = record.call, record.usage
        attempts = call.attempts
        if len(attempts) != 1 or usage is None or record.retries_usd or call.denied or call.replay is not None:
            return self._any_line(at, record)
        (attempt,) = attempts
        if attempt.error_class is not None or attempt.gaps or usage.cache_written or call.endpoint.tokens == "none":
            return self._any_line(at, record)
        if usage.parts is not ALL_TEXT or usage.tier or (usage.estimated and record.outcome != "ok"):
            return self._any_line(at, record)
        if call.part is not None or call.output_check is not None or call.lowered is not None or call.skips:
            return self._any_line(at, record)
        second, millisecond = divmod(round(at * 1000), 1000)
        provided_id, cost_usd, first_byte_s = attempt.upstream_request_id, record.cost_usd, record.time_to_first_byte_s
        who = _who(
            call.key.name,
            call.tenant,
            call.endpoint.name,
            call.model_name[:100] or call.path[:200],
            call.stream,
            call.lane,
        )
        return (
            f'{{"time":"{_second(second)}.{millisecond:03d}Z","event":"call","id":{orjson.dumps(call.id).decode()},'
            f'{who},{_how(record.status, record.outcome, attempt.target, attempt.status)},"upstream_request_id":'
            f"{'null' if provided_id is None else orjson.dumps(provided_id.decode('latin-1')).decode()},"
            f'"input_tokens":{usage.input},"output_tokens":{usage.output},"cached_tokens":{usage.cached},'
            f'"usage_estimated":{"true" if usage.estimated else "false"},'
            f'"cost_usd":{"null" if cost_usd is None else orjson.dumps(cost_usd).decode()},'
            f'"retries_usd":null,"retry_denied":null,"duration_ms":{round(record.duration_s * 1000, 2)},'
            f'"first_byte_ms":{"null" if first_byte_s is None else round(first_byte_s * 1000, 2)},'
            f'"queue_ms":{round(call.queue_s * 1000, 2)},"backoff_ms":{round(call.backoff_s * 1000, 2)},'
            f'"overhead_ms":{round(record.overhead_s * 1000, 2)},"policy":{call.policy.version}{self._end}'
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
    """The part that tells how a call with one attempt has ended, and where."""
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
