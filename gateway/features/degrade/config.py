"""Reads `degrade` of a model: when its calls ask for less, and for how much."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from gateway.core.config.fields import PositiveDuration, Section
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings
from gateway.core.config.schema import Entry, ModelEntry, check
from gateway.core.config.source import Document, Path, did_you_mean
from gateway.core.snapshot import ExplainedRequest
from gateway.features.degrade.rules import BOUNDS, DEGRADE, FIELDS_AT, SCALES, LatencyRules

FIELDS = (*SCALES, *BOUNDS)


class ModelDegradeEntry(Entry):
    """`degrade` of a model. Nothing of it has a default."""

    when: Section = Field(default_factory=dict)
    set: Section = Field(default_factory=dict)


class SlowEntry(Entry):
    """When a model is slow."""

    first_byte_p95_above: PositiveDuration | None = None


class DegradeSection(SectionSpec):
    """`degrade` of a model."""

    of_model: ClassVar[EntryField[dict[str, Any] | None]] = EntryField("degrade", Section | None, None, after="output")
    model_fields = (of_model,)
    explain_order = -2

    def read_model(self, reading: ConfigReading, name: str, entry: ModelEntry) -> Settings:
        if self.of_model.of(entry) is None:
            return {}
        return {DEGRADE: read_degrade(reading.document, name)}

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        """Yields when calls ask for less, and for how much."""
        degrade = DEGRADE.of(request.model)
        if degrade is not None and request.endpoint.name in FIELDS_AT:
            less = ", ".join(f"{name} {value}" for name, value in degrade.set.items())
            yield f"degrade   asks for {less} while 5 % of first bytes take longer than {degrade.first_byte_p95_above_s:g} s"


def read_degrade(document: Document, name: str) -> LatencyRules | None:
    """Reads what is said of a model; None: nothing that can be used."""
    path: Path = "models", name, "degrade"
    entry = check(ModelDegradeEntry, document, path)
    slow = check(SlowEntry, document, (*path, "when"))
    if entry is None or slow is None:
        return None
    if slow.first_byte_p95_above is None:
        document.complain((*path, "when"), "needs first_byte_p95_above, such as 10s")
    if not entry.set:
        document.complain((*path, "set"), "names no field: say for example {max_completion_tokens: 512}")
    for field, value in entry.set.items():
        _check_field(document, (*path, "set", field), field, value)
    return LatencyRules(slow.first_byte_p95_above or 0.0, entry.set)


def _check_field(document: Document, path: Path, field: str, value: Any) -> None:
    if field in SCALES:
        if value not in SCALES[field]:
            document.complain(path, f"must be one of {', '.join(SCALES[field])}{did_you_mean(value, SCALES[field])}")
    elif field in BOUNDS:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 10**9:
            document.complain(path, "must be a number of tokens, 1 or more")
    else:
        document.complain(path, f"cannot be lowered{did_you_mean(field, FIELDS)}")
