"""A stream that has grown too long to be held back: what came is given, and the rest as it comes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from gateway.core.errors import CallerFault
from gateway.core.relay import OnEnd
from gateway.core.types import Clocks, Usage

# What the client gets where no answer keeps the rule.


class OutputInvalid(CallerFault):
    """The model's answer breaks the schema that was asked for, and neither a retry nor a repair has helped.

    What the rule allows has been tried: a job or a line that meets it has failed for good.
    """

    status = 502
    type = "server_error"
    code = "output_invalid"


@dataclass(slots=True)
class HeldEnd:
    """How a stream has ended; `None` in `outcome`: it has not."""

    outcome: str | None = None
    usage: Usage | None = None
    tokens: int = 0
    on_end: OnEnd | None = None

    def __call__(self, outcome: str, usage: Usage | None, tokens: int) -> None:
        self.outcome, self.usage, self.tokens = outcome, usage, tokens
        if self.on_end is not None:
            self.on_end(outcome, usage, tokens)


class OverlongStream:
    """A stream of which the beginning was held back, and the rest is relayed. Iterate `chunks` once."""

    __slots__ = ("_begun", "_end", "_rest")

    def __init__(self, begun: bytes, rest: AsyncGenerator[bytes, None], end: HeldEnd) -> None:
        self._begun = begun
        self._rest = rest
        self._end = end

    async def chunks(self, on_end: OnEnd, _clocks: Clocks, _now: Callable[[], float]) -> AsyncGenerator[bytes, None]:
        """Yields the stream; its clocks have run since it was opened. `on_end` is told once how it has ended."""
        self._end.on_end = on_end
        try:
            begun, self._begun = self._begun, b""
            yield begun
            del begun
            async for chunk in self._rest:
                yield chunk
        finally:
            await self._rest.aclose()

    def account(self) -> tuple[Usage | None, int]:
        """Returns the usage and the estimated tokens of a stream that has ended, as `OnEnd` gets them."""
        return self._end.usage, self._end.tokens

    async def aclose(self) -> None:
        """Gives up on the stream."""
        await self._rest.aclose()
