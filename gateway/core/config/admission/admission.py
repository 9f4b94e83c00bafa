"""Reads `admission.yaml`: the rules by which each kind of provider counts, and the kind of a provider.

The built-in rules are those that providers document or show in their answers. Keep them in step with
policies/admission.yaml, which spells them out with their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, get_args
from urllib.parse import urlsplit

from gateway.core.config.fields.check import check, check_sets
from gateway.core.config.prices import tokenizers
from gateway.core.config.schema import AdmissionSet, CountingEntry, Kind, ProviderEntry, Windows
from gateway.core.config.source.problems import Document, Path, did_you_mean
from gateway.core.limits.headers.provider_headers import provider_of
from gateway.core.limits.table.rules import AZURE, CONTINUOUS, ChargeRule, Style
from gateway.core.snapshot.snapshot.provider import LimitsAre, Provider
from gateway.core.snapshot.snapshot.snapshot import Counting
from gateway.core.types.words import EMULATOR

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
WINDOWS: Final[Mapping[Windows, Style]] = {
    "continuous": CONTINUOUS,
    "minute": Style(request_window_s=60.0, token_window_s=60.0),
    "azure": AZURE,
}
FindTokenizer = Callable[[str], Callable[[str], int] | None]


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
# Hosts that `provider_headers` does not list: their headers need no reading of their own, but they count and fail in theirs.
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


def windows_of(style: Style) -> str:
    """Returns the name of a style in admission.yaml."""
    return next(name for name, known in WINDOWS.items() if known == style)


def read_admission(document: Document | None) -> dict[str, AdmissionRules]:
    """Reads every set of admission.yaml; None: the file does not exist."""
    sets = check_sets(AdmissionSet, document)
    for name, entry in sets.items():
        if document is not None and entry.tokenizer == "exact" and not tokenizers.is_installed():
            document.complain((name, "tokenizer"), tokenizers.NOT_INSTALLED)
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
    said = document.at(path) if document is not None else None
    if document is None or not isinstance(said, dict):
        return dict(BUILT_IN_RULES)
    for name in said:
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
