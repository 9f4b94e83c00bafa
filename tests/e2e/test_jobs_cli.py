"""`gateway jobs` and `gateway batch run`: a real gateway with its jobs in a file, and whoever sits at the terminal."""

from __future__ import annotations

import asyncio
import io
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.operate import AdminRefused
from gateway.emulator.config import parse_rule
from gateway.products.batches import http
from gateway.products.batches.files_http import UploadForm
from gateway.products.jobs import cli as patience
from gateway.products.jobs.cli import (
    CallerClient,
    ProgressLine,
    _form,
    _pieces,
    batch_end,
    batch_problems,
    job_facts,
    jobs_table,
)
from tests.e2e.batches import begin, input_of, line, names
from tests.e2e.conftest import StartGateway
from tests.e2e.durable import NIGHTLY, ask, end_of, look, new_job, take, with_jobs
from tests.e2e.harness import ADMIN_KEY, NIGHTLY_KEY, PATIENCE_S, WEB_KEY, Running, get, post, until
from tests.e2e.replaying import hold


@pytest.fixture(autouse=True)
def _quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are looked at often, and nobody's key is in the environment."""
    monkeypatch.setattr(http, "POLL_AFTER_MS", 20)
    monkeypatch.setattr(patience, "AGAIN_S", 0.02)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
async def gateway(start: StartGateway, tmp_path: Path) -> Running:
    """A gateway with jobs."""
    return await start(with_jobs(tmp_path))


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; the gateway goes on in this loop meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        code = await asyncio.to_thread(main, arguments)
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    return code, output, errors


def caller(gateway: Running, key: str = WEB_KEY) -> tuple[str, ...]:
    """Where, and by whose leave."""
    return ("--url", gateway.url, "--api-key", key)


def written(folder: Path, custom_ids: list[str]) -> Path:
    """An input file with these lines."""
    path = folder / "night.jsonl"
    path.write_bytes(input_of(map(line, custom_ids)))
    return path


def lines_of(path: Path) -> list[str]:
    """The custom_ids of a file of answers, in its order."""
    return [orjson.loads(one)["custom_id"] for one in path.read_bytes().splitlines()]


async def test_a_file_becomes_the_file_of_its_answers(
    capsys: pytest.CaptureFixture[str], gateway: Running, tmp_path: Path
) -> None:
    """Beside it, in its order; standard output has the sentence, standard error how far it was."""
    custom_ids = names(40)
    path = written(tmp_path, custom_ids)

    code, output, errors = await run(capsys, "batch", "run", str(path), *caller(gateway))

    answers = tmp_path / "night.output.jsonl"
    assert code == 0, errors
    assert lines_of(answers) == custom_ids
    assert not (tmp_path / "night.errors.jsonl").exists()
    assert output.startswith("batch_gw")
    assert output.endswith(f" completed; 40 of 40 lines answered: {answers}\n")
    assert errors.startswith("uploading ")
    assert "\x1b" not in errors


async def test_failed_lines_have_their_file_and_their_exit_code(
    capsys: pytest.CaptureFixture[str], gateway: Running, tmp_path: Path
) -> None:
    """Where they are wanted; for machines the batch is printed as it came."""
    await gateway.emulator.configure(faults=(parse_rule({"fault": "context_length", "model": "too-small"}),))
    path, output_path, errors_path = tmp_path / "in.jsonl", tmp_path / "a", tmp_path / "b"
    path.write_bytes(input_of([line("a"), line("b", "too-small"), line("c")]))

    where = ("--output", str(output_path), "--errors", str(errors_path))
    code, output, _ = await run(capsys, "batch", "run", str(path), *where, "--json", *caller(gateway))

    assert code == 1
    batch = orjson.loads(output)
    assert (batch["status"], batch["request_counts"]) == ("completed", {"total": 3, "completed": 2, "failed": 1})
    assert (lines_of(output_path), lines_of(errors_path)) == (["a", "c"], ["b"])
    assert batch_end(batch, "a", "b").endswith(" completed with failures; 2 of 3 lines answered: a; 1 failed: b")

    _, listed, _ = await run(capsys, "jobs", "ls", "--status", "completed_with_failures", *caller(gateway))
    _, none, _ = await run(capsys, "jobs", "ls", "--status", "succeeded", *caller(gateway))
    _, shown, _ = await run(capsys, "jobs", "show", batch["id"], *caller(gateway))
    _, stopped, _ = await run(capsys, "jobs", "cancel", batch["id"], *caller(gateway))
    assert "completed with failures" in listed
    assert none == "no jobs\n"
    assert "completed with failures" in shown
    assert stopped == f"{batch['id']} has ended: completed with failures\n"


async def test_what_is_wrong_with_a_file_is_told_line_by_line(
    capsys: pytest.CaptureFixture[str], gateway: Running, tmp_path: Path
) -> None:
    """As wrong usage: nothing has run."""
    path = written(tmp_path, ["a", "a"])

    code, output, errors = await run(capsys, "batch", "run", str(path), *caller(gateway))

    assert (code, output) == (2, "")
    assert "has failed, and nothing of it has run" in errors
    assert "gateway: line 2: " in errors
    assert "(duplicate_custom_id)" in errors
    assert gateway.upstream_calls() == 0


async def test_jobs_and_batches_are_listed_shown_and_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gateway: Running, tmp_path: Path
) -> None:
    """By their tenant; a batch says where its answers are; the key may come from the environment."""
    monkeypatch.setenv("OPENAI_API_KEY", WEB_KEY)
    url = ("--url", gateway.url)
    await take(gateway.url, new_job(delay="1h", key=NIGHTLY))
    done = await take(gateway.url, new_job())
    await end_of(gateway.url, done["id"])
    await run(capsys, "batch", "run", str(written(tmp_path, ["a", "b"])), *url)
    later = await take(gateway.url, new_job(delay="1h"))

    _, listed, _ = await run(capsys, "jobs", "ls", *url)
    _, page, _ = await run(capsys, "jobs", "ls", "--status", "succeeded", "--limit", "1", *url)
    _, as_it_came, _ = await run(capsys, "jobs", "ls", "--json", *url)
    batch_id = listed.splitlines()[2].split()[0]
    _, batch, _ = await run(capsys, "jobs", "show", batch_id, *url)
    _, job, _ = await run(capsys, "jobs", "show", done["id"], *url)
    code, stopped, _ = await run(capsys, "jobs", "cancel", later["id"], *url)
    _, ended, _ = await run(capsys, "jobs", "cancel", done["id"], *url)

    heading, *rows = listed.splitlines()
    assert heading.split() == ["id", "kind", "status", "model", "done", "created", "cost"]
    assert [row.split()[0] for row in rows] == [later["id"], batch_id, done["id"]]
    assert [row.split()[2] for row in rows] == ["scheduled", "succeeded", "succeeded"]
    assert "2 of 2" in rows[1]
    assert page.splitlines()[-1] == f"there are more: --after {batch_id}"
    assert [one["id"] for one in orjson.loads(as_it_came)["data"]] == [later["id"], batch_id, done["id"]]
    assert "output    /v1/files/file-gw" in batch
    assert "paused" not in batch
    assert f"result    /v1/jobs/{done['id']}/result\n" in job
    assert code == 0
    assert stopped.startswith(f"{later['id']} ")
    assert ended == f"{done['id']} has ended: succeeded\n"


async def test_operators_have_jobs_stand_still_and_go_on(
    capsys: pytest.CaptureFixture[str], start: StartGateway, tmp_path: Path
) -> None:
    """Whosever they are; the lines of a batch, too. What is not there is told, and fails the command."""
    gateway = await start(with_jobs(tmp_path, admin={"key": ADMIN_KEY}))
    operator = ("--url", gateway.url, "--admin-key", ADMIN_KEY)
    later = await take(gateway.url, new_job(delay="1h"))

    paused = await run(capsys, "jobs", "pause", later["id"], "job_gw_unknown", *operator)
    assert paused == (1, f"{later['id']} is paused\njob_gw_unknown is no job of this gateway's\n", "")
    assert (await look(gateway.url, later["id"]))["is_paused"]
    shown = await ask(gateway.url, get("/admin/jobs?status=scheduled", f"authorization: Bearer {ADMIN_KEY}"))
    (row,) = orjson.loads(shown.body)["data"]
    assert (row["id"], row["tenant"], row["is_paused"]) == (later["id"], "web", True)
    assert await run(capsys, "jobs", "resume", later["id"], *operator) == (0, f"{later['id']} goes on\n", "")
    assert not (await look(gateway.url, later["id"]))["is_paused"]

    async with gateway.sdk() as sdk:
        done = await end_of(gateway.url, (await begin(sdk, [line("a")])).id)
    code, output, _ = await run(capsys, "jobs", "pause", done["id"], *operator)
    assert (code, output) == (0, f"{done['id']} has ended\n")
    for body in (b"{}", b'{"ids": []}', b'{"ids": [7]}', b'{"ids": ["a"], "all": true}'):
        refused = await ask(gateway.url, post("/admin/jobs/pause", body, f"authorization: Bearer {ADMIN_KEY}"))
        assert refused.status == 400, refused.raw


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("jobs", "ls", "--api-key", "wrong"), 2, "does not take this key; give --api-key or set OPENAI_API_KEY"),
        (("jobs", "ls", "--api-key", "a\nb"), 2, "characters that no key has"),
        (("jobs", "ls", "--status", "odd", "--api-key", WEB_KEY), 2, "'status' takes"),
        (("jobs", "show", "job_gw/../x", "--api-key", WEB_KEY), 2, ""),
        (("jobs", "ls", "--url", "http://127.0.0.1:1"), 1, "no gateway answers at"),
        (("jobs", "ls", "--url", "ftp://x"), 2, "is no address"),
        (("batch", "run", "gone.jsonl", "--api-key", WEB_KEY), 1, "gone.jsonl: No such file or directory"),
        (("batch", "run", "/", "--api-key", WEB_KEY), 2, "/ is no file"),
        (("batch", "run", "EMPTY", "--api-key", WEB_KEY), 2, "is empty, or no file"),
        (("batch", "run", "INPUT", "--window", "1s", "--api-key", WEB_KEY), 2, "'completion_window' must be"),
        (("batch", "run", "INPUT", "--endpoint", "/v1/x", "--api-key", WEB_KEY), 2, "'endpoint' must be one of"),
        (("batch", "run", "INPUT", "--output", "INPUT", "--api-key", WEB_KEY), 2, "is there already; name another"),
        (("batch", "run", "INPUT", "--output", "x", "--errors", "x", "--api-key", WEB_KEY), 2, "name two"),
    ],
)
async def test_what_cannot_be_done_is_a_sentence(
    capsys: pytest.CaptureFixture[str],
    gateway: Running,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    """On standard error: 2 for what was asked, 1 for what is not there; nothing has run."""
    (tmp_path / "empty.jsonl").touch()
    places = {"INPUT": str(written(tmp_path, ["a"])), "EMPTY": str(tmp_path / "empty.jsonl")}
    where = () if "--url" in arguments else ("--url", gateway.url)

    found, output, errors = await run(capsys, *(places.get(one, one) for one in arguments), *where)

    assert (found, output) == (code, "")
    assert errors.splitlines()[-1].startswith("gateway: ")
    assert said in errors
    assert ("uploading" in errors) is ("--window" in arguments or "--endpoint" in arguments)  # of what can be sent
    assert gateway.upstream_calls() == 0


async def test_a_gateway_that_is_not_there_for_a_while_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gateway: Running, tmp_path: Path
) -> None:
    """The batch is durable, so is the wait; what never passes ends it, with the way on."""
    asked, real = 0, CallerClient.request

    def ask(self: CallerClient, method: str, path: str, *rest: Any) -> Any:
        nonlocal asked
        asked += path.startswith("batches")
        if 1 <= asked <= 3:
            raise AdminRefused("no gateway answers")
        return real(self, method, path, *rest)

    monkeypatch.setattr(CallerClient, "request", ask)
    path = written(tmp_path, ["a"])
    code, _, _ = await run(capsys, "batch", "run", str(path), *caller(gateway))
    monkeypatch.setattr(patience, "PATIENCE_S", 0.0)
    monkeypatch.setattr(CallerClient, "content", lambda *_: _broken())
    again, _, errors = await run(capsys, "batch", "run", str(path), "--output", str(tmp_path / "x"), *caller(gateway))

    assert (code, again) == (0, 1)
    assert "the line broke; batch_gw" in errors
    assert f"--url {gateway.url}' tells how far it is and where its answers are" in errors
    assert not any((tmp_path / name).exists() for name in ("x", "x.unfinished"))


def _broken() -> Iterator[bytes]:
    yield b"half of it"
    raise AdminRefused("the line broke")


@pytest.mark.parametrize("cancels", [False, True])
async def test_who_leaves_is_told_how_to_go_on(gateway: Running, tmp_path: Path, cancels: bool) -> None:
    """Ctrl-C leaves the batch running, or stops it, as was asked for; what was answered is written then."""
    may_end = hold(gateway)
    await gateway.emulator.configure(ttft_s=1.0)  # which only the hold ends
    flags = ("--cancel-on-interrupt",) if cancels else ()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway", "batch", "run", str(written(tmp_path, ["a", "b"]))),
        *(*caller(gateway), *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: gateway.emulator.emulator.stats.active >= 1)
    process.send_signal(signal.SIGINT)
    async with gateway.sdk() as sdk, asyncio.timeout(PATIENCE_S):
        if cancels:
            while (await sdk.batches.list()).data[0].status == "in_progress":  # noqa: ASYNC110 - a poll over the wire
                await asyncio.sleep(0.02)
            may_end.set()
        output, errors = (one.decode() for one in await process.communicate())
        may_end.set()
        (batch,) = (await sdk.batches.list()).data

    assert process.returncode == 130
    assert "Traceback" not in errors
    if cancels:
        assert output.startswith(f"{batch.id} cancelled; ")
        assert batch.status == "cancelled"
    else:
        assert errors.splitlines()[-1].startswith(f"gateway: {batch.id} goes on at the gateway; 'gateway jobs show ")
        assert batch.status in ("in_progress", "finalizing", "completed")


async def test_an_upload_that_is_refused_early_is_told_as_the_gateway_says_it(
    capsys: pytest.CaptureFixture[str], start: StartGateway, tmp_path: Path
) -> None:
    """Before all of it was sent."""
    gateway = await start(with_jobs(tmp_path, jobs={"max_file": "1MiB"}))
    path = tmp_path / "night.jsonl"
    path.write_bytes(b"x" * 8 * 2**20)

    code, _, errors = await run(capsys, "batch", "run", str(path), *caller(gateway))

    assert code == 2, errors
    assert "no gateway answers" not in errors


async def test_another_tenants_batch_is_none(capsys: pytest.CaptureFixture[str], gateway: Running) -> None:
    """Neither is its job."""
    job = await take(gateway.url, new_job(delay="1h"))

    code, output, errors = await run(capsys, "jobs", "cancel", job["id"], *caller(gateway, NIGHTLY_KEY))

    assert (code, output) == (2, "")
    assert errors.startswith("gateway: ")


def test_of_an_upload_a_piece_at_a_time_is_in_memory(tmp_path: Path) -> None:
    """However large the file; its name may be anything."""
    path = tmp_path / "large.jsonl"
    with path.open("wb") as out:
        out.truncate(64 * 2**20)
    head, tail = _form("b", 'a"\r\n\u00fc.jsonl')
    form, received = UploadForm(b"multipart/form-data; boundary=b"), 0
    tracemalloc.start()
    with path.open("rb") as source:
        for piece in _pieces(head, source, 64 * 2**20, tail):
            received += sum(map(len, form.feed(piece[:1024] if piece[:1] == b"\0" else piece)))
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    form.close()

    assert (form.fields, form.filename) == ({"purpose": "batch"}, "a%22%0D%0A\u00fc.jsonl")
    assert received == 64 * 1024
    assert peak < 8 * 2**20


def test_a_file_that_shrinks_is_not_sent_as_if_whole(tmp_path: Path) -> None:
    """Another may have written to it."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"12345")
    with path.open("rb") as source, pytest.raises(AdminRefused, match="has become shorter"):
        list(_pieces(b"", source, 6, b""))


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_and_few_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No longer than the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "11")
    terminal, plain = _Terminal(), io.StringIO()
    for out in (terminal, plain):
        line = ProgressLine(out)
        for text in ("one", "two and more"):
            line.show(text)
        line.clear()

    assert terminal.getvalue() == "\rone\x1b[K\rtwo and mo\x1b[K\r\x1b[K"
    assert plain.getvalue() == "one\n"


JOB = {
    "id": "job_gw1",
    "kind": "call",
    "status": "failed",
    "is_paused": True,
    "model": "gpt-4o",
    "endpoint": "/v1/x",
    "progress": {"total": 0, "done": 0, "failed": 0},
    "attempts": {"made": 1, "max": 5},
    "last_error": None,
    "usage": {"input_tokens": 1, "output_tokens": 2},
    **dict.fromkeys(("created_at", "started_at", "finished_at", "deadline"), 0),
    "cost_usd": 0.000123456,
    "result": None,
}


def test_a_batch_is_shown_with_what_it_waits_for_and_without_attempts() -> None:
    """Its lines have attempts; its own would always be none."""
    files = {"output_file_id": None, "error_file_id": None}
    batch = {**JOB, "kind": "batch", "status": "running", "batch": files, "paused": "budget_exceeded"}

    facts = dict(row.split(maxsplit=1) for row in job_facts(batch).splitlines())
    assert (facts["paused"], "attempts" in facts) == ("budget_exceeded", False)
    assert "paused" not in dict(row.split(maxsplit=1) for row in job_facts({**batch, "paused": None}).splitlines())
    assert "attempts  1 of 5\n" in job_facts(JOB)


def test_nothing_that_was_named_commands_the_terminal() -> None:
    """Neither a model, nor an error, nor a problem of a line."""
    job = {**JOB, "model": "\x1b[2J", "last_error": {"class": "x", "message": "\x1b[2J"}}
    found = [{"line": number, "code": "x", "message": "\x1b[2J"} for number in range(12)]
    shown = [
        jobs_table({"data": [job], "has_more": False}),
        job_facts(job),
        batch_problems({"id": "batch_gw1", "errors": {"data": found}}),
    ]

    assert not any("\x1b" in text for text in shown)
    assert "failed (paused)" in shown[0]
    assert "$0.000123" in shown[0]
    assert shown[2].endswith("\nand 2 more")
    assert jobs_table({"data": [], "has_more": False}) == "no jobs"
