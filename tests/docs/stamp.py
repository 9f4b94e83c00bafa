"""Stamps answers: `stamp: TEXT` of a model adds `x-stamp: TEXT` to the answers to its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from gateway.core.call import Call, CallFeature, CallRecord, CallRoute, Headers
from gateway.core.config.product_sections import ConfigReading, EntryField, SectionSpec, Settings
from gateway.core.config.schema import ModelEntry
from gateway.core.metrics import Counts, MetricTable
from gateway.core.pipeline import Pipeline
from gateway.core.snapshot import Model, Setting
from gateway.features.product import Product

STAMP: Final[Setting[str]] = Setting("stamp", "")


class StampSection(SectionSpec):
    """`stamp` of a model."""

    of_model: ClassVar[EntryField[str]] = EntryField("stamp", str, "", after="output")
    model_fields = (of_model,)

    def read_model(self, reading: ConfigReading, name: str, entry: ModelEntry) -> Settings:
        stamp = self.of_model.of(entry)
        if not ((stamp.isascii() and stamp.replace(" ", "x").isalnum()) or not stamp):
            reading.document.complain(("models", name, "stamp"), "must be letters, digits and spaces")
        return {STAMP: stamp} if stamp else {}

    def describe_model(self, model: Model, shown: dict[str, Any]) -> dict[str, Any]:
        return {**shown, "stamp": STAMP.of(model)}


class StampMetrics(MetricTable):
    """What stamps count."""

    def __init__(self) -> None:
        self.stamped = Counts("stamped_calls_total", "Calls with a stamp, by how they ended.", "model", "outcome")


class Stamps(Product):
    """Stamps the answers to calls of models that have a stamp."""

    name = "stamp"
    section = StampSection()

    def __init__(self, pipeline: Pipeline) -> None:
        self.metrics: StampMetrics = StampMetrics()

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        return self if STAMP.of(route.model) else None

    def headers(self, call: Call, headers: Headers) -> None:
        headers.append((b"x-stamp", STAMP.of(call.route.model).encode()))

    def closed(self, record: CallRecord) -> Mapping[str, object]:
        self.metrics.stamped.totals[record.call.route.model.name, record.outcome] += 1
        return {"stamp": STAMP.of(record.call.route.model)}  # a field of its line in the call log

    def views(self) -> Mapping[str, Callable[[], Any]]:
        return {"stamps": self.show}

    def show(self) -> dict[str, Any]:
        """Returns what `GET /admin/stamps` shows."""
        totals = self.metrics.stamped.totals
        return {"stamped": [{"model": model, "outcome": how, "calls": n} for (model, how), n in totals.items()]}
