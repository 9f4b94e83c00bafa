"""The products that take part in calls, in the order in which they stand around one: the first is the outermost.

    client -> counts · steps · runs · ownership · reuse · repeats · degrade · background · output · grouping -> provider

A product that gives a route no feature is not in the way of its calls.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.core.call import CallProduct
from gateway.core.clock import Clock
from gateway.core.pipeline import Pipeline
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


@dataclass(frozen=True, slots=True)
class CallProducts:
    """The products around a call, the outermost first; None: it is not here."""

    message_ids: MessageIds | None
    """Names the request in the answers to callers of Messages."""
    counts: TokenCounts | None
    """Answers questions for the tokens of a request, without a generation."""
    steps: StepCalls | None
    """Gives the stored answer of a step that has run already: it costs nothing, so it is looked for before all else."""
    runs: RunBudget | None
    """Keeps runs within their budgets; None: runs are not counted."""
    ownership: Ownership | None
    """Refuses what is another tenant's, also where an answer is stored."""
    replays: Replays | None
    """Gives stored answers, and shares those in the making."""
    repeated: RepeatedCalls | None
    """Lets an SDK's retry share the answer of the call that it repeats."""
    slow_models: SlowModels | None
    """Lowers what calls to a slow model ask for; caches have seen the call as its client sent it."""
    deferred: Deferred | None
    """Charges responses that end later."""
    outputs: Outputs | None
    """Checks answers against their schema, and asks again."""
    groups: Groups | None
    """Sends calls together."""

    def in_order(self) -> tuple[CallProduct, ...]:
        """Returns them, the outermost first."""
        return tuple(product for name in self.__slots__ if (product := getattr(self, name)) is not None)


def install_products(
    pipeline: Pipeline,
    opened: OpenedStore,
    *,
    kept_clock: Clock | None = None,
    runs: RunTable | None = None,
) -> CallProducts:
    """Makes the products and installs them in the pipeline.

    `kept_clock` is the clock by which answers grow old, that of the store; absent: the pipeline's. `runs` is where runs are
    counted; absent: they are not.
    """
    clock, admission, accounts, store = pipeline.clock, pipeline.admission, pipeline.accounts, opened.store
    kept_clock = clock if kept_clock is None else kept_clock
    replays = Replays(kept_clock, accounts, store) if is_installed("gateway.features.reuse") else None
    products = CallProducts(
        message_ids=MessageIds() if is_installed("gateway.dialects.message_ids") else None,
        counts=TokenCounts(clock, admission, accounts) if is_installed("gateway.dialects.count_tokens") else None,
        steps=StepCalls(kept_clock, accounts, store) if is_installed("gateway.features.runs") else None,
        runs=None if runs is None else RunBudget(runs, admission.costs),
        ownership=None if opened.objects is None else Ownership(opened.objects),
        replays=replays,
        repeated=None
        if replays is None or not is_installed("gateway.features.sdk_retries")
        else RepeatedCalls(clock, accounts, replays.single_flight),
        slow_models=SlowModels(clock, admission.gates) if is_installed("gateway.features.degrade") else None,
        deferred=Deferred(admission) if is_installed("gateway.features.background_charges") else None,
        outputs=Outputs(clock, pipeline.meter, admission, pipeline.attempts, pipeline.watch)
        if is_installed("gateway.features.output")
        else None,
        groups=Groups(clock, admission, pipeline.attempts) if is_installed("gateway.features.grouping") else None,
    )
    pipeline.install(products.in_order())
    return products
