"""The edge is tested through real sockets: the same fixtures as the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import _no_traceback, _shared_process, gateway, pytest_asyncio_loop_factories, start

__all__ = ["_no_traceback", "_shared_process", "gateway", "pytest_asyncio_loop_factories", "start"]
