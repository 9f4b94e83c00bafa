"""Short trouble at a lone provider, with the real SDK: nobody is lost whom the SDK alone would have brought through."""

from __future__ import annotations

import asyncio

from tests.e2e.conftest import StartGateway
from tests.e2e.harness import chat, until

CALLS, MET = 50, 7
"""Of the calls under way, more than open a breaker have met a 503 when the provider is well again."""


async def test_a_burst_of_503s_loses_nobody(start: StartGateway) -> None:
    """Fifty calls are under way when the provider begins to answer 503; the SDK tries nothing again by itself."""
    gateway = await start()
    async with gateway.sdk() as sdk:
        await asyncio.gather(*[sdk.chat.completions.create(**chat()) for _ in range(5)])
        before = gateway.upstream_calls()
        gateway.script(*["e503"] * 1000)

        calls = [asyncio.create_task(sdk.chat.completions.create(**chat())) for _ in range(CALLS)]
        await until(lambda: gateway.upstream_calls() - before >= MET)
        gateway.emulator.emulator.faults.restart(0.0)  # what is left of the script is forgotten
        answers = await asyncio.gather(*calls)

    assert len(answers) == CALLS
    assert gateway.upstream_calls() - before <= 2 * CALLS
