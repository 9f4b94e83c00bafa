"""Reads `group_embeddings` of a model: which of its calls go to their provider together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from gateway.admin.describe import plain
from gateway.core.config.fields import Count, PositiveDuration, Section
from gateway.core.config.product_sections import (
    ConfigReading,
    EntryField,
    ModelReading,
    SectionSpec,
    Settings,
    placed_after,
)
from gateway.core.config.schema import Entry, ModelEntry, check
from gateway.core.snapshot import ExplainedRequest, Model
from gateway.features.grouping.rules import GROUPING, RESULTS, GroupRules


class GroupEntry(Entry):
    """Which calls of a model for embeddings or moderations go to its provider together."""

    window: PositiveDuration = GroupRules().window_s
    most: Count = GroupRules().most


class GroupingSection(SectionSpec):
    """`group_embeddings` of a model."""

    of_model: ClassVar[EntryField[dict[str, Any] | None]] = EntryField(
        "group_embeddings", Section | None, None, after="jobs"
    )
    model_fields = (of_model,)
    explain_order = 1

    def read_model(self, reading: ConfigReading, name: str, entry: ModelEntry) -> Settings:
        if self.of_model.of(entry) is None:
            return {}
        group = check(GroupEntry, reading.document, ("models", name, "group_embeddings"))
        return {} if group is None else {GROUPING: GroupRules(group.window, group.most)}

    def check_model(self, reading: ConfigReading, model: ModelReading) -> None:
        """Notes groups of a model whose targets have neither of the endpoints."""
        if GROUPING.of(model) is not None:
            pairs = zip(model.why_never("embeddings"), model.why_never("moderations"), strict=True)
            whys = [embeddings and moderations for embeddings, moderations in pairs]
            if whys and all(whys):
                problem = f"no target of the model has embeddings, or moderations: {whys[0]}"
                reading.document.complain(("models", model.name, "group_embeddings"), problem)

    def describe_model(self, model: Model, shown: dict[str, Any]) -> dict[str, Any]:
        return placed_after(["context_fallbacks"], shown, grouping=plain(GROUPING.of(model)))

    def explain(self, request: ExplainedRequest) -> Iterator[str]:
        """Yields which calls go to their provider together."""
        grouping = GROUPING.of(request.model)
        if grouping is not None and request.endpoint.name in RESULTS:
            shown = f"{grouping.most} inputs, or {grouping.window_s * 1000:g} ms"
            yield f"grouped   with calls that differ in their inputs only: up to {shown}"
