"""What is found and listed: one's own, newest first, page by page, while jobs and files come and go."""

from __future__ import annotations

import pytest

from gateway.products.jobs.model import FileQuery, JobFlag, JobKind, JobQuery, JobState, job_status
from tests.support.job_stores import ANSWER, HOUR_S, Jobs, chunk, line


async def listed(jobs: Jobs, query: JobQuery) -> list[str]:
    return [job.id for job in (await jobs.store.list_jobs(query)).jobs]


async def test_tenants_see_their_own(jobs: Jobs) -> None:
    """Another's job is as one that never was; operators see everything."""
    await jobs.call(id="a", tenant="a")
    await jobs.call(id="b", tenant="b")
    for work in await jobs.claim_all():
        await jobs.finish(work, answer=ANSWER)

    assert await jobs.store.find("a", "b") is None
    assert await jobs.store.find("never", "b") is None
    assert await jobs.store.answer("a", "b") is None
    assert await jobs.store.answer("a", "a") == await jobs.store.answer("a", None) == ANSWER
    assert await listed(jobs, JobQuery("a")) == ["a"]
    assert await listed(jobs, JobQuery("nobody")) == []
    assert await listed(jobs, JobQuery(None)) == ["b", "a"]


async def test_pages_newest_first(jobs: Jobs) -> None:
    """Each begins behind the last of the one before; the last says that there is no more."""
    for number in range(7):
        await jobs.call(id=f"j{number}")
        await jobs.call(tenant="other")
    first = await jobs.store.list_jobs(JobQuery("t", limit=3))
    second = await jobs.store.list_jobs(JobQuery("t", limit=3, after=first.jobs[-1].id))
    third = await jobs.store.list_jobs(JobQuery("t", limit=3, after=second.jobs[-1].id))

    assert [[job.id for job in page.jobs] for page in (first, second, third)] == [
        ["j6", "j5", "j4"],
        ["j3", "j2", "j1"],
        ["j0"],
    ]
    assert [page.has_more for page in (first, second, third)] == [True, True, False]


async def test_a_full_last_page_has_no_more(jobs: Jobs) -> None:
    """Exactly as many as asked for."""
    for number in range(3):
        await jobs.call(id=f"j{number}")

    assert not (await jobs.store.list_jobs(JobQuery("t", limit=3))).has_more


async def test_jobs_that_come_and_go_move_no_page(jobs: Jobs) -> None:
    """None is shown twice, none that stays is left out."""
    for number in range(6):
        await jobs.call(id=f"j{number}")
    first = await jobs.store.list_jobs(JobQuery("t", limit=3))
    await jobs.call(id="new")
    works = {work.job.id: work for work in await jobs.claim_all()}
    await jobs.finish(works["j2"])
    jobs.wall.advance(1)
    await jobs.store.forget_ended(jobs.wall(), 1)
    second = await jobs.store.list_jobs(JobQuery("t", limit=3, after=first.jobs[-1].id))

    assert [job.id for job in first.jobs] == ["j5", "j4", "j3"]
    assert [job.id for job in second.jobs] == ["j1", "j0"]


async def test_behind_what_is_not_there_is_nothing(jobs: Jobs) -> None:
    """Nor behind another's job."""
    await jobs.call(id="mine")
    await jobs.call(id="theirs", tenant="other")

    for after in ("never", "theirs"):
        page = await jobs.store.list_jobs(JobQuery("t", after=after))
        assert (list(page.jobs), page.has_more) == ([], False)


async def test_lists_by_kind_state_and_metadata(jobs: Jobs) -> None:
    """All that is asked for has to fit, on every page."""
    await jobs.call(id="plain")
    await jobs.call(id="red", about={"metadata": {"colour": "red", "n": "1"}})
    await jobs.batch(id="batch", about={"metadata": {"colour": "red"}})
    await jobs.call(id="late", run_at=jobs.wall() + 10, about={"metadata": None})
    await jobs.store.flag("plain", "t", JobFlag.CANCEL)

    assert await listed(jobs, JobQuery("t", kind=JobKind.CALL)) == ["late", "red", "plain"]
    assert await listed(jobs, JobQuery("t", statuses=[JobState.CANCELLED])) == ["plain"]
    assert await listed(jobs, JobQuery("t", statuses=[JobState.CANCELLED, JobState.SCHEDULED])) == ["late", "plain"]
    assert await listed(jobs, JobQuery("t", metadata={"colour": "red"})) == ["batch", "red"]
    assert await listed(jobs, JobQuery("t", metadata={"colour": "red", "n": "1"})) == ["red"]
    page = await jobs.store.list_jobs(JobQuery("t", metadata={"colour": "red"}, limit=1))
    assert page.has_more
    assert await listed(jobs, JobQuery("t", metadata={"colour": "red"}, limit=1, after="batch")) == ["red"]


@pytest.mark.parametrize("failed", [0, 1])
async def test_a_batch_whose_lines_failed_has_a_status_that_says_so(jobs: Jobs, failed: int) -> None:
    """To be listed by; its state is that of any batch that has ended by itself."""
    await jobs.running_batch(total=2, id="batch")
    work = await jobs.claim()
    await jobs.store.commit(work, [line(0), line(1, is_failed=bool(failed))])
    await jobs.store.complete_chunk(work, chunk(0))
    await jobs.finish(await jobs.claim())
    await jobs.finish(await jobs.running_call(id="call"))

    assert (await jobs.get("batch")).state is JobState.SUCCEEDED
    assert job_status(await jobs.get("batch")) == ("completed_with_failures" if failed else "succeeded")
    with_failures = await listed(jobs, JobQuery("t", statuses=["completed_with_failures"]))
    assert with_failures == (["batch"] if failed else [])
    assert await listed(jobs, JobQuery("t", statuses=["succeeded"])) == (["call"] if failed else ["call", "batch"])
    assert await listed(jobs, JobQuery("t", statuses=["succeeded", "completed_with_failures"])) == ["call", "batch"]


async def test_a_needle_is_found(jobs: Jobs) -> None:
    """Far down in a long list; and the list goes on to its end."""
    await jobs.call(id="needle", about={"metadata": {"needle": "yes"}})
    await jobs.store.accept([jobs.new() for _ in range(2500)])

    page = await jobs.store.list_jobs(JobQuery("t", metadata={"needle": "yes"}, limit=1))

    assert [job.id for job in page.jobs] == ["needle"]
    assert not page.has_more


async def test_a_file_is_its_tenants(jobs: Jobs) -> None:
    """As it was given; another's is as one that never was."""
    file = jobs.file("f1", filename="ä.jsonl", bytes=2**40, expires_at=jobs.wall() + HOUR_S)
    await jobs.store.files.add(file)

    assert await jobs.store.files.find("f1", "t") == file
    assert await jobs.store.files.find("f1", "other") is None
    assert await jobs.store.files.find("never", "t") is None
    assert not await jobs.store.files.remove("f1", "other")
    assert await jobs.store.files.page(FileQuery("other")) == ([], False)
    assert await jobs.store.files.find("f1", "t") == file


async def test_pages_of_files(jobs: Jobs) -> None:
    """In either order, of one purpose or all."""
    for number in range(5):
        purpose = "batch_output" if number == 2 else "batch"
        await jobs.store.files.add(jobs.file(f"f{number}", purpose=purpose))

    async def page(**fields: object) -> tuple[list[str], bool]:
        files, has_more = await jobs.store.files.page(FileQuery("t", **fields))  # type: ignore[arg-type]  # as named
        return [file.id for file in files], has_more

    assert await page(limit=3) == (["f4", "f3", "f2"], True)
    assert await page(limit=3, after="f2") == (["f1", "f0"], False)
    assert await page(limit=4, is_newest_first=False) == (["f0", "f1", "f2", "f3"], True)
    assert await page(after="f3", is_newest_first=False) == (["f4"], False)
    assert await page(purpose="batch", limit=4) == (["f4", "f3", "f1", "f0"], False)
    assert await page(after="never") == ([], False)


@pytest.mark.parametrize("is_newest_first", [True, False])
async def test_files_can_be_removed_while_they_are_listed(jobs: Jobs, is_newest_first: bool) -> None:
    """Whoever removes each page before asking for the next one removes them all."""
    for number in range(7):
        await jobs.store.files.add(jobs.file(f"f{number}"))
    after, removed = None, 0
    while True:
        query = FileQuery("t", after=after, limit=2, is_newest_first=is_newest_first)
        files, has_more = await jobs.store.files.page(query)
        for file in files:
            removed += await jobs.store.files.remove(file.id, "t")
        if not has_more:
            break
        after = files[-1].id

    assert removed == 7
    assert await jobs.store.files.page(FileQuery("t")) == ([], False)


async def test_the_bytes_of_files_are_counted_while_they_are_there(jobs: Jobs) -> None:
    """Of one tenant, and of all."""
    for number, tenant in enumerate(("a", "a", "b")):
        await jobs.store.files.add(jobs.file(f"file-{number}", tenant=tenant, bytes=10**number))
    await jobs.store.files.remove("file-0", "a")

    async def counted() -> list[int]:
        return [await jobs.store.files.bytes_of(tenant) for tenant in ("a", "b", "c", None)]

    assert await counted() == [10, 100, 0, 110]
    await jobs.store.files.add(jobs.file("file-1", tenant="c", bytes=7, expires_at=jobs.wall() + 10))
    assert await counted() == [0, 100, 7, 107]
    jobs.wall.advance(10)
    assert await counted() == [0, 100, 0, 100]
    assert await jobs.take_garbage(10) == ["files/file-0", "files/file-1"]
    assert await counted() == [0, 100, 0, 100]
    await jobs.store.files.add(jobs.file("file-1", tenant="a", bytes=3))
    assert await counted() == [3, 100, 0, 103]


@pytest.mark.parametrize("expires_in_s", [None, HOUR_S])
async def test_a_file_that_was_removed_stays_so(jobs: Jobs, expires_in_s: float | None) -> None:
    """Whoever was late to keep it brings it back to nobody: what it had is garbage."""
    expires_at = None if expires_in_s is None else jobs.wall() + expires_in_s
    await jobs.store.files.add(jobs.file("f1", blob="files/a", expires_at=expires_at))
    await jobs.store.files.remove("f1", "t")
    await jobs.store.files.add(jobs.file("f1", blob="files/b", expires_at=expires_at))

    assert await jobs.store.files.find("f1", "t") is None
    assert await jobs.store.files.page(FileQuery("t")) == ([], False)
    assert await jobs.store.files.bytes_of("t") == 0
    assert sorted(await jobs.take_garbage(10)) == ["files/a", "files/b"]


async def test_garbage_is_named_until_it_is_forgotten(jobs: Jobs) -> None:
    """So none is left behind by whoever dies between its removal and that."""
    for number in range(3):
        await jobs.store.files.add(jobs.file(f"f{number}"))
        await jobs.store.files.remove(f"f{number}", "t")

    assert [await jobs.store.files.find_garbage(2) for _ in range(2)] == [["files/f0", "files/f1"]] * 2
    await jobs.store.files.forget_garbage(["files/f0", "files/unknown"])
    assert await jobs.store.files.find_garbage(2) == ["files/f1", "files/f2"]


async def test_a_blob_that_somebody_needs_is_known(jobs: Jobs) -> None:
    """That of a file, of an open job's input, and of what is garbage already; no other."""
    await jobs.store.files.add(jobs.file("f1"))
    await jobs.store.files.add(jobs.file("f2"))
    await jobs.accept(jobs.new_batch(reads="files/f2"))
    await jobs.store.files.remove("f2", "t")
    names = ["files/f0", "files/f1", "files/f2", "batch/x/index"]

    assert sorted(await jobs.store.files.used(names)) == ["files/f1", "files/f2"]
    await jobs.finish(await jobs.claim(), JobState.FAILED)
    assert sorted(await jobs.store.files.used(names)) == ["files/f1", "files/f2"]
    await jobs.store.files.forget_garbage(["files/f2"])
    assert sorted(await jobs.store.files.used(names)) == ["files/f1"]
    assert await jobs.store.files.used([]) in (set(), [], ())


async def test_a_store_is_told_from_others(jobs: Jobs) -> None:
    """By a short word that stays."""
    identity = await jobs.store.identity()

    assert identity.isalnum()
    assert len(identity) >= 8
    assert await jobs.store.identity() == identity


async def test_a_removed_file_is_gone_and_its_blob_garbage_once(jobs: Jobs) -> None:
    """At once, where nothing reads it."""
    await jobs.store.files.add(jobs.file("f1"))
    await jobs.store.files.add(jobs.file("f2"))
    assert await jobs.take_garbage(10) == []
    assert await jobs.store.files.remove("f1", "t")
    assert not await jobs.store.files.remove("f1", "t")

    assert await jobs.store.files.find("f1", "t") is None
    assert await jobs.take_garbage(10) == ["files/f1"]
    assert await jobs.take_garbage(10) == []


async def test_an_expired_file_is_gone_and_its_blob_garbage_once(jobs: Jobs) -> None:
    """By the store's clock."""
    await jobs.store.files.add(jobs.file("f1", expires_at=jobs.wall() + 10))
    jobs.wall.advance(9)
    assert await jobs.store.files.find("f1", "t") is not None
    jobs.wall.advance(1)

    assert await jobs.store.files.find("f1", "t") is None
    assert not await jobs.store.files.remove("f1", "t")
    assert await jobs.store.files.page(FileQuery("t")) == ([], False)
    assert await jobs.take_garbage(10) == ["files/f1"]
    assert await jobs.take_garbage(10) == []


async def test_a_file_may_be_kept_again(jobs: Jobs) -> None:
    """One with the same id is replaced: the old blob is garbage unless it is the new one, too."""
    await jobs.store.files.add(jobs.file("f1", bytes=1))
    await jobs.store.files.add(jobs.file("f1", bytes=2))
    assert await jobs.take_garbage(10) == []
    await jobs.store.files.add(jobs.file("f1", blob="files/other"))

    found = await jobs.store.files.find("f1", "t")
    assert found is not None
    assert found.blob == "files/other"
    assert await jobs.take_garbage(10) == ["files/f1"]


async def test_an_expired_file_that_is_kept_again_was_garbage_once(jobs: Jobs) -> None:
    """Its old blob is not named a second time."""
    await jobs.store.files.add(jobs.file("f1", expires_at=jobs.wall() + 10))
    jobs.wall.advance(10)
    assert await jobs.take_garbage(10) == ["files/f1"]
    await jobs.store.files.add(jobs.file("f1", blob="files/other"))

    assert await jobs.take_garbage(10) == []


async def test_a_blob_that_two_files_have_stays_for_the_other(jobs: Jobs) -> None:
    """Until that is removed as well."""
    for name in ("f1", "f2"):
        await jobs.store.files.add(jobs.file(name, blob="files/both"))
    await jobs.store.files.remove("f1", "t")
    assert await jobs.take_garbage(10) == []
    await jobs.store.files.remove("f2", "t")

    assert await jobs.take_garbage(10) == ["files/both"]


@pytest.mark.parametrize("way", ["removed", "expired"])
async def test_what_an_open_batch_reads_stays(jobs: Jobs, way: str) -> None:
    """Nobody can get the file any more, but its blob is there until the last batch that reads it has ended."""
    await jobs.store.files.add(jobs.file("f1", expires_at=jobs.wall() + 10))
    for name in ("b1", "b2"):
        await jobs.accept(jobs.new_batch(id=name, reads="files/f1"))
    if way == "removed":
        await jobs.store.files.remove("f1", "t")
    jobs.wall.advance(10)
    b1, b2 = await jobs.claim_all()
    assert await jobs.store.files.find("f1", "t") is None
    assert await jobs.take_garbage(10) == []
    await jobs.finish(b1, JobState.FAILED)
    assert await jobs.take_garbage(10) == []
    await jobs.finish(b2)

    assert await jobs.take_garbage(10) == ["files/f1"]


async def test_the_blobs_of_chunks_are_garbage_when_the_batch_has_ended(jobs: Jobs) -> None:
    """But not one that became a file; as many at a time as asked for."""
    await jobs.running_batch(total=4)
    final = await jobs.until_finalise()
    assert await jobs.take_garbage(10) == []
    await jobs.store.files.add(jobs.file("out", blob="chunk-0.out"))
    await jobs.finish(final)

    first = await jobs.take_garbage(2)
    second = await jobs.take_garbage(2)
    assert len(first) == 2
    assert sorted([*first, *second]) == ["chunk-0.err", "chunk-1.err", "chunk-1.out"]
    await jobs.store.files.remove("out", "t")
    assert await jobs.take_garbage(2) == ["chunk-0.out"]
