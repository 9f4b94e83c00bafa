"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.transports import clock, pytest_asyncio_loop_factories

__all__ = ["clock", "pytest_asyncio_loop_factories"]
