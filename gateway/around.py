"""The products around the calls of a config, without a gateway: they know which calls they are for, and serve none."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gateway.call_products import install_products
from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines
from gateway.core.call import CallFeature, CallProduct, CallRoute
from gateway.core.clock import SystemClock
from gateway.core.pipeline import Pipeline
from gateway.core.snapshot import PolicySnapshot
from gateway.core.telemetry import CallLog, Telemetry
from gateway.installed import is_installed
from gateway.own_products import OWN_PRODUCTS
from gateway.stores import in_memory

# Where it is not here, nothing of it is around calls.
if is_installed("gateway.products.jobs"):
    from gateway.products.durable import around_calls_of

if is_installed("gateway.features.runs"):
    from gateway.features.runs.rules import WORKFLOWS
    from gateway.features.runs.table import RunTable


class _Unserved(CallFeature):
    """Stands for a product whose calls need durable work, which is only there while a gateway runs."""

    def __init__(self, product: type[CallProduct], takes_part: Callable[[CallRoute, frozenset[bytes]], bool]) -> None:
        self.name, self.options = product.name, product.options
        self._takes_part = takes_part

    def for_route(self, route: CallRoute, requested: frozenset[bytes]) -> CallFeature | None:
        """Returns itself where the product has a feature."""
        return self if self._takes_part(route, requested) else None


def products_around(policy: PolicySnapshot) -> tuple[CallProduct, ...]:
    """Returns them in the order in which a gateway with this config installs them, the outermost first."""
    clock = SystemClock()
    meter = Telemetry(CallLog(sys.stderr, "text"), clock.wall)
    pipeline = Pipeline(clock, meter, AttemptDeadlines(), Admission(clock, meter, policy, lambda: 0.5))
    runs = RunTable(clock, lambda: WORKFLOWS.of(policy)) if is_installed("gateway.features.runs") else None
    products = install_products(pipeline, in_memory(policy.store, clock.wall), runs=runs)
    durable = []
    if is_installed("gateway.products.jobs"):
        durable = [_Unserved(product, takes_part) for product, takes_part in around_calls_of(policy)]
    return (*durable, *products.in_order(), *(product(pipeline) for product in OWN_PRODUCTS))
