"""The request of a client as decisions see it: a call without its ledgers."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.core.openai.bodies.large_body import Large
from gateway.core.snapshot.snapshot.snapshot import Model
from gateway.core.types.exchange import RawHeaders
from gateway.core.types.words import Endpoint


class Request(Protocol):
    """The part of a call that stays as it came in, but for `parsed`, which is dropped when it is not needed any more."""

    @property
    def endpoint(self) -> Endpoint: ...
    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str:
        """The path below the base URL."""
        ...

    @property
    def query(self) -> bytes: ...
    @property
    def headers(self) -> RawHeaders:
        """The client's headers that may go upstream."""
        ...

    @property
    def body(self) -> bytes: ...
    @property
    def parsed(self) -> dict[str, Any] | None:
        """The body, parsed; None: it is not, or not any more."""
        ...

    @property
    def large(self) -> Large | None:
        """The outline of a large body; None: the body is small, or is not read."""
        ...

    @property
    def stream(self) -> bool: ...
    @property
    def stream_options(self) -> object: ...
    @property
    def model(self) -> Model: ...
    @property
    def model_name(self) -> str:
        """The name that the client asked for; `model.name` may be a pattern."""
        ...

    @property
    def credential(self) -> bytes | None:
        """The caller's own credential, where it is passed on."""
        ...

    @property
    def tenant(self) -> str: ...
