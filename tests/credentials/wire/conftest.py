"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.transports import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
