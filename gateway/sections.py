"""What products read of a config, in the order in which it is read: one entry for each, with the names that are its own.

A product that is not there leaves what refuses these names, so that nobody believes a config which nothing acts on.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final

from gateway.core.config.product_sections import NotInstalled, Sections, SectionSpec


def installed(
    package: str,
    section: str,
    *,
    file: Sequence[str] = (),
    key: Sequence[str] = (),
    model: Sequence[str] = (),
    policies: Sequence[str] = (),
) -> SectionSpec:
    """Returns the section of a product in a package below `gateway`; where there is no such package, what refuses its names."""
    name = f"gateway.{package}"
    try:
        made: SectionSpec = getattr(import_module(f"{name}.config"), section)()
    except ModuleNotFoundError as error:
        # Where a product is there and lacks something else, the error says more than that it is not installed.
        if error.name is None or not f"{name}.config.".startswith(f"{error.name}."):
            raise
        return NotInstalled(package.rpartition(".")[2], file=file, key=key, model=model, policies=policies)
    return made


SECTIONS: Final[Sections] = (
    installed("credentials", "CredentialsSection"),
    installed("products.realtime", "RealtimeSection"),
    installed("features.reuse", "CacheSection", model=["cache"], policies=["cache.yaml"]),
    installed("features.grouping", "GroupingSection", model=["group_embeddings"]),
    installed("products.pipelines", "PipelinesSection"),
    installed("features.output", "OutputSection", model=["output"]),
    installed("features.degrade", "DegradeSection", model=["degrade"]),
    installed("features.ownership", "ObjectsSection", file=["objects"]),
    installed(
        "products.jobs", "JobsSection", file=["jobs"], key=["accepts_202"], model=["jobs"], policies=["jobs.yaml"]
    ),
    installed("products.responses", "ResponsesSection", key=["keeps_responses"]),
    installed("features.runs", "WorkflowsSection", key=["workflow"], policies=["workflows.yaml"]),
    installed(
        "products.jobs.webhooks", "WebhooksSection", file=["webhooks", "webhook_settings"], key=["webhook_secrets"]
    ),
    installed("dialects", "ModelsSection", policies=["models.yaml"]),
)
