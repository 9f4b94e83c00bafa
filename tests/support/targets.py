"""Targets of which a test needs the name alone."""

from __future__ import annotations

from typing import cast

from gateway.core.snapshot import Target
from gateway.core.types import Clocks, Upstream


def target_named(name: str) -> Target:
    """A target that nothing can be sent to."""
    provider, _, model = name.partition("/")
    return Target(name, provider, model or "m", cast(Upstream, None), Clocks(1.0, 1.0, 1.0, 1.0, 1.0))
