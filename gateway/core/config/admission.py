"""Reads `admission.yaml` and `queue.yaml`, in this order: how each kind of provider counts, and how calls wait.

The built-in rules are those that providers document or show in their answers. Keep them in step with
policies/admission.yaml, which spells them out with their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field

from gateway.core.config.fields import Count, Duration, Flag, Interim, Percent, PositiveDuration, Section, Share, Size
from gateway.core.config.schema import (
    Entry,
    Kind,
    ProviderEntry,
    check,
    check_sets,
    every_lane,
    keyed_by,
)
from gateway.core.config.source import Document, Path, did_you_mean
from gateway.core.limits.bucket import ChargeRule
from gateway.core.limits.headers import provider_of
from gateway.core.limits.limit_table import AZURE, CONTINUOUS, Style
from gateway.core.snapshot import Counting, Holding, LimitsAre, Provider
from gateway.core.types import EMULATOR, LANES, Lane, QueueBounds

Windows = Literal["continuous", "minute", "azure"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
WINDOWS: Final[Mapping[Windows, Style]] = {
    "continuous": CONTINUOUS,
    "minute": Style(request_window_s=60.0, token_window_s=60.0),
    "azure": AZURE,
}
FindTokenizer = Callable[[str], Callable[[str], int] | None]


class AdmissionSet(Entry):
    """A set of admission.yaml. Keep the defaults in step with policies/admission.yaml."""

    include_usage: Flag = True
    learn_limits: Flag = True
    first_answer_tokens: Count = 512
    arrival_lag: Duration = 0.1
    tokenizer: Literal["heuristic", "exact"] = "heuristic"
    providers: Section = Field(default_factory=dict)


class CountingEntry(Entry):
    """The counting of one kind of provider; fields that are left out have the kind's built-in values."""

    charge: ChargeRule | None = None
    excludes_cached: Flag | None = None
    windows: Windows | None = None


@dataclass(frozen=True, slots=True)
class CountingRule:
    """The rules by which providers of one kind count a call against their limits."""

    charge: ChargeRule
    excludes_cached: bool = False
    windows: Windows = "continuous"


BUILT_IN_RULES: Final[Mapping[Kind, CountingRule]] = {
    "openai": CountingRule("max"),
    "azure": CountingRule("sum", windows="azure"),
    "anthropic": CountingRule("input", excludes_cached=True),
    "groq": CountingRule("sum", excludes_cached=True),
    "mistral": CountingRule("sum", windows="minute"),
    "together": CountingRule("sum"),
    "fireworks": CountingRule("input", excludes_cached=True),
    "xai": CountingRule("sum"),
    "gemini": CountingRule("input", windows="minute"),
    "openrouter": CountingRule("sum"),
    "deepseek": CountingRule("sum"),
    "vertex": CountingRule("real"),
    "cohere": CountingRule("real"),
    "bedrock": CountingRule("sum"),
    "vllm": CountingRule("real"),
    "sglang": CountingRule("real"),
    "ollama": CountingRule("real"),
    "llamacpp": CountingRule("real"),
    "tgi": CountingRule("real"),
    "other": CountingRule("real"),
}
SELF_HOSTED: Final[frozenset[Kind]] = frozenset(("vllm", "sglang", "tgi", "ollama", "llamacpp"))
# Hosts without headers of their own (`core/limits/headers.py`), but with their own ways to count and fail.
_HOSTS: Final[Mapping[str, Kind]] = {
    "*.x.ai": "xai",
    "*.generativelanguage.googleapis.com": "gemini",
    "*.deepseek.com": "deepseek",
    "*.aiplatform.googleapis.com": "vertex",
    "*-aiplatform.googleapis.com": "vertex",
    "*.aiplatform.*.rep.googleapis.com": "vertex",
    "*.cohere.com": "cohere",
    "*.cohere.ai": "cohere",
    "*.bedrock-*.amazonaws.com": "bedrock",
    "*.bedrock-*.api.aws": "bedrock",
}


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """One set of admission.yaml."""

    include_usage: bool
    learns: bool
    first_output_tokens: int
    arrival_lag_s: float
    is_exact: bool
    rules: Mapping[Kind, CountingRule]

    def counting(self, kind: Kind, *, adaptive: bool, find_tokenizer: FindTokenizer | None) -> Counting:
        """Returns the counting of a target at a provider of this kind; `find_tokenizer` is used where the set is exact."""
        rule = self.rules[kind]
        return Counting(
            kind="" if kind == "other" else kind,
            charge=rule.charge,
            excludes_cached=rule.excludes_cached,
            style=WINDOWS[rule.windows],
            learns=self.learns,
            first_output_tokens=self.first_output_tokens,
            arrival_lag_s=self.arrival_lag_s,
            adaptive=adaptive,
            exact_tokens=find_tokenizer if self.is_exact else None,
        )


def kind_of_provider(entry: ProviderEntry, provider: Provider) -> Kind:
    """Returns the entry's `kind`, else that of its address; the emulator counts as OpenAI does."""
    if entry.kind is not None:
        return entry.kind
    if provider.dialect not in ("openai", "azure"):
        return provider.dialect
    if provider.base_url.startswith(EMULATOR):
        return "openai"
    if provider.dialect == "azure":
        return "azure"
    return kind_of_host(urlsplit(provider.base_url).hostname or "")


def kind_of_host(host: str) -> Kind:
    """Returns the kind of a known host, else `other`."""
    ours = (kind for pattern, kind in _HOSTS.items() if fnmatchcase(f".{host}", pattern))
    known = provider_of(f"//{host}") or next(ours, "other")
    return next((kind for kind in KINDS if kind == known), "other")


def limits_by_kind(kind: Kind) -> LimitsAre:
    """Returns the scope of a provider's limits: hosted providers count by credential, a self-hosted server all callers."""
    return "server" if kind in SELF_HOSTED else "account"


_NO_TOKENIZERS: Final = (
    "exact counts need the Python package tiktoken, which is not installed (the extra tokenizer: "
    "pip install 'llm-gateway-sidecar[tokenizer]')"
)


def read_admission(document: Document | None) -> dict[str, AdmissionRules]:
    """Reads every set of admission.yaml; None: the file does not exist."""
    sets = check_sets(AdmissionSet, document)
    for name, entry in sets.items():
        if document is not None and entry.tokenizer == "exact" and find_spec("tiktoken") is None:
            document.complain((name, "tokenizer"), _NO_TOKENIZERS)
    return {
        name: AdmissionRules(
            include_usage=entry.include_usage,
            learns=entry.learn_limits,
            first_output_tokens=entry.first_answer_tokens,
            arrival_lag_s=entry.arrival_lag,
            is_exact=entry.tokenizer == "exact",
            rules=_rules(document, (name, "providers")),
        )
        for name, entry in sets.items()
    }


def _rules(document: Document | None, path: Path) -> dict[Kind, CountingRule]:
    value = document.at(path) if document is not None else None
    if document is None or not isinstance(value, dict):
        return dict(BUILT_IN_RULES)
    for name in value:
        if name not in KINDS:
            document.complain((*path, name), f"unknown kind of provider{did_you_mean(name, KINDS)}")
    return {kind: _rule(check(CountingEntry, document, (*path, kind)), rule) for kind, rule in BUILT_IN_RULES.items()}


def _rule(entry: CountingEntry | None, built_in: CountingRule) -> CountingRule:
    if entry is None:
        return built_in
    return CountingRule(
        entry.charge or built_in.charge,
        built_in.excludes_cached if entry.excludes_cached is None else entry.excludes_cached,
        entry.windows or built_in.windows,
    )


# --- queue.yaml: how calls are held, by set, and the bounds of the delay queue as a whole ---


BUILT_IN_DEADLINES_S: Final[Mapping[Lane, float]] = {
    "critical": 30.0,
    "interactive": 30.0,
    "batch": 600.0,
    "background": 21600.0,
}
_HIGHEST = LANES[0]
_OF_ALL = ("max_calls", "max_bytes", "max_percent_per_tenant", "aged_percent")
_OF_ALL_IN_A_LANE = ("deadline", "age_after")


class QueueSet(Entry):
    """A set of queue.yaml. Keep the defaults in step with policies/queue.yaml."""

    max_calls: Count = 20_000
    max_bytes: Size = 512 * 1024 * 1024
    max_percent_per_tenant: Share = 75.0
    keepalive_after: PositiveDuration = 10.0
    interim: Interim = "off"
    reserve_percent: Percent = 10.0
    lanes: Section = Field(default_factory=dict)
    aged_percent: Percent = 5.0
    shed: Section = Field(default_factory=dict)


QUEUE_LANES: Final = keyed_by(LANES, "LaneEntries", Section)
"""The field `lanes` of a set of `queue.yaml`."""


class LaneEntry(Entry):
    """One lane; fields that it leaves out have the lane's built-in values."""

    deadline: PositiveDuration | None = None
    prefer_primary_for: Duration | None = None
    age_after: PositiveDuration | None = None


class ShedEntry(Entry):
    """The field `shed` of a set of `queue.yaml`."""

    memory: Size | None = None
    loop_lag: PositiveDuration = 0.5


@dataclass(frozen=True, slots=True)
class QueuePolicies:
    """The contents of queue.yaml."""

    holding: Mapping[str, Holding]
    """The rules of holding, by set."""
    bounds: QueueBounds
    lane_deadline_s: Mapping[Lane, float]
    waits_as_clients: bool
    """False if the file names the deadline of `interactive`."""


@dataclass(frozen=True, slots=True)
class _Set:
    """One set as it was written, with the lanes that it names."""

    entry: QueueSet
    lanes: Mapping[Lane, LaneEntry]
    shed: ShedEntry

    def of_all(self) -> Iterator[tuple[Path, object]]:
        """Yields the fields that concern all calls at once, each with its path."""
        places: list[tuple[Path, Entry, Collection[str]]] = [
            ((), self.entry, _OF_ALL),
            *((("lanes", lane), entry, _OF_ALL_IN_A_LANE) for lane, entry in self.lanes.items()),
            (("shed",), self.shed, ShedEntry.model_fields),
        ]
        for path, entry, fields in places:
            yield from (((*path, field), value) for field, value in entry.written().items() if field in fields)


def read_queue(document: Document | None) -> QueuePolicies:
    """Reads every set of queue.yaml; None: the file does not exist.

    A model picks the set by which its calls are held. The other fields concern all calls at once, so only the set `default`
    decides them; another set may repeat them, but not contradict.
    """
    sets = {name: _set(document, name, entry) for name, entry in check_sets(QueueSet, document).items()}
    first = sets["default"]
    deadlines_s = every_lane(_given_s(first, "deadline"), BUILT_IN_DEADLINES_S)
    bounds = _bounds(first)
    if document is not None:
        if _HIGHEST in first.lanes and first.lanes[_HIGHEST].age_after is not None:
            document.complain(("default", "lanes", _HIGHEST, "age_after"), "nothing is above this lane")
        in_force: dict[Path, object] = {
            **{(field,): getattr(bounds, field) for field in _OF_ALL},
            **{("lanes", lane, "deadline"): deadline_s for lane, deadline_s in deadlines_s.items()},
            **{("lanes", lane, "age_after"): age_s for lane, age_s in bounds.age_after_s.items()},
            ("shed", "memory"): bounds.shed_memory_bytes,
            ("shed", "loop_lag"): bounds.shed_loop_lag_s,
        }
        for name, other in sets.items():
            for path, value in other.of_all():
                if value != in_force.get(path):
                    document.complain((name, *path), "concerns all calls at once: only the set `default` can say it")
    holding = {
        name: Holding(
            keepalive_after_s=one.entry.keepalive_after,
            interim=None if one.entry.interim == "off" else int(one.entry.interim),
            reserve_percent=one.entry.reserve_percent,
            prefer_primary_for_s=every_lane(_given_s(one, "prefer_primary_for"), Holding().prefer_primary_for_s),
        )
        for name, one in sets.items()
    }
    return QueuePolicies(
        holding, bounds, deadlines_s, waits_as_clients="interactive" not in _given_s(first, "deadline")
    )


def _set(document: Document | None, name: str, entry: QueueSet) -> _Set:
    if document is None:
        return _Set(entry, {}, ShedEntry())
    lanes: dict[Lane, LaneEntry] = {}
    path: Path = (name, "lanes")
    value = document.at(path)
    if isinstance(value, dict) and check(QUEUE_LANES, document, path) is not None:
        found = {lane: check(LaneEntry, document, (*path, lane)) for lane in LANES if value.get(lane)}
        lanes = {lane: one for lane, one in found.items() if one is not None}
    shed = check(ShedEntry, document, (name, "shed")) if entry.shed else None
    return _Set(entry, lanes, shed or ShedEntry())


def _bounds(one: _Set) -> QueueBounds:
    entry = one.entry
    return QueueBounds(
        max_calls=entry.max_calls,
        max_bytes=entry.max_bytes,
        max_percent_per_tenant=entry.max_percent_per_tenant,
        age_after_s={**QueueBounds().age_after_s, **_given_s(one, "age_after")},
        aged_percent=entry.aged_percent,
        shed_memory_bytes=one.shed.memory,
        shed_loop_lag_s=one.shed.loop_lag,
    )


def _given_s(one: _Set, field: str) -> dict[Lane, float]:
    return {lane: value for lane, entry in one.lanes.items() if (value := getattr(entry, field)) is not None}
