"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.stores import wall

__all__ = ["wall"]
