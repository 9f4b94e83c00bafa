"""A file of the Files API as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the Files API; its bytes are a blob."""

    id: str
    tenant: str
    purpose: str
    filename: str
    bytes: int
    created_at: float
    expires_at: float | None
    blob: str


class FileQuery(NamedTuple):
    """Which files of a tenant to list."""

    tenant: str
    purpose: str | None = None
    after: str | None = None
    limit: int = 10_000
    is_newest_first: bool = True
