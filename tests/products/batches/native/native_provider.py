"""Providers with Batch APIs of their own, in virtual time: honest ones, and ones that lie in every way that was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.core.snapshot import Provider
from gateway.drivers.outward import Unreachable
from gateway.products.batches.native.formats import NeverSent, ProviderRefused, RemoteBatch, read_batch
from tests.support.virtual import LoopClock

EMPTY = "Your credit balance is too low to access the Anthropic API. Please go to Plans & Billing."


@dataclass
class Lies:
    """What a provider does other than it says."""

    works_s: float = 600.0
    files_late_s: float = 0.0
    """So long it says `completed`, and names no files."""
    wrong_counts: bool = False
    drops: int = 0
    """Of so many lines it forgets one."""
    status_zero: int = 0
    """One of so many lines has the status 0."""
    overloaded: int = 0
    """One of so many lines failed with 503, in the error file."""
    bad: int = 0
    """One of so many lines failed with 400, in the error file."""
    spent: int = 0
    """One of so many lines failed because the account is empty, in the error file."""
    too_long: int = 0
    """One of so many lines is too long for the model, in the error file."""
    vanishes_after_s: float | None = None
    expires_after_s: float | None = None
    """With what was done by then in the output, and counts that know nothing of it."""
    invalid: bool = False
    """The file does not pass its check."""
    full: int = 0
    """So many batches fail for want of room in its queue."""
    refuses_full: int = 0
    """So many are refused for it at once."""
    twice: bool = False
    """Each answer is in the output twice, the second time another one."""
    breaks_off: int = 0
    """So many times a file breaks off in the middle."""
    garbage: bool = False
    usage: Mapping[str, Any] | None = None
    """What its answers tell in place of their usage."""
    bom: bool = False
    """A byte order mark is in front of its files."""
    no_files_api: bool = False
    refuses_create: int = 0
    lost_answers: int = 0
    """So many answers to what it has done do not arrive."""
    list_lags_s: float = 0.0
    machine_is_wrong: bool = False
    """The time of the gateway's machine was set to a wrong one: its clock, which never jumps, goes on by the right one."""
    always_down_after_s: float | None = None
    ignores_cancel: int = 0
    cancels_s: float = 60.0
    """A batch is cancelling for so long."""
    keeps_no_metadata: bool = False
    stands_still: Callable[[], Awaitable[None]] | None = None
    """Where the first request for a batch waits before it is looked at whether it may be sent."""
    stands_still_sent: Callable[[], Awaitable[None]] | None = None
    """Where the first one waits on its way."""
    is_checked: bool = True
    """It is looked at whether a request may be sent."""
    no_list: bool = False
    """It does not list its batches."""
    loses_errors: bool = False
    """It names error files, and does not give them."""


@dataclass
class _Batch:
    id: str
    provider: str
    part: str
    file: str
    made_at: float
    is_full: bool = False
    cancelled_at: float | None = None
    output: str = ""
    errors: str = ""
    is_worked_off: bool = False


@dataclass
class ScriptedBatches:
    """Implements `ProviderBatches`, and remembers what it was asked."""

    clock: LoopClock
    lies: Lies = field(default_factory=Lies)
    files: dict[str, tuple[str, bytes, float]] = field(default_factory=dict)
    batches: dict[str, _Batch] = field(default_factory=dict)
    served: Counter[str] = field(default_factory=Counter)
    """By line, how often it was paid for."""
    asked: list[str] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    by_provider: Counter[str] = field(default_factory=Counter)
    began_at: float = 0.0

    def __post_init__(self) -> None:
        self.began_at = self.now()

    async def upload(self, provider: Provider, filename: str, size: int, content: AsyncIterator[bytes]) -> str:
        self._arrive("upload")
        text = b"".join([part async for part in content])
        assert len(text) == size
        if self.lies.no_files_api:
            raise ProviderRefused(404, "", "no such thing")
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = filename, text, self.now()
        self._lose()
        return file_id

    def now(self) -> float:
        """The provider's time, which is right: that of the gateway's machine, or of its clock."""
        return self.clock.wall() - (0.0 if self.lies.machine_is_wrong else self.clock.ahead_s)

    async def find_file(self, provider: Provider, filename: str, not_before: float) -> str | None:
        self._arrive("find_file")
        until = self.now() - self.lies.list_lags_s
        found = [id for id, (name, _, at) in self.files.items() if name == filename and not_before < at <= until]
        return found[-1] if found else None

    async def create(
        self, provider: Provider, file_id: str, endpoint: str, part: str, may_send: Callable[[], bool]
    ) -> RemoteBatch:
        lies = self.lies
        if lies.stands_still is not None:
            stands_still, lies.stands_still = lies.stands_still, None
            await stands_still()
        if lies.is_checked and not may_send():
            raise NeverSent("too late")
        if lies.stands_still_sent is not None:
            stands_still, lies.stands_still_sent = lies.stands_still_sent, None
            await stands_still()
        self._arrive("create")
        if file_id in self.removed:
            raise ProviderRefused(400, "", "no such file")
        if lies.refuses_create:
            lies.refuses_create -= 1
            raise ProviderRefused(400, "invalid_request", "the file is not ready")
        if lies.refuses_full:
            lies.refuses_full -= 1
            raise ProviderRefused(429, "token_limit_exceeded", "enqueued tokens")
        assert file_id in self.files
        batch = _Batch(f"batch_{len(self.batches) + 1}", provider.name, part, file_id, self.now())
        if lies.full:
            lies.full -= 1
            batch.is_full = True
        self.batches[batch.id] = batch
        self.by_provider[provider.group or provider.name] += 1
        self._lose()
        return self._shown(batch)

    async def find_batch(self, provider: Provider, part: str, file_id: str, not_before: float) -> RemoteBatch | None:
        self._arrive("find_batch")
        if self.lies.no_list:
            raise ProviderRefused(403, "", "not for this key")
        until = self.now() - self.lies.list_lags_s
        for batch in reversed(self.batches.values()):
            is_ours = batch.file == file_id if self.lies.keeps_no_metadata else batch.part == part
            if is_ours and not_before < batch.made_at <= until and not self._has_vanished(batch):
                return self._shown(batch)
        return None

    async def look(self, provider: Provider, batch_id: str) -> RemoteBatch:
        self._arrive("look")
        batch = self.batches[batch_id]
        if self._has_vanished(batch):
            raise ProviderRefused(404, "", "no such batch")
        return self._shown(batch)

    async def cancel(self, provider: Provider, batch_id: str) -> None:
        self._arrive("cancel")
        batch = self.batches[batch_id]
        if self._has_vanished(batch):
            raise ProviderRefused(404, "", "no such batch")
        if self._status(batch) in ("completed", "failed", "expired", "cancelled"):
            raise ProviderRefused(409, "", "it has ended")
        if self.lies.ignores_cancel:
            self.lies.ignores_cancel -= 1
        elif batch.cancelled_at is None:
            batch.cancelled_at = self.now()

    async def content(self, provider: Provider, file_id: str) -> AsyncIterator[bytes]:
        self._arrive("content")
        is_lost = self.lies.loses_errors and file_id in [batch.errors for batch in self.batches.values()]
        if file_id in self.removed or is_lost:
            raise ProviderRefused(404, "", "no such file")
        text = self.files[file_id][1]
        half = len(text) // 2
        for at in range(0, half, 1000):
            yield text[at : min(half, at + 1000)]
        if self.lies.breaks_off:
            self.lies.breaks_off -= 1
            raise Unreachable("it broke off")
        yield text[half:]

    async def remove(self, provider: Provider, file_id: str) -> None:
        self._arrive("remove")
        self.removed.add(file_id)

    def _arrive(self, what: str) -> None:
        self.asked.append(what)
        down_s = self.lies.always_down_after_s
        if down_s is not None and self.now() - self.began_at >= down_s:
            raise Unreachable("it is down")

    def _lose(self) -> None:
        if self.lies.lost_answers:
            self.lies.lost_answers -= 1
            raise Unreachable("no answer within 60 s")

    def _has_vanished(self, batch: _Batch) -> bool:
        after_s = self.lies.vanishes_after_s
        return after_s is not None and self.now() - batch.made_at >= after_s

    def _status(self, batch: _Batch) -> str:
        age_s, lies = self.now() - batch.made_at, self.lies
        if age_s < 10:
            return "validating"
        if lies.invalid or batch.is_full:
            return "failed"
        if batch.cancelled_at is not None and batch.cancelled_at - batch.made_at < lies.works_s:
            return "cancelling" if self.now() - batch.cancelled_at < lies.cancels_s else "cancelled"
        if lies.expires_after_s is not None and age_s >= lies.expires_after_s:
            return "expired"
        return "completed" if age_s >= lies.works_s else "in_progress"

    def _shown(self, batch: _Batch) -> RemoteBatch:
        status = self._status(batch)
        if status in ("completed", "expired", "cancelled"):
            self._work_off(batch)
        lines = self.files[batch.file][1].count(b"\n")
        is_told = self.now() - batch.made_at >= self.lies.works_s + self.lies.files_late_s
        is_told = is_told or status in ("cancelled", "expired")
        errors: list[dict[str, Any]] = []
        if status == "failed":
            code = "token_limit_exceeded" if batch.is_full else "invalid_json_line"
            errors = [{"code": code, "message": "No.", "line": 1}]
        completed = 0 if self.lies.wrong_counts or status == "expired" else lines
        read = read_batch(
            {
                "id": batch.id,
                "object": "batch",
                "status": status,
                "input_file_id": batch.file,
                "output_file_id": batch.output if is_told and batch.output else None,
                "error_file_id": batch.errors if is_told and batch.errors else None,
                "errors": {"object": "list", "data": errors} if errors else None,
                "created_at": int(batch.made_at),
                "request_counts": {"total": lines, "completed": completed, "failed": 0},
                "metadata": None if self.lies.keeps_no_metadata else {"gateway_part": batch.part},
            }
        )
        assert read is not None
        return read

    def _work_off(self, batch: _Batch) -> None:
        if batch.is_worked_off:
            return
        batch.is_worked_off = True
        lies = self.lies
        texts = self.files[batch.file][1].splitlines()
        ended_at = batch.cancelled_at or batch.made_at + (lies.expires_after_s or lies.works_s)
        done = texts[: int(len(texts) * min(1.0, (ended_at - batch.made_at) / lies.works_s))]
        output, errors = [], []
        for number, text in enumerate(reversed(done)):
            line = orjson.loads(text)
            self.served[line["custom_id"]] += 1
            if lies.drops and number % lies.drops == 0:
                continue
            answer = _answer(line, 200, usage=self.lies.usage)
            if lies.status_zero and number % lies.status_zero == 1:
                answer["response"]["status_code"] = 0
            if lies.overloaded and number % lies.overloaded == 2:
                errors.append(_answer(line, 503))
            elif lies.bad and number % lies.bad == 0:
                errors.append(_answer(line, 400))
            elif lies.spent and number % lies.spent == 0:
                errors.append(_answer(line, 400, {"error": {"message": EMPTY, "code": "billing_hard_limit_reached"}}))
            elif lies.too_long and number % lies.too_long == 0:
                errors.append(_answer(line, 400, {"error": {"message": "no", "code": "context_length_exceeded"}}))
            else:
                output.append(answer)
            if lies.twice:
                output.append({**answer, "response": {**answer["response"], "body": {"answer": "another"}}})
        for line in texts[len(done) :]:
            why = {"code": "batch_expired", "message": "Too late."}
            errors.append({"id": "x", "custom_id": orjson.loads(line)["custom_id"], "response": None, "error": why})
        batch.output, batch.errors = self._kept(output), self._kept(errors)

    def _kept(self, lines: list[dict[str, Any]]) -> str:
        if not lines:
            return ""
        texts = [orjson.dumps(line) for line in lines]
        texts[0] = (b"\xef\xbb\xbf" if self.lies.bom else b"") + texts[0]
        if self.lies.garbage:
            stray = {"custom_id": "batch_req_another000001", "response": {"status_code": 200, "body": {}}}
            texts = [
                b"",
                b"{",
                b"[]",
                b"null",
                orjson.dumps(stray),
                b'{"custom_id":7}',
                *texts,
                b'{"custom_id":"x","resp',
            ]
        file_id = f"file-{len(self.files) + 1}"
        self.files[file_id] = "output.jsonl", b"\n".join(texts) + b"\n", self.now()
        return file_id


def _answer(
    line: dict[str, Any], status: int, said: dict[str, Any] | None = None, *, usage: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    assert line["method"] == "POST"
    body = said or {"answer": line["custom_id"], "model": line["body"]["model"]}
    told: dict[str, Any] = {}
    if status == 200:
        told["usage"] = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5} if usage is None else usage
        told["choices"] = [{"message": {"role": "assistant", "content": "x" * 400}}]
    return {
        "id": "batch_req_x",
        "custom_id": line["custom_id"],
        "response": {"status_code": status, "request_id": "req_x", "body": {**body, **told}},
        "error": None,
    }
