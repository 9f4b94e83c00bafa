"""Checks of texts that take long, in a process of their own: bounded in time and memory, one at a time, tenants in turn.

The library holds Python's lock while it works, so that no thread would leave the loop its turn. A process costs a tenth of a
second, which is little beside the answer that it is for.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import orjson

from gateway.features.output.judging.turns import FairTurns, NoTurn
from gateway.features.output.rules.rules import Violation
from gateway.features.output.schema.schema import OutputSchema

CPU_S = 2
MEMORY_BYTES = 512 * 1024 * 1024
log = logging.getLogger("gateway.flow")


class CheckFailed(Exception):
    """The check took too long, or could not be made."""


class CheckerProcess:
    """Runs `gateway.features.output.child`."""

    __slots__ = ("_turns",)

    def __init__(self) -> None:
        self._turns = FairTurns()

    async def violation(self, schema: OutputSchema, text: bytes, tenant: str) -> Violation | None:
        """Returns where the text breaks the schema; cancelling it ends the process. Raises CheckFailed."""
        try:
            async with self._turns.turn(tenant, len(text)):
                return await self._checked(schema, text)
        except NoTurn as error:
            raise CheckFailed("too many wait") from error
        except OSError as error:
            raise CheckFailed(str(error)) from error

    async def _checked(self, schema: OutputSchema, text: bytes) -> Violation | None:
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "gateway.features.output.child",
                str(CPU_S),
                str(MEMORY_BYTES),
                str(len(schema.source)),
            ),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            told, _ = await child.communicate(schema.source + text)
        finally:
            if child.returncode is None:
                child.kill()
                await asyncio.shield(child.wait())
        lines = told.splitlines()  # the verdict first, then its place, for which there may not have been time
        if not lines:
            log.warning("a check of %d bytes was given up: the process ended with %s", len(text), child.returncode)
            raise CheckFailed("no verdict")
        if orjson.loads(lines[0]):
            return None
        return Violation(*orjson.loads(lines[1])) if len(lines) > 1 else Violation("schema", "")
