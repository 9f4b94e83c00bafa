"""The emulator's faults and its config: plain frozen values, and the readers that make them from untrusted mappings.

`FaultPlan` decides the fault, if any, of a call: by script (a list per model, one entry per admitted call), which comes before
the rules, by schedule (a rule holds between two instants since the start, all the time or on and off), and by probability. The
CLI's flags and `POST /__emulator/config` come through `EmulatorConfig.from_mapping`. It must not know how the values are used.
Invariants: the same seed and the same sequence of calls meet the same faults; a config of `from_mapping` is valid.
"""

from __future__ import annotations

import difflib
import random
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

# --- Faults ---


FAULTS: Mapping[str, str] = MappingProxyType(
    {
        "refuse": "the whole server: dead, connections are refused and open ones dropped",
        "reset_on_accept": "the whole server: connections are accepted and reset at once, open ones too",
        "blackhole": "the whole server: no connection comes about, open ones are not read",
        "rate_limit": "429 with every hint of the dialect; seconds = the wait it names (1)",
        "rate_limit_bare": "429 without any hint",
        "quota": "the account has no credit left",
        "e401": "401, the key is refused; key=KEY: only that one",
        "e403": "403, the key may not use the model",
        "e404": "404, no such model",
        "e500": "500 server_error",
        "e503": "503 overloaded; seconds = its Retry-After (none)",
        "e529": "529 overloaded_error; seconds = its Retry-After (none)",
        "html502": "502 with the HTML page of a CDN",
        "reset": "TCP RST before any byte; after_chunks = in the middle of the stream",
        "silence": "accepts the request and never answers",
        "slow_first_token": "seconds more until the first token (30)",
        "cut": "closes the connection after after_chunks (2) without a terminal event",
        "stall": "stops after after_chunks (2) and keeps the connection open",
        "drip": "from after_chunks (2) on one piece every seconds (1)",
        "fade": "as drip, each gap twice the one before; seconds = the first (0.1)",
        "malformed": "a broken JSON chunk after after_chunks (2); the stream goes on",
        "in_band_error": "an error event after after_chunks (0, so first), then the end",
        "opening_error": "the opening of a stream (the role, response.created), an error event, the end",
        "raw_error": "error JSON that is no event after after_chunks (2), then the end",
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
CONNECTION_FAULTS = frozenset({"refuse", "reset_on_accept", "blackhole"})
"""Faults of the server as a whole, which hold for a time, so not by model, key, probability or script."""
_AFTER_CHUNKS = {"cut": 2, "stall": 2, "drip": 2, "fade": 2, "malformed": 2, "in_band_error": 0, "raw_error": 2}
_TAKES_CHUNKS = frozenset({*_AFTER_CHUNKS, "reset"})
_SECONDS = {"rate_limit": 1.0, "slow_first_token": 30.0, "drip": 1.0, "fade": 0.1}
_TAKES_SECONDS = frozenset({*_SECONDS, "e503", "e529"})
_FIELDS = frozenset(
    {"fault", "after_chunks", "seconds", "probability", "from_s", "to_s", "on_s", "off_s", "model", "key"}
)
_MAX_SCRIPT = 100_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong; `after_chunks` and `seconds` are None where the kind has no use for them."""

    kind: str
    after_chunks: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FaultRule:
    """A fault that calls of `model` and of the API key `key` (None: all) meet with `probability`.

    From `from_s` to `to_s` after the start; with `on_s` and `off_s` by turns on and off in that time.
    """

    fault: Fault
    probability: float = 1.0
    from_s: float = 0.0
    to_s: float | None = None
    on_s: float | None = None
    off_s: float = 0.0
    model: str | None = None
    key: str | None = None

    def concerns(self, model: str, key: str) -> bool:
        """Returns whether calls of this model and key meet the fault."""
        return self.model in (None, model) and self.key in (None, key)

    def holds(self, elapsed_s: float) -> bool:
        """Returns whether the rule holds at this time."""
        if elapsed_s < self.from_s or (self.to_s is not None and elapsed_s >= self.to_s):
            return False
        return self.on_s is None or (elapsed_s - self.from_s) % (self.on_s + self.off_s) < self.on_s

    def to_mapping(self) -> dict[str, Any]:
        """Returns the form that `parse_rule` reads back."""
        everything = {
            "fault": self.fault.kind,
            "after_chunks": self.fault.after_chunks,
            "seconds": self.fault.seconds,
            "probability": self.probability,
            "from_s": self.from_s,
            "to_s": self.to_s,
            "on_s": self.on_s,
            "off_s": self.off_s or None,
            "model": self.model,
            "key": self.key,
        }
        return {name: value for name, value in everything.items() if value is not None}


def parse_rule(value: object) -> FaultRule:
    """Reads `e500=0.1`, `cut=0.05;after_chunks=3;from_s=10;to_s=20`, or the same as a mapping with `fault`.

    Further fields: `on_s` and `off_s`, `model`, `key`.

    Raises ValueError that names the field.
    """
    given = _mapping_of(value)
    fault = _fault_of(given)
    rule = FaultRule(
        fault,
        probability=_number(given, "probability", 0.0, 1.0, default=1.0),
        from_s=_number(given, "from_s", 0.0, None, default=0.0),
        to_s=_number(given, "to_s", 0.0, None) if given.get("to_s") is not None else None,
        on_s=_number(given, "on_s", 0.001, None) if given.get("on_s") is not None else None,
        off_s=_number(given, "off_s", 0.0, None, default=0.0),
        model=_text_of(given, "model"),
        key=_text_of(given, "key"),
    )
    _check_sense(rule)
    return rule


def _check_sense(rule: FaultRule) -> None:
    if rule.to_s is not None and rule.to_s <= rule.from_s:
        raise ValueError(f"to_s: {rule.to_s:g} is not after from_s {rule.from_s:g}")
    if (rule.on_s is None) != (rule.off_s == 0.0):
        raise ValueError("off_s: on_s and off_s go together" if rule.on_s else "on_s: on_s and off_s go together")
    if rule.fault.kind in CONNECTION_FAULTS and (rule.model, rule.key, rule.probability) != (None, None, 1.0):
        name = "model" if rule.model else "key" if rule.key else "probability"
        raise ValueError(f"{name}: {rule.fault.kind} concerns the whole server")


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
    fault = _fault_of(given)
    if fault.kind in CONNECTION_FAULTS:
        raise ValueError(f"fault: {fault.kind} concerns the whole server and is no single call's")
    return fault


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
        """Returns the number of waiting script entries, by model."""
        return {model: len(queue) for model, queue in self._scripts.items() if queue}

    def restart(self, now: float) -> None:
        """Forgets the scripts and starts the schedule anew."""
        self._scripts.clear()
        self._started_at = now

    def connection_fault(self, now: float) -> str | None:
        """Returns the kind of the whole server's fault at this time."""
        return next(
            (
                rule.fault.kind
                for rule in self.rules
                if rule.fault.kind in CONNECTION_FAULTS and rule.holds(now - self._started_at)
            ),
            None,
        )

    @property
    def is_about_connections(self) -> bool:
        """Returns whether `connection_fault` can ever be other than None."""
        return any(rule.fault.kind in CONNECTION_FAULTS for rule in self.rules)

    def pick(self, model: str, now: float, key: str = "") -> Fault | None:
        """Returns the fault of the next call: the script's next entry, else the first rule that holds and fires."""
        for name in (model, "*"):
            queue = self._scripts.get(name)
            if queue:
                return queue.popleft()
        for rule in self.rules:
            if rule.fault.kind in CONNECTION_FAULTS:
                continue
            if rule.concerns(model, key) and rule.holds(now - self._started_at) and self._fires(rule):
                return rule.fault
        return None

    def _fires(self, rule: FaultRule) -> bool:
        return rule.probability >= 1.0 or self._rng.random() < rule.probability


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
    unknown = sorted(set(given) - _FIELDS)
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


def _text_of(given: Mapping[str, Any], name: str) -> str | None:
    text = given.get(name)
    if text is not None and not isinstance(text, str):
        raise ValueError(f"{name}: expected a string, got {type(text).__name__}")
    return text


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


# --- The config ---


DIALECTS = ("openai", "azure", "anthropic")
CHARGES = ("auto", "max", "sum", "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedLimits:
    """The limits of one API key for one model; None: no limit."""

    rpm: int | None = None  # requests per minute
    burst: int | None = None  # so many of them at once; None: all of a minute (azure has windows instead)
    tpm: int | None = None  # tokens per minute (anthropic: input tokens)
    output_tpm: int | None = None  # output tokens per minute, charged as they are produced (anthropic only)
    max_concurrency: int | None = None  # calls in flight


_NO_LIMITS: Mapping[str, EmulatedLimits] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorConfig:
    """The whole config of an emulator; the defaults answer at once and without limits."""

    ttft_s: float = 0.0  # time to first token, seconds
    tokens_per_second: float = 0.0  # 0: all at once
    capacity: int | None = None  # calls in flight that get this pace; with n times as many, each is n times as slow
    jitter: float = 0.0  # sigma of the lognormal factor on both of the above, drawn per call
    output_tokens: int = 60  # median length of an answer
    output_sigma: float = 0.0  # sigma of its lognormal spread; the length follows from the request
    batch_s: float = 60.0  # until a batch of its Batch API is completed
    seed: int = 0
    rpm: int | None = None  # see Limits
    burst: int | None = None
    tpm: int | None = None
    output_tpm: int | None = None
    max_concurrency: int | None = None
    model_limits: Mapping[str, EmulatedLimits] = field(
        default_factory=lambda: _NO_LIMITS
    )  # replaces the five above, by model
    dialect: str = "openai"  # openai | azure | anthropic: limit semantics, headers and error bodies
    limit_headers: bool = True  # False: no x-ratelimit-*, no Retry-After, anywhere
    strict: bool = (
        False  # True: chat completions and responses refuse the fields that OpenAI's have not, as others' APIs do
    )
    charge: str = (
        "auto"  # tokens of a call at admission: max(input, max_tokens) | sum of them | input; auto: by dialect
    )
    models: tuple[str, ...] = ()  # empty: any model name is served
    api_key: str | None = None  # None: any key, or none
    context_window: int | None = None  # tokens; None: endless
    faults: tuple[FaultRule, ...] = ()
    recorded_requests: int = 200  # kept for /__emulator/requests; 0: none
    recorded_bytes: int = 4 * 1024 * 1024

    @classmethod
    def demo(cls) -> EmulatorConfig:
        """Returns the pace of a hosted model: 0.3 s to the first token, then 60 tokens a second, about 60 tokens."""
        return cls(ttft_s=0.3, tokens_per_second=60.0, jitter=0.2, output_tokens=60, output_sigma=0.3)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], base: EmulatorConfig | None = None) -> EmulatorConfig:
        """`base` (default: the defaults) with `values` laid over it.

        Names are the fields above, with `-` for `_` allowed, and the flags' short names `ttft` and `fault`. Values may
        be typed or strings (`0.3`, `300ms`, `a,b`, `e500=0.1`). A None changes nothing; the string `none` removes an
        optional value. Raises ValueError that lists every problem, one per line, each with its field's name.
        """
        base = base or cls()
        accepted: dict[str, Any] = {}
        problems: list[str] = []
        for given, value in values.items():
            name = str(given).replace("-", "_")
            name = _ALIASES.get(name, name)
            if name not in _READERS:
                problems.append(_unknown(str(given)))
            elif value is not None:
                _read(name, value, accepted, problems)
        config = replace(base, **accepted)
        problems += _contradictions(config)
        if problems:
            raise ValueError("\n".join(problems))
        return config

    def to_mapping(self) -> dict[str, Any]:
        """Returns the form that `from_mapping` reads back, as JSON values; the key is left out because it is a secret."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "api_key"}
        plain["models"] = list(self.models)
        plain["faults"] = [rule.to_mapping() for rule in self.faults]
        plain["model_limits"] = {
            model: {each.name: getattr(limits, each.name) for each in fields(limits)}
            for model, limits in self.model_limits.items()
        }
        return plain

    def limits_of(self, model: str) -> EmulatedLimits:
        """Returns the limits a key has on `model`."""
        own = self.model_limits.get(model)
        if own is not None:
            return own
        return EmulatedLimits(
            rpm=self.rpm,
            burst=self.burst,
            tpm=self.tpm,
            output_tpm=self.output_tpm,
            max_concurrency=self.max_concurrency,
        )


def _read(name: str, value: Any, accepted: dict[str, Any], problems: list[str]) -> None:
    try:
        accepted[name] = _READERS[name](value)
    except ValueError as exc:
        problems.extend(f"{name}: {line}" for line in str(exc).splitlines())


def _contradictions(config: EmulatorConfig) -> list[str]:
    problems = []
    limited = [config.limits_of(""), *config.model_limits.values()]
    if config.dialect != "anthropic" and any(limits.output_tpm is not None for limits in limited):
        problems.append("output_tpm: only the anthropic dialect limits output tokens on their own")
    return problems


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.replace("-", "_"), [*_READERS, *_ALIASES], n=1)
    return f"{name}: unknown field" + (f", did you mean {near[0]}?" if near else "")


def _seconds(value: Any) -> float:
    match = re.fullmatch(r"\s*([0-9.]+)\s*(ms|s|m|h)?\s*", value) if isinstance(value, str) else None
    if match is None:
        return _at_least_zero(value)
    return _at_least_zero(match[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}[match[2] or "s"]


def _at_least_zero(value: Any) -> float:
    try:
        number = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not 0.0 <= number < 1e12:
        raise ValueError(f"expected a number from 0, got {value!r}")
    return number


def _whole(low: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = _at_least_zero(value)
        except ValueError:
            number = -1.0
        if number != int(number) or number < low:
            raise ValueError(f"expected a whole number from {low}, got {value!r}")
        return int(number)

    return read


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if isinstance(value, str) and value.lower() == "none" else read(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected a non-empty string, got {value!r}")
    return value


def _flag(value: Any) -> bool:
    known = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
    found = known.get(str(value).lower())
    if found is None:
        raise ValueError(f"expected true or false, got {value!r}")
    return found


def _one_of(options: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in options:
            raise ValueError(f"expected one of {', '.join(options)}, got {value!r}")
        return str(value)

    return read


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"expected names, got {value!r}")
    return tuple(dict.fromkeys(value))


def _rules(value: Any) -> tuple[FaultRule, ...]:
    if not isinstance(value, list | tuple):
        value = [value] if value != "" else []
    rules, problems = [], []
    for index, entry in enumerate(value):
        try:
            rules.append(parse_rule(entry))
        except ValueError as exc:
            problems.append(f"[{index}] {exc}")
    if problems:
        raise ValueError("\n".join(problems))
    return tuple(rules)


def _limits_by_model(value: Any) -> Mapping[str, EmulatedLimits]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected an object of limits by model, got {value!r}")  # noqa: TRY004 - callers collect ValueErrors
    return MappingProxyType({str(model): _limits(str(model), given) for model, given in value.items()})


def _limits(model: str, given: Any) -> EmulatedLimits:
    names = {each.name for each in fields(EmulatedLimits)}
    if not isinstance(given, Mapping) or set(given) - names:
        raise ValueError(f"{model}: expected an object with some of {', '.join(sorted(names))}, got {given!r}")
    try:
        return EmulatedLimits(**{name: _READERS[name](amount) for name, amount in given.items() if amount is not None})
    except ValueError as exc:
        raise ValueError(f"{model}: {exc}") from exc


_ALIASES: Mapping[str, str] = MappingProxyType({"ttft": "ttft_s", "fault": "faults", "model": "models"})
_READERS: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "ttft_s": _seconds,
        "tokens_per_second": _at_least_zero,
        "capacity": _optional(_whole(1)),
        "jitter": _at_least_zero,
        "output_tokens": _whole(1),
        "output_sigma": _at_least_zero,
        "batch_s": _seconds,
        "seed": _whole(0),
        "rpm": _optional(_whole(1)),
        "burst": _optional(_whole(1)),
        "tpm": _optional(_whole(1)),
        "output_tpm": _optional(_whole(1)),
        "max_concurrency": _optional(_whole(1)),
        "model_limits": _limits_by_model,
        "dialect": _one_of(DIALECTS),
        "limit_headers": _flag,
        "strict": _flag,
        "charge": _one_of(CHARGES),
        "models": _names,
        "api_key": _optional(_text),
        "context_window": _optional(_whole(1)),
        "faults": _rules,
        "recorded_requests": _whole(0),
        "recorded_bytes": _whole(0),
    }
)
