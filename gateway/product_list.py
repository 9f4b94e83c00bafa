"""The products: one line for each, read from top to bottom as the order around a call, the outermost first.

    client -> pipelines · jobs · responses · counts · steps · runs · ownership · reuse · repeats · degrade · background · output
    · grouping -> provider

A product that gives a route no feature is not in the way of its calls. In this order their sections of a config are read, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from gateway.core.call import CallProduct
from gateway.core.clock import Clock
from gateway.core.config.product_sections import SectionSpec
from gateway.core.pipeline import Pipeline
from gateway.features.product import Product
from gateway.features.single_flight import SingleFlight
from gateway.installed import is_installed
from gateway.stores import OpenedStore

# One that is not here is left out.
if is_installed("gateway.dialects.message_ids"):
    from gateway.dialects.message_ids import MessageIds
if is_installed("gateway.dialects.count_tokens"):
    from gateway.dialects.count_tokens import TokenCounts
if is_installed("gateway.features.ownership"):
    from gateway.features.ownership.service import Ownership
if is_installed("gateway.features.reuse"):
    from gateway.features.reuse.service import Replays
if is_installed("gateway.features.runs"):
    from gateway.features.runs.steps import StepCalls
    from gateway.features.runs.table import RunBudget, RunTable
if is_installed("gateway.features.sdk_retries"):
    from gateway.features.sdk_retries import RepeatedCalls
if is_installed("gateway.features.degrade"):
    from gateway.features.degrade.service import SlowModels
if is_installed("gateway.features.background_charges"):
    from gateway.features.background_charges import Deferred
if is_installed("gateway.features.output"):
    from gateway.features.output.service import Outputs
if is_installed("gateway.features.grouping"):
    from gateway.features.grouping.service import Groups
if is_installed("gateway.products.jobs"):
    from gateway.products.durable import DurableWork, UnservedWork

T = TypeVar("T")


class Core:
    """What the products around calls are made of."""

    def __init__(
        self,
        pipeline: Pipeline,
        opened: OpenedStore,
        *,
        kept_clock: Clock | None = None,
        runs: RunTable | None = None,
        durable: DurableWork | UnservedWork | None = None,
    ) -> None:
        """`kept_clock` is the clock by which answers grow old, that of the store; absent: the pipeline's.

        `runs` is where runs are counted; absent: they are not. Without `durable` work no call waits for any.
        """
        self.pipeline = pipeline
        self.clock, self.kept_clock = pipeline.clock, kept_clock or pipeline.clock
        self.admission, self.accounts, self.attempts = pipeline.admission, pipeline.accounts, pipeline.attempts
        self.store, self.objects = opened.store, opened.objects
        self.runs, self.durable = runs, durable
        self.single_flight = SingleFlight(self.kept_clock, self.accounts)
        """Where equal calls, and repeated ones, share an answer."""


class ProductLine(NamedTuple):
    """Where a product is, what of it takes part in calls, and what of a config is only for it."""

    package: str
    """Its package or module: where it is not here, the line does nothing, and what of a config is for it is refused."""
    section: str | SectionSpec = ""
    """What it reads of a config: a class of its module `config`, or itself; empty: nothing."""
    make: Callable[[Core], CallProduct | None] | None = None
    """Makes what takes part in calls; None: nothing does."""
    file_keys: Sequence[str] = ()
    key_keys: Sequence[str] = ()
    model_keys: Sequence[str] = ()
    policy_files: Sequence[str] = ()
    policy_folders: Sequence[str] = ()

    @classmethod
    def of(cls, product: type[Product]) -> ProductLine:
        """Returns the line of a product that is one class."""
        return cls(product.__module__, product.section, lambda core: product(core.pipeline))


PRODUCTS: Final = (
    # Models of pipelines are answered by jobs, not by a provider.
    ProductLine(
        "gateway.products.pipelines",
        "PipelinesSection",
        lambda core: None if core.durable is None else core.durable.pipeline_answers(),
        policy_folders=["pipelines"],
    ),
    # Calls that become jobs go no further in.
    ProductLine(
        "gateway.products.jobs",
        "JobsSection",
        lambda core: None if core.durable is None else core.durable.async_answers(),
        file_keys=["jobs"],
        key_keys=["accepts_202"],
        model_keys=["jobs"],
        policy_files=["jobs.yaml"],
    ),
    ProductLine(
        "gateway.products.responses",
        "ResponsesSection",
        lambda core: None if core.durable is None else core.durable.response_endpoint(),
        key_keys=["keeps_responses"],
    ),
    # It names the request in the answers to callers of Messages.
    ProductLine("gateway.dialects.message_ids", make=lambda _core: MessageIds()),
    # It answers questions for the tokens of a request, without a generation.
    ProductLine(
        "gateway.dialects.count_tokens", make=lambda core: TokenCounts(core.clock, core.admission, core.accounts)
    ),
    # The stored answer of a step that has run already costs nothing: it is looked for before the run's budget is.
    ProductLine(
        "gateway.features.runs",
        "WorkflowsSection",
        lambda core: StepCalls(core.kept_clock, core.accounts, core.store),
        key_keys=["workflow"],
        policy_files=["workflows.yaml"],
    ),
    ProductLine(
        "gateway.features.runs",
        make=lambda core: None if core.runs is None else RunBudget(core.runs, core.admission.costs),
    ),
    # What is another tenant's is refused also where an answer is stored.
    ProductLine(
        "gateway.features.ownership",
        "ObjectsSection",
        lambda core: None if core.objects is None else Ownership(core.objects),
        file_keys=["objects"],
    ),
    ProductLine(
        "gateway.features.reuse",
        "CacheSection",
        lambda core: Replays(core.kept_clock, core.accounts, core.store, core.single_flight),
        model_keys=["cache"],
        policy_files=["cache.yaml"],
    ),
    ProductLine(
        "gateway.features.sdk_retries",
        make=lambda core: RepeatedCalls(core.clock, core.accounts, core.single_flight),
    ),
    # Caches have seen the call as its client sent it.
    ProductLine(
        "gateway.features.degrade",
        "DegradeSection",
        lambda core: SlowModels(core.clock, core.admission.gates),
        model_keys=["degrade"],
    ),
    ProductLine("gateway.features.background_charges", make=lambda core: Deferred(core.admission)),
    ProductLine(
        "gateway.features.output",
        "OutputSection",
        lambda core: Outputs(core.clock, core.pipeline.meter, core.admission, core.attempts, core.pipeline.watch),
        model_keys=["output"],
    ),
    ProductLine(
        "gateway.features.grouping",
        "GroupingSection",
        lambda core: Groups(core.clock, core.admission, core.attempts),
        model_keys=["group_embeddings"],
    ),
    # Those below take no part in calls: they only read something of a config.
    ProductLine("gateway.admin", "NoticesSection"),
    ProductLine("gateway.drivers", "StateSection", file_keys=["state"]),
    ProductLine("gateway.credentials", "CredentialsSection"),
    ProductLine("gateway.products.realtime", "RealtimeSection"),
    ProductLine(
        "gateway.products.jobs.webhooks",
        "WebhooksSection",
        file_keys=["webhooks", "webhook_settings"],
        key_keys=["webhook_secrets"],
    ),
    ProductLine("gateway.dialects", "ModelsSection", policy_files=["models.yaml"]),
)


def install_products(core: Core) -> tuple[CallProduct, ...]:
    """Makes the products around calls and installs them in the pipeline; returns them, the outermost first."""
    made = [line.make(core) for line in PRODUCTS if line.make is not None and is_installed(line.package)]
    products = tuple(product for product in made if product is not None)
    core.pipeline.install(products)
    return products


def find_product(products: Sequence[CallProduct], kind: type[T]) -> T | None:
    """Returns the product of this class; None: it is not there."""
    return next((product for product in products if isinstance(product, kind)), None)
