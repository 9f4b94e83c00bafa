"""Shows operators the layers of reuse as plain data: sizes, savings and the story of one call.

Read-only, and none of it on the hot path. Invariant: an unknown price is counted as one, never as nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.call import Replay
from gateway.core.types.process import StoreBounds
from gateway.features.reuse.inspect.stats import PROVIDER, SavingsRow

Rows = Mapping[tuple[str, str, str], SavingsRow]
"""The savings by layer, model and key."""
LAYERS = ("idempotency", "single_flight", "exact", "semantic", PROVIDER)
"""The layers in the order in which they are asked."""


def show_cache(stats: Mapping[str, Mapping[str, int]], bounds: StoreBounds, rows: Rows) -> dict[str, Any]:
    """Shows what is kept, how much may be, and what all of it has saved so far."""
    return {
        "kept": {kind: dict(sizes) for kind, sizes in stats.items()},
        "bounds": {
            "answers_bytes": dict(bounds.answers),
            "records_bytes": bounds.records,
            "vectors_per_partition": bounds.vectors,
        },
        "total": _of_calls(rows),
    }


def show_savings(rows: Rows) -> dict[str, Any]:
    """Shows what was saved since the start: in all, by layer, by model and by key."""
    return {
        "total": _of_calls(rows),
        "layers": {layer: _of_layer(layer, part) for layer, part in sorted(_grouped(rows, 0).items(), key=_rank)},
        "models": {model: _of_calls(part) for model, part in sorted(_grouped(rows, 1).items())},
        "keys": {key: _of_calls(part) for key, part in sorted(_grouped(rows, 2).items())},
    }


def show_replay(replay: Replay) -> dict[str, Any]:
    """Shows how a call was answered without a provider, or why not."""
    saved = replay.saved
    return {
        "result": replay.result,
        "layer": replay.layer or None,
        "tried": [{"layer": layer, "result": result} for layer, result in replay.tried],
        "why": replay.why,
        "cache_key": replay.key.hex() or None,
        "source": replay.source or None,
        "source_target": replay.target or None,
        "age_s": None if replay.age_s is None else round(replay.age_s, 3),
        "similarity": None if replay.similarity is None else round(replay.similarity, 4),
        "saved": {"input_tokens": saved.input, "output_tokens": saved.output, "usd": replay.saved_usd}
        if saved
        else None,
    }


def _of_calls(rows: Rows) -> dict[str, Any]:
    """Sums up the calls that were answered, and those of them that needed no provider."""
    calls = sum(tally.answered for tally in rows.values())
    return _sums(calls, [tally for (layer, _, _), tally in rows.items() if layer != PROVIDER])


def _of_layer(layer: str, rows: Rows) -> dict[str, Any]:
    """Sums up the calls for which the layer was asked; the provider, as a layer, saves nothing."""
    if layer == PROVIDER:
        return _sums(sum(tally.answered for tally in rows.values()), [])
    return _sums(sum(tally.asked for tally in rows.values()), rows.values())


def _sums(calls: int, spared: Iterable[SavingsRow]) -> dict[str, Any]:
    spared = [*spared]
    hits = sum(tally.answered for tally in spared)
    return {
        "calls": calls,
        "hits": hits,
        "hit_rate": round(hits / calls, 4) if calls else None,
        "input_tokens": sum(tally.input for tally in spared),
        "output_tokens": sum(tally.output for tally in spared),
        "usd": round(sum(tally.usd for tally in spared), 9),
        "unpriced": sum(tally.unpriced for tally in spared),
    }


def _rank(group: tuple[str, object]) -> int:
    return LAYERS.index(group[0]) if group[0] in LAYERS else len(LAYERS)


def _grouped(rows: Rows, place: int) -> dict[str, dict[tuple[str, str, str], SavingsRow]]:
    """Returns the rows, grouped by one of their three names."""
    groups: dict[str, dict[tuple[str, str, str], SavingsRow]] = {}
    for names, tally in rows.items():
        groups.setdefault(names[place], {})[names] = tally
    return groups
