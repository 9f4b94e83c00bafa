"""What products read of a config, in the order in which it is read: one line for each.

A product that is not here has a stand-in, which refuses what is only for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Final, NamedTuple

from gateway.core.config.product_sections import NotInstalled, Sections, SectionSpec
from gateway.installed import is_installed
from gateway.own_products import OWN_PRODUCTS


class ProductSection(NamedTuple):
    """Where the section of a product is, and what of a config is only for this product."""

    package: str
    section: str
    """A class of its module `config`."""
    file_keys: Sequence[str] = ()
    key_keys: Sequence[str] = ()
    model_keys: Sequence[str] = ()
    policy_files: Sequence[str] = ()
    policy_folders: Sequence[str] = ()


PRODUCT_SECTIONS: Final = (
    ProductSection("gateway.admin", "NoticesSection"),
    ProductSection("gateway.drivers", "StateSection", file_keys=["state"]),
    ProductSection("gateway.credentials", "CredentialsSection"),
    ProductSection("gateway.products.realtime", "RealtimeSection"),
    ProductSection("gateway.features.reuse", "CacheSection", model_keys=["cache"], policy_files=["cache.yaml"]),
    ProductSection("gateway.features.grouping", "GroupingSection", model_keys=["group_embeddings"]),
    ProductSection("gateway.products.pipelines", "PipelinesSection", policy_folders=["pipelines"]),
    ProductSection("gateway.features.output", "OutputSection", model_keys=["output"]),
    ProductSection("gateway.features.degrade", "DegradeSection", model_keys=["degrade"]),
    ProductSection("gateway.features.ownership", "ObjectsSection", file_keys=["objects"]),
    ProductSection(
        "gateway.products.jobs",
        "JobsSection",
        file_keys=["jobs"],
        key_keys=["accepts_202"],
        model_keys=["jobs"],
        policy_files=["jobs.yaml"],
    ),
    ProductSection("gateway.products.responses", "ResponsesSection", key_keys=["keeps_responses"]),
    ProductSection("gateway.features.runs", "WorkflowsSection", key_keys=["workflow"], policy_files=["workflows.yaml"]),
    ProductSection(
        "gateway.products.jobs.webhooks",
        "WebhooksSection",
        file_keys=["webhooks", "webhook_settings"],
        key_keys=["webhook_secrets"],
    ),
    ProductSection("gateway.dialects", "ModelsSection", policy_files=["models.yaml"]),
)


def section_of(product: ProductSection) -> SectionSpec:
    """Returns the section of a product; of one that is not here, what refuses whatever is only for it."""
    if not is_installed(product.package):
        name = product.package.rpartition(".")[2]
        return NotInstalled(
            name,
            file=product.file_keys,
            key=product.key_keys,
            model=product.model_keys,
            policies=product.policy_files,
            folders=product.policy_folders,
        )
    section = getattr(import_module(f"{product.package}.config"), product.section)()
    assert isinstance(section, SectionSpec), product.package  # noqa: S101  # the line above is wrong
    return section


SECTIONS: Final[Sections] = (*map(section_of, PRODUCT_SECTIONS), *(product.section for product in OWN_PRODUCTS))
