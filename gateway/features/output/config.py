"""The rules for the answers of models: `models.NAME.output`, with the schemas' files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from gateway.core.config.fields import Amount, Text, Whole
from gateway.core.config.schema import Entry, check, check_part
from gateway.core.config.source import Document, Path, did_you_mean
from gateway.core.snapshot import Model
from gateway.features.output.rules import MOST_RETRIES, AtLast, OutputRule, StreamRule
from gateway.features.output.schema import (
    MOST_BYTES,
    NOT_INSTALLED,
    OutputSchema,
    SchemaUnusable,
    compile_schema,
    is_installed,
)

REQUEST = "request"
"""The word in place of a file: the schema that the request itself names."""


class OnInvalidEntry(Entry):
    """What is done about an answer that breaks its schema."""

    retry: Annotated[Whole, Field(le=MOST_RETRIES)] = 0
    repair_with: Text | None = None
    then: Literal["fail", "pass"] = "fail"


class OutputEntry(Entry):
    """What the answers of a model have to be."""

    schema_: Text = Field(alias="schema")
    on_invalid: dict[str, Any] | None = None
    max_usd: Amount | None = None
    stream: StreamRule = "relay"


class CompiledOutput(NamedTuple):
    """A rule, and the file that it was read from."""

    rule: OutputRule
    file: tuple[str, bytes] | None = None
    """Its path, and the digest of what it holds; None: there is none."""


def check_output(document: Document, name: str, value: object, models: object) -> CompiledOutput | None:
    """Returns the rule of a model, `value` being what its entry has; None: it has none, or none that can be used."""
    path: Path = ("models", name, "output")
    if value is None:
        return None
    entry = check(OutputEntry, document, path)
    on_invalid = check_part(OnInvalidEntry, document, (*path, "on_invalid"))
    if entry is None:
        return None
    if not is_installed():
        document.complain(path, NOT_INSTALLED)
        return None
    helper = on_invalid.repair_with
    if helper is not None and isinstance(models, dict) and helper not in models:
        shown = document.show((*path, "on_invalid", "repair_with"), helper)
        suggestion = "" if document.origin_of((*path, "on_invalid", "repair_with")) else did_you_mean(helper, models)
        document.complain((*path, "on_invalid", "repair_with"), f"no model {shown}{suggestion}")
    schema, file = None, None
    if entry.schema_ == REQUEST:
        compile_schema(b"true")  # the library is loaded now, and not while a call waits
    else:
        place = str(FilePath(document.file).parent / entry.schema_)
        schema = _read_schema(document, (*path, "schema"), entry.schema_, place)
        if schema is None:
            return None
        file = place, schema.digest
    at_last: AtLast = on_invalid.then
    rule = OutputRule(schema, on_invalid.retry, helper, at_last, entry.max_usd, entry.stream)
    return CompiledOutput(rule, file)


def output_notices(models: Iterable[Model]) -> Iterator[str]:
    """Yields what rules cannot do: bound the money of what has no price."""
    for model in models:
        if model.output is None or model.output.max_usd is None:
            continue
        unpriced = [one.name for one in model.plan if one.model is not None and one.find_rates(one.model) is None]
        if unpriced:
            yield f"models.{model.name}.output.max_usd bounds nothing at targets without a price: {', '.join(unpriced)}"


def _read_schema(document: Document, path: Path, name: str, place: str) -> OutputSchema | None:
    try:
        with open(place, "rb") as file:
            source = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or "it has no such name"
        document.complain(path, f"the file {document.show(path, name)} cannot be read: {reason}")
        return None
    try:
        return compile_schema(source)
    except SchemaUnusable as error:
        document.complain(path, f"the schema in {document.show(path, name)} cannot be used: {error}")
        return None
