"""The products around the calls of a config, without a gateway: they know which calls they are for, and serve none."""

from __future__ import annotations

import sys

from gateway.core.admission.admission import Admission
from gateway.core.answers import AttemptDeadlines
from gateway.core.call import CallProduct
from gateway.core.clock import SystemClock
from gateway.core.pipeline import Pipeline
from gateway.core.snapshot import PolicySnapshot
from gateway.core.telemetry import CallLog, Telemetry
from gateway.installed import is_installed
from gateway.product_list import Core, install_products
from gateway.stores import in_memory

# Where it is not here, nothing of it is around calls.
if is_installed("gateway.products.jobs"):
    from gateway.products.durable import UnservedWork

if is_installed("gateway.features.runs"):
    from gateway.features.runs.rules import WORKFLOWS
    from gateway.features.runs.table import RunTable


def products_around(policy: PolicySnapshot) -> tuple[CallProduct, ...]:
    """Returns them in the order in which a gateway with this config installs them, the outermost first."""
    clock = SystemClock()
    meter = Telemetry(CallLog(sys.stderr, "text"), clock.wall)
    pipeline = Pipeline(clock, meter, AttemptDeadlines(), Admission(clock, meter, policy, lambda: 0.5))
    runs = RunTable(clock, lambda: WORKFLOWS.of(policy)) if is_installed("gateway.features.runs") else None
    durable = UnservedWork(policy) if is_installed("gateway.products.jobs") else None
    return install_products(Core(pipeline, in_memory(policy.store, clock.wall), runs=runs, durable=durable))
