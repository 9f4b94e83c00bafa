"""The sweeps run on the same loop, and are held to the same silent log, as the end-to-end tests."""

from __future__ import annotations

from tests.e2e.conftest import _no_traceback, pytest_asyncio_loop_factories, start

__all__ = ["_no_traceback", "pytest_asyncio_loop_factories", "start"]
