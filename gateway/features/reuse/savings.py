"""What layers have said of calls and spared them: totals, the last results, and the metrics of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gateway.core.call import Call, CallMetrics, CallRecord
from gateway.core.metrics import Counts, Levels
from gateway.features.outcome import OUTCOME, CacheOutcome

PROVIDER = "provider"
"""The layer name for calls that no layer answered, so that the provider was asked."""
MOST_REMEMBERED = 1_000
SHOWN_CHARACTERS = 100
"""The characters kept of a model's name, which the client chooses where the config has a pattern."""

_SHOWN = (
    "result",
    "layer",
    "key",
    "source",
    "target",
    "attempts",
    "age_s",
    "similarity",
    "saved",
    "saved_usd",
    "tried",
    "why",
)
"""The fields kept of a replay: all but the answer that it may hold, which would take much memory a thousand times."""
_STORY_OF = attrgetter(*_SHOWN)


@dataclass(slots=True)
class SavingsRow:
    """The results of one layer for the calls of one model and one key."""

    calls: int = 0
    """The calls that the layer looked up; calls whose caller bypassed it do not count."""
    answered: int = 0
    input: int = 0
    output: int = 0
    usd: float = 0.0
    unpriced: int = 0
    """The answers whose tokens were saved at an unknown price."""


@dataclass(frozen=True, slots=True)
class Recollection:
    """The result of one call that could have been answered without its provider."""

    replay: CacheOutcome
    endpoint: str
    model: str
    key: str
    tenant: str


class Savings:
    """Counts and remembers results. Every method is for the loop's thread.

    It counts what the layers have said of a call and decides nothing. Memory is bounded: totals by the names of the config,
    recollections by `MOST_REMEMBERED`, and no answer is among them. Invariant: every call that was answered is counted once, at
    the layer that did it or at `PROVIDER`.
    """

    __slots__ = ("_last", "_rows")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, SavingsRow]] = {}
        self._last: dict[str, tuple[tuple[Any, ...], str, str, str, str]] = {}

    def note(self, call: Call) -> None:
        """Counts a call that has ended; to be called once, and without effect if nothing of it may be stored or shared."""
        replay = OUTCOME.find(call)
        if replay is None:
            return
        self._remember(call, replay)
        names = call.route.model.name, call.route.key.name
        rows = self._rows.get(names)
        if rows is None:
            rows = self._rows[names] = {}
        layers = set()
        for layer, result in replay.tried:
            if result != "bypass":
                layers.add(layer)
        if replay.layer:
            layers.add(replay.layer)  # a stale answer may come from where nobody was to look at first
        elif call.attempts:
            _row(rows, PROVIDER).answered += 1
        for layer in layers:
            _row(rows, layer).calls += 1
        if replay.layer:
            _add(rows[replay.layer], replay)

    def totals(self) -> Mapping[tuple[str, str, str], SavingsRow]:
        """Returns the rows by layer (or `PROVIDER`), model and key, all named as in the config."""
        return {
            (layer, model, key): tally
            for (model, key), rows in self._rows.items()
            for layer, tally in sorted(rows.items())
        }

    def recall(self, request_id: str) -> Recollection | None:
        """Returns the result of the last call with this id, if it is still remembered."""
        found = self._last.get(request_id)
        if found is None:
            return None
        story, *whose = found
        return Recollection(CacheOutcome(**dict(zip(_SHOWN, story, strict=True))), *whose)

    def _remember(self, call: Call, replay: CacheOutcome) -> None:
        last = self._last
        last.pop(call.request.id, None)
        last[call.request.id] = (
            _STORY_OF(replay),
            call.request.endpoint.name,
            call.request.model_name[:SHOWN_CHARACTERS],
            call.route.key.name,
            call.request.tenant,
        )
        if len(last) > MOST_REMEMBERED:
            del last[next(iter(last))]


def _row(rows: dict[str, SavingsRow], layer: str) -> SavingsRow:
    row = rows.get(layer)
    if row is None:
        row = rows[layer] = SavingsRow()
    return row


def _add(row: SavingsRow, replay: CacheOutcome) -> None:
    row.answered += 1
    saved = replay.saved
    if saved is None:
        return
    row.input += saved.input
    row.output += saved.output
    if replay.saved_usd is None:
        row.unpriced += 1
    else:
        row.usd += replay.saved_usd


class CacheMetrics(CallMetrics):
    """The metrics of what layers have said and spared, and of what the store keeps."""

    after = "estimated_usage_total"

    def __init__(self) -> None:
        self.cache = Counts(
            "cache_requests_total",
            "Calls that a layer was asked to spare a provider, by what it said.",
            "layer",
            "result",
        )
        self.saved_tokens = Counts(
            "cache_saved_tokens_total", "Tokens that no provider had to be asked for.", "layer", "model", "kind"
        )
        self.saved_usd = Counts(
            "cache_saved_usd_total", "US dollars that were not spent a second time.", "layer", "model", "key"
        )
        self.cache_entries = Levels("cache_entries", "What the store keeps now.", "kind")
        self.cache_bytes = Levels("cache_bytes", "What that takes, in bytes.", "kind")
        self.records_lost = Counts(
            "records_forgotten_early_total",
            "Answers of calls with an Idempotency-Key that were forgotten before their time for want of room.",
        )

    def count(self, record: CallRecord) -> None:
        """Counts what the layers have said of a call, and what it was spared."""
        replay = OUTCOME.find(record.call)
        if replay is None:
            return
        for outcome in replay.tried:
            self.cache.totals[outcome] += 1
        saved, model = replay.saved, record.call.route.model.name
        if saved is None:
            return
        self.saved_tokens.totals[replay.layer, model, "input"] += saved.input
        self.saved_tokens.totals[replay.layer, model, "output"] += saved.output
        if replay.saved_usd is not None:
            self.saved_usd.totals[replay.layer, model, record.call.route.key.name] += replay.saved_usd

    def set_store(self, stats: Mapping[str, Mapping[str, int]]) -> None:
        """Sets what the store keeps now: entries and bytes of answers, records and vectors."""
        self.cache_entries.values = {(kind,): sizes["entries"] for kind, sizes in stats.items()}
        self.cache_bytes.values = {(kind,): sizes["bytes"] for kind, sizes in stats.items()}
        self.records_lost.totals[()] = stats.get("records", {}).get("early", 0)
