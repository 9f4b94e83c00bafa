"""The Files API on a real port: the official SDK, tenants, bounds, and clients that leave or dawdle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import orjson
import pytest

from gateway.drivers.blobs import DirectoryBlobs
from gateway.drivers.durability import JobsUnavailable
from gateway.products.jobs.model import FILE, NewJob, TenantStorageFull, is_ours, new_id
from tests.e2e.harness import WEB_KEY, Response, connect, get, until
from tests.products.batches.edge import OTHER_KEY, JobEdge, job_edge
from tests.products.batches.test_batch_output import batch
from tests.support.memory_blobs import MemoryBlobs

LINES = b'{"custom_id":"a"}\r\n' * 20_000
AUTH = f"authorization: Bearer {WEB_KEY}"


@pytest.fixture(params=["memory", "directory"])
async def edge(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobEdge]:
    """The routes on every store of blobs."""
    blobs = MemoryBlobs() if request.param == "memory" else DirectoryBlobs(tmp_path / "files")
    async with job_edge(tmp_path, blobs=blobs) as running:
        yield running


async def names(edge: JobEdge) -> list[str]:
    """Returns the blobs that are there, once nothing is under way."""
    if isinstance(edge.blobs, MemoryBlobs):
        return edge.blobs.names
    assert isinstance(edge.blobs, DirectoryBlobs)
    await edge.blobs.aclose()
    root = edge.blobs.root
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def test_a_file_comes_back_as_it_went(edge: JobEdge) -> None:
    """With the object that the SDK knows, in every call."""
    sdk = edge.sdk()

    made = await sdk.files.create(file=("in put.jsonl", LINES), purpose="batch")
    shown = await sdk.files.retrieve(made.id)
    content = await sdk.files.content(made.id)
    listed = [file async for file in sdk.files.list()]
    deleted = await sdk.files.delete(made.id)

    assert is_ours(FILE, made.id)
    assert (made.bytes, made.filename, made.purpose, made.status) == (len(LINES), "in put.jsonl", "batch", "processed")
    assert made.expires_at == made.created_at + 30 * 86_400
    assert made == shown == listed[0]
    assert content.content == LINES
    assert content.response.headers["content-disposition"] == (
        "attachment; filename=\"file\"; filename*=UTF-8''in%20put.jsonl"
    )
    assert content.response.headers["x-content-type-options"] == "nosniff"
    assert (deleted.id, deleted.deleted) == (made.id, True)
    for gone in (sdk.files.retrieve(made.id), sdk.files.content(made.id), sdk.files.delete(made.id)):
        with pytest.raises(openai.NotFoundError):
            await gone
    assert await edge.store.files.find_garbage(10) == [f"files/{made.id[-2:]}/{made.id}"]


async def test_a_file_lasts_as_long_as_its_upload_says(edge: JobEdge) -> None:
    """In the field that OpenAI has for it."""
    expires: Any = {"anchor": "created_at", "seconds": 3600}

    made = await edge.sdk().files.create(file=("a.jsonl", b"x"), purpose="batch", expires_after=expires)

    assert made.expires_at == made.created_at + 3600


async def test_lists_have_pages(edge: JobEdge) -> None:
    """By cursor, in both orders, by purpose."""
    sdk = edge.sdk()
    made = [(await sdk.files.create(file=(f"{n}.jsonl", b"x"), purpose="batch")).id for n in range(5)]

    assert [file.id async for file in sdk.files.list(limit=2)] == made[::-1]
    assert [file.id async for file in sdk.files.list(limit=2, order="asc")] == made
    assert [file.id async for file in sdk.files.list(purpose="batch_output")] == []
    page = orjson.loads((await ask(edge, get("/v1/files?limit=2", AUTH))).body)
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[4], made[3], True)
    for wrong in ("limit=0", "limit=10001", "limit=x", "limit=-1", "limit=%C2%B2", "order=up"):
        assert (await ask(edge, get(f"/v1/files?{wrong}", AUTH))).status == 400


async def ask(edge: JobEdge, data: bytes) -> Response:
    async with connect(edge.url) as peer:
        return await peer.exchange(data)


async def test_a_file_of_another_tenant_is_none(edge: JobEdge) -> None:
    """Byte by byte the same answer as for one that never was."""
    made = (await edge.sdk().files.create(file=("a.jsonl", b"x"), purpose="batch")).id
    other = f"authorization: Bearer {OTHER_KEY}"

    for method, tail in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answers = [
            (await ask(edge, get(f"/v1/files/{id}{tail}", other, method=method)))
            for id in (made, new_id(FILE, bytes(16)), "file-abc")
        ]
        assert {answer.status for answer in answers} == {404}
        assert len({answer.body for answer in answers}) == 1
        assert answers[0].error["code"] == "object_not_found"
    assert [file async for file in edge.sdk(OTHER_KEY).files.list()] == []
    assert (await edge.sdk().files.retrieve(made)).id == made
    assert (await ask(edge, get("/v1/files"))).status == 401


async def test_a_file_whose_bytes_are_lost_says_so(edge: JobEdge, caplog: pytest.LogCaptureFixture) -> None:
    """It is still listed: that there is none would be puzzling. The operator hears of it."""
    made = (await edge.sdk().files.create(file=("a.jsonl", b"x"), purpose="batch")).id
    await edge.blobs.remove([f"files/{made[-2:]}/{made}"])

    answer = await ask(edge, get(f"/v1/files/{made}/content", AUTH))

    assert (answer.status, answer.error["code"]) == (404, "object_not_found")
    assert "bytes have been lost" in answer.error["message"]
    assert f"file {made}: its bytes are gone" in caplog.text


@pytest.mark.parametrize(
    ("asked", "status", "content", "body"),
    [
        ("bytes=0-", 200, None, b"0123456789"),
        ("bytes=2-4", 206, "bytes 2-4/10", b"234"),
        ("bytes=8-99", 206, "bytes 8-9/10", b"89"),
        ("bytes=-3", 206, "bytes 7-9/10", b"789"),
        ("bytes=-99", 200, None, b"0123456789"),
        ("bytes=10-", 416, "bytes */10", None),
        ("bytes=-0", 416, "bytes */10", None),
        ("bytes=4-2", 200, None, b"0123456789"),
        ("bytes=0-1,3-4", 200, None, b"0123456789"),
        ("bytes=-", 200, None, b"0123456789"),
        ("lines=1-2", 200, None, b"0123456789"),
    ],
)
async def test_one_range_can_be_asked_for(
    tmp_path: Path, asked: str, status: int, content: str | None, body: bytes | None
) -> None:
    """Of RFC 9110; what is none, or several, is ignored."""
    async with job_edge(tmp_path) as edge:
        made = await edge.sdk().files.create(file=("a.jsonl", b"0123456789"), purpose="batch")

        answer = await ask(edge, get(f"/files/{made.id}/content", AUTH, f"range: {asked}"))

    assert (answer.status, answer.header("content-range")) == (status, content)
    assert body is None or answer.body == body


def form(*parts: tuple[str, bytes], boundary: str = "X") -> bytes:
    head = 'content-disposition: form-data; name="%s"\r\n\r\n'
    pieces = [f"--{boundary}\r\n{head % name}".encode() + value + b"\r\n" for name, value in parts]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


def upload(
    body: bytes, *headers: str, content_type: str = "multipart/form-data; boundary=X", length: int = -1
) -> bytes:
    lines = ["POST /v1/files HTTP/1.1", "host: localhost", AUTH, f"content-type: {content_type}", *headers]
    if length >= -1:
        lines.append(f"content-length: {len(body) if length < 0 else length}")
    return "\r\n".join([*lines, "", ""]).encode() + body


PURPOSE = ("purpose", b"batch")
ANCHOR = ("expires_after[anchor]", b"created_at")
LOG = ('file"; filename="a.jsonl', b"0123456789" * 10)


@pytest.mark.parametrize(
    "body",
    [form(PURPOSE, LOG), form(LOG, PURPOSE), form(("note", b"?"), LOG, PURPOSE), b"preamble\r\n" + form(LOG, PURPOSE)],
)
async def test_fields_come_in_any_order(tmp_path: Path, body: bytes) -> None:
    """And in pieces of any size."""
    async with job_edge(tmp_path) as edge, connect(edge.url) as peer:
        data = upload(body)
        for at in range(0, len(data), 7):
            peer.send(data[at : at + 7])
            await asyncio.sleep(0)
        answer = await peer.response()

        if body.startswith(b"pre"):  # which the parser does not take
            assert answer.status == 400
        else:
            assert orjson.loads(answer.body)["bytes"] == 100


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (form(LOG), "purpose"),
        (form(PURPOSE), "file"),
        (form(("purpose", b"assistants"), LOG), "purpose"),
        (form(LOG, ("purpose", b"vision")), "purpose"),
        (form(PURPOSE, PURPOSE, LOG), "purpose"),
        (form(PURPOSE, LOG, LOG), "file"),
        (form(PURPOSE, ('file"; filename="a.txt', b"x")), "file"),
        (form(PURPOSE, ("file", b"x")), "file"),
        (form(PURPOSE, ('file"; filename="a.jsonl', b"")), "file"),
        (form(PURPOSE, LOG, ("expires_after[seconds]", b"3600")), "expires_after[anchor]"),
        (form(PURPOSE, LOG, ("expires_after[anchor]", b"created_at")), "expires_after[seconds]"),
        (form(PURPOSE, ANCHOR, ("expires_after[seconds]", b"60"), LOG), "expires_after[seconds]"),
        (form(PURPOSE, LOG)[:-10], None),
        (form(PURPOSE, LOG, boundary="Y"), None),
        (form(("long", b"x" * 70_000), PURPOSE, LOG), None),
        (form(('x' * 5000, b"x"), PURPOSE, LOG), None),
        (b"--X\r\n\r\nno name\r\n--X--\r\n", None),
        (b"", None),
    ],
)  # fmt: skip
async def test_what_is_wrong_with_an_upload_is_said_and_nothing_is_left(
    edge: JobEdge, body: bytes, param: str | None
) -> None:
    """In OpenAI's shape, naming the field."""
    answer = await ask(edge, upload(body))

    assert answer.status == 400
    assert answer.error["param"] == param
    assert await names(edge) == []
    assert await edge.store.files.bytes_of(None) == 0


@pytest.mark.parametrize(
    ("headers", "content_type", "status"),
    [
        ([], "application/json", 400),
        ([], "multipart/form-data", 400),
        ([], "multipart/form-data; boundary=" + "x" * 300, 400),
        (["content-encoding: gzip"], "multipart/form-data; boundary=X", 415),
    ],
)
async def test_what_is_no_form_is_refused(tmp_path: Path, headers: list[str], content_type: str, status: int) -> None:
    """Before anything is read."""
    async with job_edge(tmp_path) as edge:
        assert (await ask(edge, upload(form(PURPOSE, LOG), *headers, content_type=content_type))).status == status


async def test_a_file_over_the_cap_is_refused_at_once_or_when_it_is(tmp_path: Path) -> None:
    """By what its length says, or by its bytes."""
    async with job_edge(tmp_path, settings={"max_file_bytes": 1000}) as edge:
        announced = await ask(edge, upload(b"", length=200_000))
        body = form(PURPOSE, ('file"; filename="a.jsonl', b"x" * 1001))
        found = await ask(edge, upload(body))
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        unannounced = await ask(edge, upload(chunked, "transfer-encoding: chunked", length=-2))
        exact = await edge.sdk().files.create(file=("a.jsonl", b"x" * 1000), purpose="batch")

        for answer in (announced, found, unannounced):
            assert (answer.status, answer.error["code"]) == (413, "file_too_large")
        assert exact.bytes == 1000
        assert isinstance(edge.blobs, MemoryBlobs)
        assert len(edge.blobs.names) == 1


async def test_a_tenants_files_take_no_more_room_than_they_may(tmp_path: Path) -> None:
    """All of them together, also those that come at once; another tenant has its own."""
    async with job_edge(tmp_path, settings={"max_bytes_per_tenant": 2500}) as edge:
        sdk = edge.sdk()
        await sdk.files.create(file=("a.jsonl", b"x" * 1000), purpose="batch")
        tries = [sdk.files.create(file=("b.jsonl", b"x" * 1000), purpose="batch") for _ in range(4)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        refused = [result for result in results if isinstance(result, openai.APIStatusError)]
        await edge.sdk(OTHER_KEY).files.create(file=("b.jsonl", b"x" * 1000), purpose="batch")

        assert {(one.status_code, one.code) for one in refused} == {(413, "tenant_storage_full")}
        assert await edge.store.files.bytes_of("web") <= 2500
        assert len(refused) >= 3
        assert not edge.files._coming


async def test_uploads_that_come_at_once_take_no_more_room_than_there_is(tmp_path: Path) -> None:
    """However many have begun: what they write counts while it comes, and the refusal names the bound."""
    for bounds, refusal in (
        ({"max_bytes_per_tenant": 2500}, TenantStorageFull),
        ({"max_bytes": 2500}, JobsUnavailable),
    ):
        async with job_edge(tmp_path, settings=bounds) as edge:
            uploads = [await edge.files.begin("web") for _ in range(100)]
            for upload in uploads[:2]:
                await upload.write(b"x" * 1000)
            for upload in uploads[2:]:
                with pytest.raises(refusal, match="2500" if refusal is TenantStorageFull else "room"):
                    await upload.write(b"x" * 1000)
            for upload in uploads:
                await upload.discard()
            assert not edge.files._coming


async def test_a_store_without_room_is_a_503(tmp_path: Path) -> None:
    """That a retry may mend; the same where the disk is full."""
    async with job_edge(tmp_path, blobs=MemoryBlobs(max_bytes=500)) as edge:
        answer = await ask(edge, upload(form(PURPOSE, ('file"; filename="a.jsonl', b"x" * 1000))))

        assert (answer.status, answer.error["code"]) == (503, "jobs_unavailable")
        assert answer.header("retry-after") is not None
    async with job_edge(tmp_path, settings={"max_bytes": 50}) as edge:
        answer = await ask(edge, upload(form(PURPOSE, LOG)))

        assert (answer.status, answer.error["code"]) == (503, "jobs_unavailable")


async def test_a_row_that_cannot_be_written_leaves_no_blob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes without the row would be nobody's."""

    async def fails(_file: object) -> None:
        raise JobsUnavailable("the disk")

    async with job_edge(tmp_path) as edge:
        monkeypatch.setattr(edge.store.files, "add", fails)
        answer = await ask(edge, upload(form(PURPOSE, LOG)))

        assert answer.status == 503
        assert isinstance(edge.blobs, MemoryBlobs)
        assert edge.blobs.names == []


async def test_a_client_that_leaves_leaves_nothing_behind(edge: JobEdge) -> None:
    """Neither a blob nor a count of its bytes."""
    async with connect(edge.url) as peer:
        peer.send(upload(form(PURPOSE, ('file"; filename="a.jsonl', b"x" * 500_000)))[:400_000])
        await until(lambda: edge.files._coming["web"] > 300_000)
    await until(lambda: not edge.server._state.tasks)

    assert not edge.files._coming
    assert await names(edge) == []


async def test_a_client_that_dawdles_is_told_so(tmp_path: Path) -> None:
    """And leaves nothing behind."""
    async with job_edge(tmp_path, server={"body_timeout": "50ms"}) as edge:
        async with connect(edge.url) as peer:
            peer.send(upload(form(PURPOSE, LOG))[:-20])
            answer = await peer.response()

        assert (answer.status, answer.error["code"]) == (408, "request_body_timeout")
        assert isinstance(edge.blobs, MemoryBlobs)
        assert edge.blobs.names == []
        assert not edge.files._coming


async def test_other_ids_are_left_to_the_provider_of_passthrough(tmp_path: Path) -> None:
    """Ours are answered here also where they are unknown; without a passthrough all are."""
    ours = new_id(FILE, b"y" * 16)
    paths = ["/v1/files/file-abc123", "/files/file-abc123/content", f"/v1/files/{ours}", f"/files/{ours}/content"]
    async with job_edge(tmp_path, passthrough="main") as edge:
        assert [(await ask(edge, get(path, AUTH))).status for path in paths] == [200, 200, 404, 404]
        assert (await ask(edge, get("/v1/files", AUTH))).status == 200
    async with job_edge(tmp_path) as edge:
        assert [(await ask(edge, get(path, AUTH))).status for path in paths] == [404, 404, 404, 404]


class SlowBlobs(MemoryBlobs):
    """A disk that stands still, and remembers the largest piece."""

    def __init__(self) -> None:
        super().__init__()
        self.moves = asyncio.Event()
        self.largest = 0

    async def writer(self, name: str) -> Any:
        """A writer that waits."""
        writer = await super().writer(name)
        write = writer.write

        async def slowly(data: bytes) -> None:
            self.largest = max(self.largest, len(data))
            await self.moves.wait()
            await write(data)

        writer.write = slowly  # type: ignore[method-assign]  # the disk of this test
        return writer


async def test_a_slow_disk_slows_its_client(tmp_path: Path) -> None:
    """Nothing piles up here, and the cap on other bodies does not hold for files."""
    blobs = SlowBlobs()
    data = b"0123456789abcdef" * 2_000_000
    async with job_edge(tmp_path, blobs=blobs, server={"max_body": "1kB"}) as edge:
        creating = asyncio.create_task(edge.sdk().files.create(file=("a.jsonl", data), purpose="batch"))
        await until(lambda: any(one.flow.read_paused for one in edge.connections))
        held = [len(one.cycle.body) for one in edge.connections]
        blobs.moves.set()
        made = await creating

        assert max(held) < 1_048_576
        assert blobs.largest < 1_048_576
        assert made.bytes == len(data)
        assert (await edge.sdk().files.content(made.id)).content == data


async def test_a_file_that_a_batch_reads_stays_until_its_end(tmp_path: Path) -> None:
    """Whoever deletes it."""
    async with job_edge(tmp_path) as edge:
        made = await edge.sdk().files.create(file=("a.jsonl", b"x"), purpose="batch")
        file = await edge.files.find(made.id, "web")
        await edge.store.accept([NewJob(batch(), reads=file.blob)])
        await edge.sdk().files.delete(made.id)

        assert await edge.store.files.find_garbage(10) == []
