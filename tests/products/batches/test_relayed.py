"""Uploads and batches that are the provider's of `passthrough`: their bytes go on, also those that were read to find it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import orjson
import pytest

from gateway.products.jobs.model import FILE, new_id
from tests.e2e.durable import ask
from tests.e2e.harness import WEB_KEY
from tests.products.batches.edge import job_edge
from tests.rows import rows

AUTH: Final = f"authorization: Bearer {WEB_KEY}".encode()
FILE_PART: Final = b'--b\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n%b\r\n'
PURPOSE_PART: Final = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n%b\r\n'


def posted(path: bytes, kind: bytes, body: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (path, AUTH, kind, len(body)) + body


def form(purpose: bytes, content: bytes, *, is_file_first: bool) -> bytes:
    parts = [PURPOSE_PART % purpose, FILE_PART % content]
    return b"".join([*(reversed(parts) if is_file_first else parts), b"--b--\r\n"])


def upload(body: bytes) -> bytes:
    return posted(b"/v1/files", b"multipart/form-data; boundary=b", body)


@pytest.mark.parametrize("is_file_first", [False, True])
async def test_a_file_of_another_purpose_goes_on_byte_for_byte(tmp_path: Path, is_file_first: bool) -> None:
    """Of ours nothing changes, nothing is left of the others, and without a passthrough they are refused as before."""
    theirs = form(b"assistants", b"y" * 300_000, is_file_first=is_file_first)
    ours = form(b"batch", b"{}", is_file_first=is_file_first)
    async with job_edge(tmp_path, passthrough="main") as edge:
        relayed, kept = await ask(edge.url, upload(theirs)), await ask(edge.url, upload(ours))
        assert (relayed.status, relayed.body, kept.status) == (299, theirs, 200)
        assert len(edge.blobs.names) == 1  # type: ignore[attr-defined]  # those in memory
    async with job_edge(tmp_path) as edge:
        assert (await ask(edge.url, upload(theirs))).status == 400


async def test_what_is_held_until_the_purpose_comes_has_a_bound(tmp_path: Path) -> None:
    """That of bodies: a longer upload is taken for the input of a batch, and refused when it turns out to be none."""
    async with job_edge(tmp_path, passthrough="main", server={"max_body": "64KB"}) as edge:
        for purpose, status in ((b"assistants", 400), (b"batch", 200)):
            body = form(purpose, b"{}" * 100_000, is_file_first=True)
            assert (await ask(edge.url, upload(body))).status == status


@rows(
    ("file_id", "is_passed", "status"),
    [("file-abc", True, 299), ("file-abc", False, 400), (new_id(FILE, b"y" * 16), True, 400), (None, True, 400)],
)
async def test_a_batch_of_the_providers_file_goes_on(
    tmp_path: Path, file_id: str | None, is_passed: bool, status: int
) -> None:
    """One of our files, or of none, is ours."""
    asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": file_id}
    body = orjson.dumps(asked)
    passed: dict[str, Any] = {"passthrough": "main"} if is_passed else {}
    async with job_edge(tmp_path, **passed) as edge:
        answer = await ask(edge.url, posted(b"/v1/batches", b"application/json", body))
        assert answer.status == status
        assert (answer.body == body) is (status == 299)
