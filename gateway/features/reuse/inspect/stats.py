"""The savings of reuse: running totals since the start, and the results of the last calls that could have been reused.

It counts what the layers have said of a call and decides nothing; it must not know where answers are kept. Memory is
bounded: totals by the names of the config, recollections by `MOST_REMEMBERED`, and no answer is among them. Invariant: every
call that was answered is counted once, at the layer that did it or at `PROVIDER`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gateway.core.call import Call, Replay

PROVIDER = "provider"
"""The layer name for calls that no layer answered, so that the provider was asked."""
MOST_REMEMBERED = 1_000
SHOWN_CHARACTERS = 100
"""The characters kept of a model's name, which the client chooses where the config has a pattern."""

_TOLD = (
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
_STORY_OF = attrgetter(*_TOLD)


@dataclass(slots=True)
class SavingsRow:
    """The results of one layer for the calls of one model and one key."""

    asked: int = 0
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

    replay: Replay
    endpoint: str
    model: str
    key: str
    tenant: str


class Savings:
    """Counts and remembers results. Every method is for the loop's thread."""

    __slots__ = ("_last", "_rows")

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], dict[str, SavingsRow]] = {}
        self._last: dict[str, tuple[tuple[Any, ...], str, str, str, str]] = {}

    def note(self, call: Call) -> None:
        """Counts a call that has ended; to be called once, and without effect if nothing of it may be stored or shared."""
        replay = call.replay
        if replay is None:
            return
        self._remember(call, replay)
        names = call.model.name, call.key.name
        rows = self._rows.get(names)
        if rows is None:
            rows = self._rows[names] = {}
        asked = set()
        for layer, result in replay.tried:
            if result != "bypass":
                asked.add(layer)
        if replay.layer:
            asked.add(replay.layer)  # a stale answer may come from where nobody was to look at first
        elif call.attempts:
            _row(rows, PROVIDER).answered += 1
        for layer in asked:
            _row(rows, layer).asked += 1
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
        return Recollection(Replay(**dict(zip(_TOLD, story, strict=True))), *whose)

    def _remember(self, call: Call, replay: Replay) -> None:
        last = self._last
        last.pop(call.id, None)
        last[call.id] = (
            _STORY_OF(replay),
            call.endpoint.name,
            call.model_name[:SHOWN_CHARACTERS],
            call.key.name,
            call.tenant,
        )
        if len(last) > MOST_REMEMBERED:
            del last[next(iter(last))]


def _row(rows: dict[str, SavingsRow], layer: str) -> SavingsRow:
    row = rows.get(layer)
    if row is None:
        row = rows[layer] = SavingsRow()
    return row


def _add(row: SavingsRow, replay: Replay) -> None:
    """Counts an answer of the layer."""
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
