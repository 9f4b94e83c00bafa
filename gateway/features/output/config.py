"""The rules for the answers of models: `models.NAME.output`, with the schemas' files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from gateway.admin.describe import shown
from gateway.core.config.fields import Amount, Section, Text, Whole
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings
from gateway.core.config.schema import Entry, ModelEntry, check, check_part
from gateway.core.config.source import Document, Path, did_you_mean
from gateway.core.snapshot import CHECKS_ANSWERS, ExplainedRequest, Model, PolicySnapshot
from gateway.drivers.json_schema import (
    MOST_BYTES,
    NOT_INSTALLED,
    JsonSchema,
    SchemaUnusable,
    compile_schema,
    is_installed,
)
from gateway.features.output.rules import CHECKED, MOST_RETRIES, OUTPUT, AtLast, OutputRule, StreamRule

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


class OutputSection(SectionSpec):
    """`output` of a model."""

    of_model: ClassVar[EntryField[dict[str, Any] | None]] = EntryField(
        "output", Section | None, None, after="group_embeddings"
    )
    model_fields = (of_model,)
    explain_order = 2

    def read_model(self, reading: ConfigReading, name: str, entry: ModelEntry) -> Settings:
        if self.of_model.of(entry) is None:
            return {}
        rule = read_output(reading, name)
        return {OUTPUT: rule, CHECKS_ANSWERS: rule is not None}

    def answer_parts(self, model: Model) -> list[str]:
        rule = OUTPUT.of(model)
        return [] if rule is None else [rule.digest.hex()]

    def notices(self, reading: ConfigReading, snapshot: PolicySnapshot) -> Iterator[str]:
        return output_notices(reading.built.values())

    def describe_model(self, model: Model, shown: dict[str, Any]) -> dict[str, Any]:
        return {**shown, "output": _shown(OUTPUT.of(model))}

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        rule = OUTPUT.of(request.model)
        if rule is not None and request.endpoint.name in CHECKED:
            yield f"output    {_explained(rule, is_stream=request.is_stream)}"


def _explained(rule: OutputRule, *, is_stream: bool) -> str:
    """Returns in words what an answer has to be, and what is done about one that is not."""
    parts = [
        "keeps the schema that the request names, if it does"
        if rule.schema is None
        else "keeps the schema of its model"
    ]
    if is_stream and rule.stream == "relay":
        return f"{parts[0]}: a stream is relayed, and only counted as valid or not"
    if rule.retry:
        parts.append(f"asked for again up to {rule.retry} times")
    if rule.repair_with is not None:
        parts.append(f"repaired by {rule.repair_with}")
    if rule.max_usd is not None:
        parts.append(f"for at most ${rule.max_usd:g}")
    parts.append("else 502 output_invalid" if rule.at_last == "fail" else "else given as it is")
    return ", ".join(parts) + ("; held back until then" if is_stream else "")


def _shown(rule: OutputRule | None) -> dict[str, Any] | None:
    """Returns what answers have to be; a schema by the first digits of its SHA-256."""
    if rule is None:
        return None
    return shown(rule, schema="request" if rule.schema is None else rule.schema.digest.hex()[:12])


def read_output(reading: ConfigReading, name: str) -> OutputRule | None:
    """Returns the rule of a model that has one; None: none that can be used."""
    document, models = reading.document, reading.config.models
    path: Path = ("models", name, "output")
    entry = check(OutputEntry, document, path)
    on_invalid = check_part(OnInvalidEntry, document, (*path, "on_invalid"))
    if entry is None:
        return None
    if not is_installed():
        document.complain(path, NOT_INSTALLED)
        return None
    helper = on_invalid.repair_with
    if helper is not None and helper not in models:
        shown = document.show((*path, "on_invalid", "repair_with"), helper)
        suggestion = "" if document.origin_of((*path, "on_invalid", "repair_with")) else did_you_mean(helper, models)
        document.complain((*path, "on_invalid", "repair_with"), f"no model {shown}{suggestion}")
    schema = None
    if entry.schema_ == REQUEST:
        compile_schema(b"true")  # the library is loaded now, and not while a call waits
    else:
        place = str(FilePath(document.file).parent / entry.schema_)
        schema = _read_schema(document, (*path, "schema"), entry.schema_, place)
        if schema is None:
            return None
        reading.files[place] = schema.digest
    at_last: AtLast = on_invalid.then
    return OutputRule(schema, on_invalid.retry, helper, at_last, entry.max_usd, entry.stream)


def output_notices(models: Iterable[Model]) -> Iterator[str]:
    """Yields what rules cannot do: bound the money of what has no price."""
    for model in models:
        rule = OUTPUT.of(model)
        if rule is None or rule.max_usd is None:
            continue
        unpriced = [one.name for one in model.plan if one.model is not None and one.find_rates(one.model) is None]
        if unpriced:
            yield f"models.{model.name}.output.max_usd bounds nothing at targets without a price: {', '.join(unpriced)}"


def _read_schema(document: Document, path: Path, name: str, place: str) -> JsonSchema | None:
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
