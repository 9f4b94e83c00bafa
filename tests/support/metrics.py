"""The metrics of a whole gateway, without one."""

from __future__ import annotations

import io

from gateway.app import ProductMeters, register_metrics
from gateway.around import products_around
from gateway.core.telemetry import CallLog, Telemetry
from tests.support.flow import Bench, ScriptedUpstream


def whole_telemetry() -> Telemetry:
    """The metrics of the core and of all products, with nothing counted."""
    telemetry = Telemetry(CallLog(io.StringIO(), "json"), lambda: 0.0)
    ProductMeters(telemetry)
    register_metrics(telemetry, products_around(Bench([ScriptedUpstream()]).policy))
    return telemetry
