"""Which fault, if any, a call meets: by script, by schedule, by probability.

Decides only; `perform.py` acts. A script (a list per model, one entry per admitted call) comes before the rules; a rule
holds between two instants since the start and fires with a probability. Invariant: the same seed and the same sequence
of calls meet the same faults.
"""

from __future__ import annotations

import difflib
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "rate_limit": "429 with every hint of the dialect; seconds = the wait it names (1)",
        "rate_limit_bare": "429 without any hint",
        "quota": "the account has no credit left",
        "e500": "500 server_error",
        "e503": "503 overloaded; seconds = its Retry-After (none)",
        "e529": "529 overloaded_error; seconds = its Retry-After (none)",
        "html502": "502 with the HTML page of a CDN",
        "reset": "TCP RST before any byte; after_chunks = in the middle of the stream",
        "silence": "accepts the request and never answers",
        "slow_first_token": "seconds more until the first token (30)",
        "cut": "closes the connection after after_chunks (2) without a terminal event",
        "stall": "stops after after_chunks (2) and keeps the connection open",
        "malformed": "a broken JSON chunk after after_chunks (2); the stream goes on",
        "in_band_error": "an error event after after_chunks (0, so first), then the end",
        "truncated": "fewer body bytes than Content-Length says, then a close",
        "wrong_length": "more body bytes than Content-Length says, connection kept",
        "empty_200": "200 with an empty body",
        "no_done": "a clean end without finish_reason and without [DONE]",
        "error_in_200": "200 with a JSON error object",
        "content_filter": "400, the prompt was filtered",
        "refusal": "200 with finish_reason content_filter",
        "context_length": "400 context_length_exceeded",
    }
)
_AFTER_CHUNKS = {"cut": 2, "stall": 2, "malformed": 2, "in_band_error": 0}
_TAKES_CHUNKS = frozenset({*_AFTER_CHUNKS, "reset"})
_SECONDS = {"rate_limit": 1.0, "slow_first_token": 30.0}
_TAKES_SECONDS = frozenset({*_SECONDS, "e503", "e529"})
_MAX_SCRIPT = 100_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; `after_chunks` and `seconds` are None where the kind has no use for them."""

    kind: str
    after_chunks: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FaultRule:
    """A fault that calls of `model` (None: all) meet with `probability` from `from_s` to `to_s` after the start."""

    fault: Fault
    probability: float = 1.0
    from_s: float = 0.0
    to_s: float | None = None
    model: str | None = None

    def holds(self, model: str, elapsed_s: float) -> bool:
        """Whether the rule concerns this model at this time."""
        if self.model is not None and self.model != model:
            return False
        return self.from_s <= elapsed_s and (self.to_s is None or elapsed_s < self.to_s)

    def to_mapping(self) -> dict[str, Any]:
        """The form that `parse_rule` reads back."""
        everything = {
            "fault": self.fault.kind,
            "after_chunks": self.fault.after_chunks,
            "seconds": self.fault.seconds,
            "probability": self.probability,
            "from_s": self.from_s,
            "to_s": self.to_s,
            "model": self.model,
        }
        return {name: value for name, value in everything.items() if value is not None}


def parse_rule(value: object) -> FaultRule:
    """Reads `e500=0.1`, `cut=0.05;after_chunks=3;from_s=10;to_s=20`, or the same as a mapping with `fault`.

    Raises ValueError that names the field.
    """
    given = _mapping_of(value)
    fault = _fault_of(given)
    rule = FaultRule(
        fault,
        probability=_number(given, "probability", 0.0, 1.0, default=1.0),
        from_s=_number(given, "from_s", 0.0, None, default=0.0),
        to_s=_number(given, "to_s", 0.0, None) if given.get("to_s") is not None else None,
        model=_model_of(given),
    )
    if rule.to_s is not None and rule.to_s <= rule.from_s:
        raise ValueError(f"to_s: {rule.to_s:g} is not after from_s {rule.from_s:g}")
    return rule


def parse_script_entry(value: object) -> Fault | None:
    """Reads one entry of a script: a fault as in `parse_rule` but unconditional, or `ok` (None).

    Raises ValueError that names the field.
    """
    given = _mapping_of(value)
    if given.get("fault") == "ok":
        return None
    conditions = sorted(set(given) & {field.name for field in fields(FaultRule)} - {"fault"})
    if conditions:
        raise ValueError(f"{conditions[0]}: a script entry is unconditional")
    return _fault_of(given)


class FaultPlan:
    """The scripts and rules in force; `now` is in seconds on the emulator's clock."""

    def __init__(self, rules: Sequence[FaultRule], rng: random.Random, now: float) -> None:
        self.rules = tuple(rules)
        self._rng = rng
        self._started_at = now
        self._scripts: dict[str, deque[Fault | None]] = {}

    def script(self, model: str, entries: Sequence[Fault | None]) -> int:
        """Appends to the script of `model` (`*`: any model without its own) and returns how many entries wait."""
        queue = self._scripts.setdefault(model, deque())
        if len(queue) + len(entries) > _MAX_SCRIPT:
            raise ValueError(f"faults: a script holds at most {_MAX_SCRIPT} entries")
        queue.extend(entries)
        return len(queue)

    def waiting(self) -> dict[str, int]:
        """How many script entries wait, by model."""
        return {model: len(queue) for model, queue in self._scripts.items() if queue}

    def restart(self, now: float) -> None:
        """Forgets the scripts and starts the schedule anew."""
        self._scripts.clear()
        self._started_at = now

    def pick(self, model: str, now: float) -> Fault | None:
        """The fault of the next call: the script's next entry, else the first rule that holds and fires."""
        for name in (model, "*"):
            queue = self._scripts.get(name)
            if queue:
                return queue.popleft()
        for rule in self.rules:
            if rule.holds(model, now - self._started_at) and (
                rule.probability >= 1.0 or self._rng.random() < rule.probability
            ):
                return rule.fault
        return None


def _mapping_of(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): field for name, field in value.items()}
    if not isinstance(value, str):
        raise ValueError(f"fault: expected a string or an object, got {type(value).__name__}")  # noqa: TRY004 - callers collect ValueErrors
    first, *rest = value.split(";")
    kind, _, probability = first.partition("=")
    given: dict[str, Any] = {"fault": kind.strip()}
    if probability:
        given["probability"] = probability.strip()
    for part in filter(None, map(str.strip, rest)):
        name, _, setting = part.partition("=")
        given[name.strip()] = setting.strip()
    return given


def _fault_of(given: Mapping[str, Any]) -> Fault:
    kind = given.get("fault")
    if not isinstance(kind, str) or kind not in FAULTS:
        near = difflib.get_close_matches(str(kind), [*FAULTS, "ok"], n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FAULTS)}"
        raise ValueError(f"fault: unknown fault {kind!r}; {hint}")
    unknown = sorted(set(given) - {"fault", "after_chunks", "seconds", "probability", "from_s", "to_s", "model"})
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown field of a fault")
    return Fault(kind, _after_chunks(kind, given), _fault_seconds(kind, given))


def _after_chunks(kind: str, given: Mapping[str, Any]) -> int | None:
    if given.get("after_chunks") is None:
        return _AFTER_CHUNKS.get(kind)
    if kind not in _TAKES_CHUNKS:
        raise ValueError(f"after_chunks: {kind} does not take it")
    chunks = _number(given, "after_chunks", 0.0, None)
    if chunks != int(chunks):
        raise ValueError(f"after_chunks: expected a whole number, got {given['after_chunks']!r}")
    return int(chunks)


def _fault_seconds(kind: str, given: Mapping[str, Any]) -> float | None:
    if given.get("seconds") is None:
        return _SECONDS.get(kind)
    if kind not in _TAKES_SECONDS:
        raise ValueError(f"seconds: {kind} does not take it")
    return _number(given, "seconds", 0.0, None)


def _model_of(given: Mapping[str, Any]) -> str | None:
    model = given.get("model")
    if model is not None and not isinstance(model, str):
        raise ValueError(f"model: expected a string, got {type(model).__name__}")
    return model


def _number(
    given: Mapping[str, Any], name: str, low: float, high: float | None, *, default: float | None = None
) -> float:
    raw: Any = given.get(name, default)
    try:
        number = float(raw) if not isinstance(raw, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not (low <= number <= (high if high is not None else 1e12)):
        upper = f" to {high:g}" if high is not None else " or more"
        raise ValueError(f"{name}: expected a number from {low:g}{upper}, got {raw!r}")
    return number
