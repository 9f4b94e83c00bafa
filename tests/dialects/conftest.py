"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.stores import make_lasting_store, redis_cluster_url, redis_url, wall

__all__ = ["make_lasting_store", "redis_cluster_url", "redis_url", "wall"]
