"""What the semantic cache asks of others: vectors for texts, and the nearest of those that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.call import Call
from gateway.ports import VectorRow


class EmbeddingFailed(Exception):
    """There are no embeddings to be had at present; the message says why, for the log."""


class EmbeddingDenied(EmbeddingFailed):
    """This caller gets none: its own limit, budget or credential is in the way, and says nothing of the model."""


class Embedder(Protocol):
    """Makes a vector of a text, so that texts that mean the same get vectors of nearly the same direction."""

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        """The text's vector, of any length but zero, made on behalf of a call; None: this text has none.

        Raises EmbeddingFailed.
        """
        ...


class Near(NamedTuple):
    """A row that a search has found. Its own vector is left out; `similarity` is the cosine, at most 1."""

    row: VectorRow
    similarity: float


class Neighbourhood(Protocol):
    """The rows of one partition, ready to be searched. All of one model and one tenant."""

    def __len__(self) -> int: ...
    def search(self, vector: bytes, threshold: float, most: int, now_wall: float) -> list[Near]:
        """Who is at least so near and not past its time, the nearest first. In any thread, while rows come and go."""
        ...


class Index(Protocol):
    """The partitions that are in memory, bounded by bytes: those not used for longest go first.

    All but `pack` and `build` belong to the event loop's thread, and take microseconds.
    """

    def pack(self, vector: Sequence[float]) -> bytes:
        """The direction of a vector, compact. Raises ValueError when it has none."""
        ...

    def build(self, rows: Sequence[VectorRow], most: int) -> Neighbourhood:
        """A partition of the last `most` of these, in any thread: many take long."""
        ...

    def put(self, partition: bytes, built: Neighbourhood) -> None: ...
    def get(self, partition: bytes) -> Neighbourhood | None:
        """None: it is not in memory."""
        ...

    def add(self, row: VectorRow, most: int) -> None:
        """To its partition, if that is in memory, instead of one with its id; where there are `most`, the oldest goes."""
        ...

    def remove(self, partition: bytes, id: bytes) -> None: ...
    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """As that of the store."""
        ...
