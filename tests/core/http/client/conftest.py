"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.transports import authority, clock, pytest_asyncio_loop_factories, transport, trusting

__all__ = ["authority", "clock", "pytest_asyncio_loop_factories", "transport", "trusting"]
