"""The files of the Files API in the Redis, and the blobs that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from gateway.drivers.durability import OutcomeUnknown
from gateway.drivers.redis.partitions import JobPartitions, job_script
from gateway.products.jobs.model import FileQuery, StoredFile

ADD, FIND = job_script("files_add", "files"), job_script("files_find", "files")
PAGE, BYTES = job_script("files_page", "files"), job_script("files_bytes", "files")
GARBAGE, FORGET_GARBAGE = job_script("garbage", "files"), job_script("garbage_forget")
USED = job_script("garbage_used")
ROWS_AT_ONCE = 500
EVERYBODY = "*"


class RedisJobFiles:
    """Implements `gateway.products.jobs.store.JobFiles`: keeps files beside the jobs of their tenants."""

    def __init__(
        self, partitions: JobPartitions, refuse_if_unfit: Callable[[], None], durability_lag_s: Callable[[], float]
    ) -> None:
        """`refuse_if_unfit` raises JobsUnavailable where the Redis may not keep anything; `durability_lag_s` is the store's."""
        self._partitions = partitions
        self._refuse_if_unfit = refuse_if_unfit
        self._calm_s = durability_lag_s

    async def add(self, file: StoredFile) -> None:
        self._refuse_if_unfit()
        try:
            await self._partitions.retry_until_known(lambda _: self._add(file))
        except OutcomeUnknown as error:
            raise OutcomeUnknown(
                f"Files cannot be kept now: their Redis did not answer in time, and may have kept {file.id} all the same; look "
                f"(GET /v1/files/{file.id}) before you send it again."
            ) from error

    async def remove(self, file_id: str, tenant: str) -> bool:
        return await self._partitions.retry_until_known(
            lambda is_again: self._remove(file_id, tenant, is_again=is_again)
        )

    async def _add(self, file: StoredFile) -> None:
        partition = self._partitions.of_tenant(file.tenant)
        expires_at = "" if file.expires_at is None else repr(float(file.expires_at))
        rest = orjson.dumps([file.purpose, file.filename, file.created_at])
        about = (file.id, _token(file.tenant), file.blob, file.bytes, expires_at, rest)
        mark = self._partitions.mark(partition)
        await self._partitions.run(ADD, partition, *about, mark=mark)
        await self._partitions.settle([mark])

    async def find(self, file_id: str, tenant: str) -> StoredFile | None:
        _, _, found = await self._partitions.run(FIND, self._partitions.of_tenant(tenant), file_id, _token(tenant), 0)
        return _file(file_id, found) if found else None

    async def _remove(self, file_id: str, tenant: str, *, is_again: bool) -> bool:
        """Takes a file away, durably; False: there was none. `is_again`: an attempt without an answer may have done it."""
        partition = self._partitions.of_tenant(tenant)
        mark = self._partitions.mark(partition)
        how = 2 if is_again else 1
        _, _, found = await self._partitions.run(FIND, partition, file_id, _token(tenant), how, mark=mark)
        if found:
            await self._partitions.settle([mark])
        return bool(found)

    async def page(self, query: FileQuery) -> tuple[Sequence[StoredFile], bool]:
        partition, after = self._partitions.of_tenant(query.tenant), query.after or ""
        files: list[StoredFile] = []
        step = min(ROWS_AT_ONCE, query.limit + 1)
        while True:
            about = (_token(query.tenant), after, int(query.is_newest_first), step)
            _, _, last, rows = await self._partitions.run(PAGE, partition, *about)
            some = [_file(name.decode(), text) for name, text in rows]
            files += [file for file in some if query.purpose in (None, file.purpose)]
            if len(files) > query.limit or not last:
                return files[: query.limit], len(files) > query.limit
            after = last.decode()

    async def bytes_of(self, tenant: str | None) -> int:
        if tenant is not None:
            return await self._bytes(self._partitions.of_tenant(tenant), _token(tenant))
        return sum([await self._bytes(partition, EVERYBODY) for partition in range(self._partitions.number)])

    async def find_garbage(self, most: int) -> list[str]:
        names: list[str] = []
        until = repr(self._partitions.now() - self._calm_s())
        for partition in range(self._partitions.number):
            if len(names) < most:
                _, _, found = await self._partitions.run(GARBAGE, partition, most - len(names), until)
                names += [name.decode() for name in found]
        return names

    async def forget_garbage(self, names: Sequence[str]) -> None:
        for partition in range(self._partitions.number if names else 0):
            await self._partitions.run(FORGET_GARBAGE, partition, *names)

    async def used(self, names: Sequence[str]) -> set[str]:
        used: set[str] = set()
        for partition in range(self._partitions.number if names else 0):
            _, _, found = await self._partitions.run(USED, partition, *names)
            used.update(name.decode() for name in found)
        return used

    async def _bytes(self, partition: int, whose: str) -> int:
        _, _, found = await self._partitions.run(BYTES, partition, whose)
        return int(found)


def _token(tenant: str) -> str:
    return f"~{tenant}"


def _file(file_id: str, text: bytes) -> StoredFile:
    tenant, blob, size, _, expires_at, rest = orjson.loads(text)
    purpose, filename, created_at = orjson.loads(rest)
    expires = float(expires_at) if expires_at else None
    return StoredFile(file_id, tenant[1:], purpose, filename, int(size), created_at, expires, blob)
