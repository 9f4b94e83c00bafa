"""The fixtures that the tests of this folder share with others."""

from __future__ import annotations

from tests.fixtures.job_stores import jobs, make_store
from tests.fixtures.stores import redis_url, wall

__all__ = ["jobs", "make_store", "redis_url", "wall"]
