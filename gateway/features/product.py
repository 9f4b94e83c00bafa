"""The base of a product that is a folder and a line: what it reads of a config, does for calls, counts and shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from gateway.core.call import CallFeature, CallRoute
from gateway.core.config.product_sections import SectionSpec
from gateway.core.metrics import MetricTable
from gateway.core.pipeline import Pipeline


class Product(CallFeature):
    """One product, listed in `gateway/product_list.py`. One per process; what it does not override is empty."""

    name: str = ""
    """The name by which operators know it."""
    options: frozenset[bytes] = frozenset()
    section: ClassVar[SectionSpec] = SectionSpec()
    """What it reads of a config."""

    def __init__(self, pipeline: Pipeline) -> None:
        """A product that waits, counts tokens or makes calls takes the clock and other parts of the pipeline."""
        self.metrics: MetricTable = MetricTable()

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns its feature for calls of this route that bring the headers `requested`; None: it does nothing for them."""
        return None

    def views(self) -> Mapping[str, Callable[[], Any]]:
        """Returns what operators see as JSON at `/admin/<name>`, by these names."""
        return {}
