"""Reads `models.yaml`, what conversions have to know of models, and says what the targets of a config speak.

The built-in file is of the same form, and goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final, Literal

from pydantic import Field

from gateway.core.config.error_tables import built_in_folder
from gateway.core.config.fields import Count, Flag, Text
from gateway.core.config.product_sections import ConfigReading, SectionSpec, Settings
from gateway.core.config.schema import Entry, check
from gateway.core.config.source import Document, Problem, quoted, read_document
from gateway.core.snapshot import HasSettings, PolicySnapshot, Provider, Setting, Target, with_settings
from gateway.core.types import THINKING, Conversions, FindUnsupportedFields, Upstream
from gateway.dialects import addresses
from gateway.dialects.known import ListedModels, ModelTable, Row, in_order
from gateway.dialects.price_list import price_finder
from gateway.dialects.target_languages import TargetLanguages, gaps_by_endpoint, languages_of, why_never
from gateway.dialects.tokenizers import load_tokenizers

MODELS: Final = "models.yaml"
MOST_ROWS: Final = 500
THINKING_BYTES: Final = 32 * 1024 * 1024
"""The room in the store for what turns were signed with."""


class ModelFactsEntry(Entry):
    """One row of models.yaml. Keep the defaults in step with `dialects.base.ModelFacts`."""

    max_output: Count | None = None
    max_input: Count | None = None
    reads: list[Literal["image", "pdf", "audio", "video"]] | None = None
    sampling: Flag = True
    stops: Flag = True
    thinking: Literal["none", "budget", "adaptive", "level"] = "none"
    efforts: list[Text] = Field(default_factory=list)
    thinking_off: Literal["disabled", "between_tools", "never"] = "disabled"
    thinks_unasked: Flag = False
    binds_thinking: Flag = False
    forced_tools: Flag = True
    json_schema: Flag = False
    tools_with_schema: Flag = True
    later_system: Flag = False
    logprobs: Flag = False
    cache_marks: Flag = False
    own_fields: Literal["none", "anthropic", "nova", "openai", "qwen", "xai"] = "none"
    caches: list[Literal["tools", "system", "messages"]] = Field(default_factory=list)
    beside_results: list[Literal["text", "image", "document"]] = Field(default=["text", "image", "document"])
    in_results: list[Literal["text", "image", "document"]] = Field(default=["image"])
    json_results: Flag = False
    embeds: Literal["none", "cohere", "gemini", "nova", "titan"] = "none"


def read_models(document: Document | None) -> ModelTable:
    """Returns the table with the rows of the user's file (None: there is none) behind the built-in ones; notes problems."""
    own = in_order(_rows(document)) if document is not None else []
    return ModelTable(lambda: _built_in(built_in_folder().parent / MODELS), own)


@lru_cache(maxsize=1)
def _built_in(file: FilePath) -> tuple[Row, ...]:
    """Reads the built-in file; raises RuntimeError where it is missing or bad, because then the installation is broken."""
    problems: list[Problem] = []
    document = read_document(file, problems)
    rows = in_order(_rows(document)) if document is not None else []
    if problems:
        raise RuntimeError(f"the built-in table of models cannot be used: {problems[0]}")
    return tuple(rows)


def _rows(document: Document) -> dict[str, dict[str, Any]]:
    """Returns the sound rows of all groups by pattern, each with the fields that it names."""
    if not isinstance(document.data, dict):
        document.complain(
            (), f'expected groups such as `anthropic: {{"claude-*": {{…}}}}`, not {quoted(document.data)}'
        )
        return {}
    rows: dict[str, dict[str, Any]] = {}
    for group, members in document.data.items():
        if not isinstance(members, dict):
            document.complain(
                (group,), f'expected rows such as `"claude-*": {{max_output: 64000}}`, not {quoted(members)}'
            )
            continue
        for pattern in members:
            entry = check(ModelFactsEntry, document, (group, pattern))
            if entry is not None:
                named = {name: getattr(entry, name) for name in entry.model_fields_set}
                rows[pattern] = {
                    name: tuple(value) if isinstance(value, list) else value for name, value in named.items()
                }
    if len(rows) > MOST_ROWS:
        document.complain((), f"has {len(rows)} rows, of which a file takes {MOST_ROWS}")
    return rows


MODEL_TABLE: Final[Setting[ModelTable]] = Setting("models", ModelTable(lambda: ()))
"""What is known of models, while a config is loaded; no snapshot has it."""


class ModelsSection(SectionSpec):
    """The file models.yaml."""

    policy_files = (MODELS,)

    def read_policies(self, documents: Mapping[str, Document], beside: FilePath) -> Settings:
        return {MODEL_TABLE: read_models(documents.get(MODELS))}

    def finish(self, reading: ConfigReading, snapshot: PolicySnapshot) -> PolicySnapshot:
        """Makes room in the store for what turns were signed with, where calls are converted."""
        snapshot = with_settings(snapshot, {MODEL_TABLE: MODEL_TABLE.default})
        if not any(one.remembers_thinking and any(map(_is_anothers, one.plan)) for one in reading.built.values()):
            return snapshot
        answers = {**snapshot.store.answers, THINKING: THINKING_BYTES}
        return replace(snapshot, store=replace(snapshot.store, answers=answers))


def _is_anothers(target: Target) -> bool:
    """Returns whether the target's language is none of OpenAI's, so that something has to be known of its model."""
    return target.find_most_input is not None


# --- what targets speak ---

Convert = Callable[[Upstream, TargetLanguages, str], Conversions | None]
"""Returns what puts calls into another language for a server that speaks these; None: it speaks all.

The last argument names the server and its model, for what is learned of it."""


def as_it_is(_upstream: Upstream, _languages: TargetLanguages, _place: str) -> None:
    """Converts nothing."""


@dataclass(frozen=True, slots=True)
class DialectLanguage:
    """What one target speaks, by the tables of the dialects."""

    languages: TargetLanguages
    model: str | None
    convert: Convert

    @property
    def speaks(self) -> frozenset[str] | None:
        return self.languages.speaks

    @property
    def gaps(self) -> Mapping[str, FindUnsupportedFields]:
        return gaps_by_endpoint(self.languages, self.model)

    @property
    def find_most_input(self) -> Callable[[str], int | None] | None:
        return self.languages.find_most_input if self.languages.has_own_language else None

    def why_never(self, endpoint: str) -> str | None:
        return why_never(endpoint, self.languages, self.model)

    def conversions(self, upstream: Upstream, place: str) -> Conversions | None:
        return self.convert(upstream, self.languages, place)


class DialectLanguages:
    """The languages of targets, by the tables of the dialects, models.yaml and what providers list; prices and tokenizers."""

    address_of = staticmethod(addresses.address_of)
    messages_address_of = staticmethod(addresses.messages_address_of)
    check_provider = staticmethod(addresses.check_provider)
    check_speaks = staticmethod(addresses.check_speaks)
    check_name = staticmethod(addresses.check_name)
    why_no_passthrough = staticmethod(addresses.why_no_passthrough)
    price_finder = staticmethod(price_finder)
    load_tokenizers = staticmethod(load_tokenizers)

    def __init__(self, convert: Convert = as_it_is, listed: ListedModels | None = None) -> None:
        """`convert` makes the conversions; `listed` are the models that providers list, None: none is asked."""
        self._convert = convert
        self._listed = listed

    def of(
        self,
        policies: HasSettings,
        provider: Provider,
        kind: str,
        declared: Sequence[str] | None,
        place: tuple[str, str | None],
        *,
        approximates: bool = False,
        sets: frozenset[str] = frozenset(),
        as_listed: bool = False,
    ) -> DialectLanguage:
        """Returns what a target speaks, with a model of this name."""
        name, model = place
        table = MODEL_TABLE.of(policies)
        if as_listed and self._listed is not None and provider.learns_models:
            table = table.for_provider(self._listed, provider.group)
        speaks = languages_of(provider.dialect, kind, declared)
        languages = TargetLanguages(
            *(kind, speaks, provider.dialect, table.of),
            approximates=approximates,
            sets=sets,
            find_sources=table.sources,
        ).at(name)
        return DialectLanguage(languages, model, self._convert)
