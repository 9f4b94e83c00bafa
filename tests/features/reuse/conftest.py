"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.stores import lends, redis_url, wall

__all__ = ["lends", "redis_url", "wall"]
