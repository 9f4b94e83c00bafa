"""Reads `models.yaml`: what conversions have to know of models. The built-in file is of the same form, and goes first."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any, Final, Literal

from pydantic import Field

from gateway.core.config.error_tables import built_in_folder
from gateway.core.config.fields.check import check
from gateway.core.config.fields.fields import Count, Flag, Text
from gateway.core.config.schema import Entry
from gateway.core.config.source import Document, Problem, quoted, read_document
from gateway.dialects.known import ModelTable, Row, in_order

MODELS: Final = "models.yaml"
MOST_ROWS: Final = 500


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
                rows[pattern] = _named_fields(entry)
    if len(rows) > MOST_ROWS:
        document.complain((), f"has {len(rows)} rows, of which a file takes {MOST_ROWS}")
    return rows


def _named_fields(entry: ModelFactsEntry) -> dict[str, Any]:
    """Returns the fields that the row names, as `ModelFacts` has them."""
    named = {name: getattr(entry, name) for name in entry.model_fields_set}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in named.items()}
