"""The parts of pybreaker that hold a breaker's state, imported without redis-py. It must not know what they are used for."""

from __future__ import annotations

import sys
from importlib import import_module


def _import_without_redis() -> None:
    """Import pybreaker, whose states could be kept in a Redis, without the redis package.

    pybreaker takes the package if there is one, and with it come its asyncio clients and 200 modules: 6 MB of memory and
    time at every start of a process that has no Redis. `None` in `sys.modules` tells an import that a module is not there.
    """
    if "redis" in sys.modules:
        return
    sys.modules["redis"] = None  # type: ignore[assignment]  # as the import system's documentation has it
    try:
        import_module("pybreaker")
    finally:
        del sys.modules["redis"]


_import_without_redis()

from pybreaker import CircuitBreaker, CircuitBreakerListener, CircuitBreakerState  # noqa: E402 - it has to be as said above

__all__ = ["CircuitBreaker", "CircuitBreakerListener", "CircuitBreakerState"]
