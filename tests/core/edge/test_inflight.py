"""Stopping requests that are being served."""

from __future__ import annotations

import asyncio

import pytest

from gateway.core.intake import InFlight, Serving


async def test_a_stopped_request_is_told_the_first_reason() -> None:
    """As the message of its cancellation: whoever settles its call must know a shutdown from a client that left."""
    inflight = InFlight()

    async def serve() -> None:
        inflight.serving.add(Serving(asyncio.current_task()))
        await asyncio.Event().wait()

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    (serving,) = inflight.present()
    serving.stop("shutdown")
    serving.stop("client_gone")

    with pytest.raises(asyncio.CancelledError) as stopped:
        await task
    assert stopped.value.args == ("shutdown",)
