"""The emulator's config: plain frozen values and the one reader that makes them from untrusted mappings.

The CLI's flags and `POST /__emulator/config` come through `from_mapping`. It must not know how the values are used.
Invariant: a config of `from_mapping` is valid.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from gateway.emulator.config.config.faults import FaultRule, parse_rule

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
        "charge": _one_of(CHARGES),
        "models": _names,
        "api_key": _optional(_text),
        "context_window": _optional(_whole(1)),
        "faults": _rules,
        "recorded_requests": _whole(0),
        "recorded_bytes": _whole(0),
    }
)
