"""The ports of requests to addresses that are no provider's, and of their guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.products.jobs.webhooks.outward.public_address import PublicUrl


class Unreachable(Exception):
    """There was no HTTP answer, or none in time. The message says why, and names no path."""


class FetchRefused(Unreachable):
    """The guard lets no request out to that address; nothing was sent."""


class OutwardAnswer(NamedTuple):
    """What is heard of an answer from outside."""

    status: int
    retry_after: bytes = b""
    """The header of that name."""


class Outward(Protocol):
    """Requests to addresses that are no provider's."""

    async def post(
        self, url: str, headers: Sequence[tuple[bytes, bytes]], body: bytes, timeout_s: float
    ) -> OutwardAnswer:
        """Posts a body; a redirect is an answer like any other. Raises Unreachable. Cancelling ends the request."""
        ...

    async def aclose(self) -> None:
        """Closes all connections."""
        ...


class FetchGuard(Protocol):
    """Says which addresses a URL that a caller named may lead to; whoever fetches such a URL asks it twice."""

    def read(self, url: str) -> PublicUrl:
        """Returns the URL's parts, of which the connection is made. Raises FetchRefused."""
        ...

    def check(self, addresses: Sequence[str]) -> None:
        """Looks at all addresses that the URL's name stands for, one of which is connected to. Raises FetchRefused."""
        ...
