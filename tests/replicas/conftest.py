"""The runs are soak tests: their figures are read on a terminal."""

from __future__ import annotations

from tests.e2e.conftest import pytest_asyncio_loop_factories
from tests.soak.conftest import report

__all__ = ["pytest_asyncio_loop_factories", "report"]
