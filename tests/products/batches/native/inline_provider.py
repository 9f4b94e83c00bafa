"""Providers that take lines along with the request for their batch, in virtual time: Anthropic's, honest or lying."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import orjson

from gateway.core.snapshot import Provider
from gateway.products.batches.native.formats import (
    NeverSent,
    PendingResult,
    ProviderRefused,
    RemoteBatch,
    read_message_batch,
)
from tests.products.batches.native.native_provider import ScriptedBatches, _Batch

ERRORS = {400: "invalid_request_error", 503: "overloaded_error"}


class InlineBatches(ScriptedBatches):
    """As `ScriptedBatches`, without files, and with the results of all lines in one."""

    async def submit(
        self, provider: Provider, size: int, content: AsyncIterator[bytes], may_send: Callable[[], bool]
    ) -> RemoteBatch:
        text = b"".join([part async for part in content])
        assert len(text) == size
        lines = [
            orjson.dumps({"custom_id": one["custom_id"], "method": "POST", "url": "", "body": one["params"]})
            for one in orjson.loads(text)["requests"]
        ]
        lies = self.lies
        if lies.stands_still is not None:
            stands_still, lies.stands_still = lies.stands_still, None
            await stands_still()
        if not may_send():
            raise NeverSent("too late")
        if lies.stands_still_sent is not None:
            stands_still, lies.stands_still_sent = lies.stands_still_sent, None
            await stands_still()
        self._arrive("create")
        if lies.no_files_api:
            raise ProviderRefused(404, "", "no such thing")
        if lies.refuses_full:
            lies.refuses_full -= 1
            raise ProviderRefused(429, "rate_limit_exceeded", "too many batches")
        number = len(self.batches) + 1
        self.files[f"inline-{number}"] = f"inline-{number}", b"".join(line + b"\n" for line in lines), self.now()
        part = orjson.loads(lines[0])["custom_id"]
        batch = _Batch(f"batch_{number}", provider.name, part, f"inline-{number}", self.now())
        self.batches[batch.id] = batch
        self._lose()
        return self._shown(batch)

    async def find_submitted(
        self, provider: Provider, is_ours: Callable[[str], bool], lines: int, others: Collection[str], not_before: float
    ) -> RemoteBatch | None:
        self._arrive("find_batch")
        if self.lies.no_list:
            raise ProviderRefused(403, "", "not for this key")
        until, is_open = self.now() - self.lies.list_lags_s, False
        for batch in reversed(self.batches.values()):
            texts = self.files[batch.file][1].splitlines()
            is_there = not_before < batch.made_at <= until and batch.id not in self.removed | set(others)
            if not is_there or self._has_vanished(batch) or len(texts) != lines:
                continue
            shown = self._shown(batch)
            if not shown.output:
                is_open = True
            elif is_ours(orjson.loads(texts[-1])["custom_id"]):
                return shown
        if is_open:
            raise PendingResult("one may be it")
        return None

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        if batch_id in self.removed:
            raise ProviderRefused(404, "", "no such batch")
        return await super().look(provider, batch_id)

    async def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        batch = self.batches[file_id]
        text = b"".join(self.files[one][1] for one in (batch.output, batch.errors) if one)
        self.files[file_id] = f"results of {file_id}", text, self.now()
        async for part in super().content(provider, file_id):
            yield part

    async def remove(self, provider: Provider, file_id: str) -> None:
        self._arrive("remove")
        batch = self.batches[file_id]
        if not self._shown(batch).is_over:
            raise ProviderRefused(400, "", "it is in progress")
        self.removed |= {batch.id, batch.file, batch.output, batch.errors}

    def _shown(self, batch: _Batch) -> RemoteBatch:
        status = super()._shown(batch).status
        is_over, lines = status in ("completed", "cancelled", "expired"), self.files[batch.file][1].count(b"\n")
        done = sum(self.files[one][1].count(b"\n") for one in (batch.output, batch.errors) if one)
        rest = {"cancelled": "canceled", "expired": "expired"}.get(status, "processing")
        read = read_message_batch(
            {
                "id": batch.id,
                "processing_status": "ended" if is_over else "canceling" if status == "cancelling" else "in_progress",
                "request_counts": {"succeeded": done, rest: lines - done} if is_over else {"processing": lines},
                "results_url": "https://elsewhere.test/" if is_over else None,
                "created_at": "2026-11-23T10:00:00Z",
            }
        )
        assert read is not None
        return read

    def _kept(self, lines: list[dict[str, Any]]) -> str:
        return super()._kept([_result_of(line) for line in lines])


def _result_of(line: dict[str, Any]) -> dict[str, Any]:
    response = line["response"]
    if response is None:
        result: dict[str, Any] = {"type": "expired"}
    elif response["status_code"] == 200:
        result = {"type": "succeeded", "message": response["body"]}
    else:
        error = {
            "type": ERRORS.get(response["status_code"], "api_error"),
            "message": (response["body"].get("error") or {}).get("message", "No."),
        }
        result = {"type": "errored", "error": {"type": "error", "error": error}}
    return {"custom_id": line["custom_id"], "result": result}
