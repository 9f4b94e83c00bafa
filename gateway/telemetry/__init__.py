"""Numbers: `metrics.py` is the table of all metrics, `calls.py` counts ended calls, `telemetry.py` is what others talk to."""

from gateway.telemetry.telemetry import Telemetry

__all__ = ["Telemetry"]
