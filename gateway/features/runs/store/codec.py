"""Steps as JSON, without the bodies of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.core.types.words import Usage
from gateway.features.runs.step.step import StepAbout


def encode_step(about: StepAbout) -> bytes:
    """Returns what is kept of a step beside its ids, when it came and its body."""
    usage = about.usage
    return orjson.dumps(
        [
            about.fingerprint.hex(),
            about.status,
            [[name.decode("latin-1"), value.decode("latin-1")] for name, value in about.headers],
            about.is_stream,
            about.endpoint,
            None if usage is None else _counts(usage),
            about.cost_usd,
            about.model,
            about.target,
            about.source,
            about.outcome,
            about.created_at,
            about.keep_until,
            about.bytes,
        ]
    )


def _counts(usage: Usage) -> list[int]:
    written = usage.cache_written, usage.cache_written_1h
    return [usage.input, usage.output, usage.cached, usage.estimated, *written]


def decode_step(tenant: str, run: str, step: str, raw: bytes) -> StepAbout:
    """Returns the step that was written so."""
    told: Sequence[Any] = orjson.loads(raw)
    fingerprint, status, headers, is_stream, endpoint, usage, *rest = told
    return StepAbout(
        tenant,
        run,
        step,
        bytes.fromhex(fingerprint),
        status,
        [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        is_stream,
        endpoint,
        None if usage is None else Usage(*usage),
        *rest,
    )
