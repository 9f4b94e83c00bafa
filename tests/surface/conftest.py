"""The admin API is asked of a real gateway: the same fixtures as the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import _shared_process, pytest_asyncio_loop_factories

__all__ = ["_shared_process", "pytest_asyncio_loop_factories"]
