"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.transports import authority, pytest_asyncio_loop_factories, trusting

__all__ = ["authority", "pytest_asyncio_loop_factories", "trusting"]
