"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.job_stores import job_lends, jobs, make_store
from tests.fixtures.stores import lends, redis_cluster_url, redis_url, small_disk, wall

__all__ = ["job_lends", "jobs", "lends", "make_store", "redis_cluster_url", "redis_url", "small_disk", "wall"]
