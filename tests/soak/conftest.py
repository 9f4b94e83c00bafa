"""The sweeps run on the same loop, and are held to the same silent log, as the end-to-end tests."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.e2e.conftest import _no_traceback, pytest_asyncio_loop_factories, start

__all__ = ["_no_traceback", "pytest_asyncio_loop_factories", "report", "start"]

Report = Callable[[str], None]


@pytest.fixture(autouse=True)
def _no_access_log(_no_traceback: None, caplog: pytest.LogCaptureFixture) -> None:
    """The emulators' access log would be what grows."""
    caplog.set_level(logging.WARNING, "uvicorn")


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """Prints figures past pytest's capture: they are what a sweep is run for."""

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}")  # noqa: T201 - the figures of a sweep are read on a terminal

    return say
