"""The built-in error tables, for tests that need one: `table_of("openai")`."""

from __future__ import annotations

from functools import cache

from gateway.core.config.error_tables import ErrorTables, read_error_tables
from gateway.core.error_tables import ErrorTable


@cache
def built_in() -> ErrorTables:
    """The tables as they ship."""
    return read_error_tables((), {}, [])


def table_of(kind: str = "other") -> ErrorTable:
    """The table of a provider of this kind."""
    return built_in().of(kind)
