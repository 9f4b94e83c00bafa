"""`gateway jobs backup`: a copy of the jobs file of a gateway at work, and what becomes of the jobs in it elsewhere."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import orjson
import pytest

from gateway.cli.main import main
from gateway.demo.sqlite import lines_with_results
from tests.e2e.batch_kills import UNEVEN
from tests.e2e.batches import asked_of, begin, check_end, end_of, line, names
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import WEB, ask, new_job, result_of, take, with_jobs
from tests.e2e.harness import ADMIN_KEY, KEYS, config_of, get, until
from tests.e2e.test_state_backup import ADMIN

OPERATED = {"key": ADMIN_KEY}


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; the gateway goes on in this loop meanwhile."""
    code = await asyncio.to_thread(main, ["jobs", "backup", *arguments, "--admin-key", ADMIN_KEY])
    return code, *capsys.readouterr()


def link(folder: Path, copy: Path) -> None:
    """As `cp -aln` does: files that are whole have their names for good."""
    shutil.copytree(folder, copy, copy_function=_link_once, dirs_exist_ok=True)


def _link_once(source: str, target: str) -> None:
    if not os.path.exists(target):
        os.link(source, target)


async def test_jobs_go_on_from_a_copy(start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was kept by then is not asked for again; what was done, or taken, after the copy is not known there."""
    lost = tmp_path / "lost"
    restored = tmp_path / "restored"
    lost.mkdir()
    restored.mkdir()
    custom_ids = names(150)
    first = await start(with_jobs(lost, admin=OPERATED), emulator=UNEVEN)
    before = await take(first.url, new_job())
    answer = await result_of(first.url, before["id"])
    async with first.sdk() as sdk:
        batch = await begin(sdk, map(line, custom_ids))
        await until(lambda: first.emulator.emulator.stats.statuses[200] >= 40)
        link(lost / "blobs", restored / "blobs")
        code, output, errors = await run(capsys, str(restored / "jobs.db"), "--url", first.url)
        link(lost / "blobs", restored / "blobs")
        after = await take(first.url, new_job())
        await end_of(sdk, batch.id)
    kept = lines_with_results(str(restored / "jobs.db"))
    await first.stop()
    second = await start(with_jobs(restored, admin=OPERATED), emulator=UNEVEN)
    async with second.sdk() as sdk:
        done = await end_of(sdk, batch.id)
        await check_end(sdk, done, custom_ids)
    known = await ask(second.url, get(f"/v1/jobs/{before['id']}/result", WEB))
    unknown = await ask(second.url, get(f"/v1/jobs/{after['id']}", WEB))

    assert (code, errors) == (0, "")
    assert "checked" in output
    assert "jobs file" in output
    assert done.status == "completed"
    assert 0 < len(kept) < len(custom_ids)
    again = asked_of(second.emulator.emulator.recorder)
    assert again == {name: 1 for number, name in enumerate(custom_ids) if number not in kept}
    assert (known.status, known.body) == (200, answer.body)
    assert unknown.status == 404
    assert [path.name for path in lost.glob("*.backup*")] == []


async def test_where_there_is_no_jobs_file_it_is_said(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs are off, or none was taken yet; nothing is made for that."""
    off = await start(lambda url: config_of(url, admin=OPERATED, jobs="off", keys=KEYS))
    unused = await start(with_jobs(tmp_path, admin=OPERATED))
    said = [await run(capsys, str(tmp_path / "copy"), "--url", one.url) for one in (off, unused)]

    assert [code for code, _, _ in said] == [2, 2]
    assert all("There is no jobs file to copy" in errors for _, _, errors in said)
    assert not (tmp_path / "copy").exists()
    assert not (tmp_path / "jobs.db").exists()


async def test_only_operators_get_the_jobs(start: StartGateway, tmp_path: Path) -> None:
    """Everybody's requests and answers are in it, in clear."""
    gateway = await start(with_jobs(tmp_path, admin=OPERATED))
    await take(gateway.url, new_job())
    answers = [await ask(gateway.url, get("/admin/jobs/backup", *given)) for given in ((), (WEB,), (ADMIN,))]

    assert [one.status for one in answers] == [401, 401, 200]
    assert orjson.loads(answers[0].body)["error"]["code"]
    assert answers[2].body.startswith(b"SQLite format 3\0")


async def test_what_a_killed_process_left_of_a_copy_goes(start: StartGateway, tmp_path: Path) -> None:
    """When jobs are opened next."""
    left = tmp_path / "jobs.db.0123456789abcdef.backup"
    left.write_bytes(b"x")
    gateway = await start(with_jobs(tmp_path))
    await take(gateway.url, new_job())

    assert not left.exists()
