"""What tests of blobs have in common."""

from __future__ import annotations

from secrets import token_hex
from typing import Any

from gateway.core.types import SharedState
from gateway.drivers.blobs_redis import RedisBlobs
from gateway.products.jobs.store import Blobs


def blobs_in(url: str, namespace: str | None = None, **options: Any) -> RedisBlobs:
    """Blobs in a namespace of their own, or in this one."""
    return RedisBlobs(SharedState(url, namespace=namespace or f"blobs-{token_hex(6)}"), **options)


async def put(blobs: Blobs, name: str, *parts: bytes) -> int:
    writer = await blobs.writer(name)
    try:
        for part in parts:
            await writer.write(part)
        return await writer.commit()
    finally:
        await writer.abort()


async def whole(blobs: Blobs, name: str, start: int = 0, length: int | None = None) -> bytes:
    return b"".join([piece async for piece in blobs.read(name, start, length)])
