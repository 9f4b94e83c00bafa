"""The ports of the semantic cache: vectors for texts, and the nearest of the stored ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.core.call import Call
from gateway.core.ports import VectorRow


class EmbeddingFailed(Exception):
    """No embeddings are to be had at present; the message says why, for the log."""


class EmbeddingDenied(EmbeddingFailed):
    """This caller gets no embedding because of its own limit, budget or credential, which says nothing of the model."""


class Embedder(Protocol):
    """Makes vectors of texts: texts that mean the same get vectors of nearly the same direction."""

    async def embed(self, text: str, call: Call) -> Sequence[float] | None:
        """Returns the text's vector, of any length but zero, made on behalf of a call; None: this text has none.

        Raises EmbeddingFailed.
        """
        ...


class Near(NamedTuple):
    """A row that a search has found, without its vector; `similarity` is the cosine, at most 1."""

    row: VectorRow
    similarity: float


class Neighbourhood(Protocol):
    """The rows of one partition, ready to be searched. All of one model and one tenant."""

    def __len__(self) -> int: ...
    def search(self, vector: bytes, threshold: float, most: int, now_wall: float) -> list[Near]:
        """Returns the rows at least so near and not expired, the nearest first. In any thread, while rows come and go."""
        ...


class Index(Protocol):
    """The partitions in memory, bounded by bytes: the least recently used go first.

    All but `pack` and `build` belong to the event loop's thread, and take microseconds.
    """

    def pack(self, vector: Sequence[float]) -> bytes:
        """Returns the direction of a vector, compact. Raises ValueError when it has none."""
        ...

    def build(self, rows: Sequence[VectorRow], most: int) -> Neighbourhood:
        """Returns a partition of the last `most` of these rows, in any thread, because many rows take long."""
        ...

    def put(self, partition: bytes, built: Neighbourhood) -> None: ...
    def get(self, partition: bytes) -> Neighbourhood | None:
        """Returns the partition; None: it is not in memory."""
        ...

    def add(self, row: VectorRow, most: int) -> None:
        """Adds a row to its partition, if that is in memory, in place of one with its id; beyond `most` the oldest goes."""
        ...

    def remove(self, partition: bytes, id: bytes) -> None: ...
    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Removes rows as `Vectors.forget` does."""
        ...
