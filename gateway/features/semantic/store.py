"""What a semantic index needs of a store: rows that outlive the process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.core.ports import Later


@dataclass(frozen=True, slots=True)
class VectorRow:
    """One question that can be recognised by its meaning. `stored_at` and `expires_at` are wall-clock seconds."""

    id: bytes
    """The exact key of its answer, 32 bytes."""
    partition: bytes
    """The digest of all that must match exactly, 32 bytes."""
    vector: bytes
    """The vector in the index's compact form."""
    facts: bytes
    """The facts of the question that the guards compare."""
    model: str
    tenant: str
    stored_at: float
    expires_at: float


class Vectors(Protocol):
    """The rows of a semantic index that outlive the process. No method raises."""

    def configure(self, most: int) -> None:
        """Keeps at most this number of rows per partition from now on."""
        ...

    def add(self, row: VectorRow) -> Later[None]:
        """Stores the row in place of one with its id in its partition."""
        ...

    def load(self, partition: bytes, most: int) -> Later[Sequence[VectorRow]]:
        """Returns the rows of a partition that have not expired: the newest `most` of them, oldest first."""
        ...

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> Later[None]: ...

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> Later[int]:
        """Forgets rows as `Answers.forget` does; the key is the row's id."""
        ...


class MemoryVectors:
    """Implements `Vectors` without keeping anything: the index itself has the rows."""

    __slots__ = ()

    def configure(self, most: int) -> None:
        """Does nothing: the index has a bound of its own."""

    def add(self, row: VectorRow) -> None:
        """Does nothing: the index has the row."""

    def load(self, partition: bytes, most: int) -> Sequence[VectorRow]:
        """Returns no rows: a new process begins with an empty index."""
        return ()

    def remove(self, partition: bytes, ids: Sequence[bytes]) -> None:
        """Does nothing."""

    def forget(self, *, key: bytes | None = None, model: str | None = None, tenant: str | None = None) -> int:
        """Returns 0: no rows are kept here."""
        return 0
