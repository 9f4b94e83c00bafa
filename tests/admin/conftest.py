"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.e2e.conftest import _no_traceback, _shared_process, gateway, pytest_asyncio_loop_factories, start

__all__ = ["_no_traceback", "_shared_process", "gateway", "pytest_asyncio_loop_factories", "start"]
