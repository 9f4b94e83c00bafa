"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.stores import lends, make_lasting_store, make_store, redis_cluster_url, redis_url, small_disk, wall

__all__ = ["lends", "make_lasting_store", "make_store", "redis_cluster_url", "redis_url", "small_disk", "wall"]
