"""`gateway state backup`: an operator's copy of a running gateway's state file, and what it says when there can be none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest

from gateway.cli.main import main
from gateway.cli.operate import AdminRefused, save
from gateway.drivers.sqlite_file import damage_of
from tests.e2e.conftest import StartGateway
from tests.e2e.harness import ADMIN_KEY, config_of, connect, get, post

ADMIN = f"authorization: Bearer {ADMIN_KEY}"
CHAT = "/v1/chat/completions"
BODY = orjson.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]})
KEYED = post(CHAT, BODY, "idempotency-key: once")


async def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error; the gateway goes on in this loop meanwhile."""
    code = await asyncio.to_thread(main, ["state", "backup", *arguments])
    output, errors = capsys.readouterr()
    return code, output, errors


def on_file(path: Path, url: str) -> dict[str, object]:
    return config_of(url, admin={"key": ADMIN_KEY}, state=f"sqlite:///{path}")


async def test_a_copy_answers_repeated_keys(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A gateway that starts on it knows what the first one answered; nothing is left beside the state file."""
    (tmp_path / "first").mkdir()
    first = await start(lambda url: on_file(tmp_path / "first" / "state.db", url))
    async with connect(first.url) as peer:
        answered = await peer.exchange(KEYED)
    copy = tmp_path / "copy.db"
    code, output, errors = await run(capsys, str(copy), "--url", first.url, "--admin-key", ADMIN_KEY)
    second = await start(lambda url: on_file(copy, url))
    async with connect(second.url) as peer:
        again = await peer.exchange(KEYED)

    assert (code, errors) == (0, "")
    assert f"{copy}: " in output
    assert (again.body, again.header("idempotent-replayed")) == (answered.body, "true")
    assert second.upstream_calls() == 0
    assert {path.name for path in (tmp_path / "first").iterdir()} <= {"state.db", "state.db-wal", "state.db-shm"}


async def test_an_existing_file_is_not_overwritten(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is named."""
    gateway = await start(lambda url: on_file(tmp_path / "state.db", url))
    mine = tmp_path / "mine"
    mine.write_text("mine")

    code, _, errors = await run(capsys, str(mine), "--url", gateway.url, "--admin-key", ADMIN_KEY)

    assert (code, errors) == (2, f"gateway: {mine} is there already; name another file\n")
    assert mine.read_text() == "mine"


async def test_a_state_that_is_no_file_is_said(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With what to do instead; no file is left."""
    gateway = await start(lambda url: config_of(url, admin={"key": ADMIN_KEY}))

    code, _, errors = await run(capsys, str(tmp_path / "copy"), "--url", gateway.url, "--admin-key", ADMIN_KEY)

    assert code == 2
    assert "state: sqlite:///" in errors
    assert "BGSAVE" in errors
    assert not (tmp_path / "copy").exists()


async def test_only_operators_get_a_copy(start: StartGateway, tmp_path: Path) -> None:
    """Answers are in it, in clear."""
    gateway = await start(lambda url: on_file(tmp_path / "state.db", url))
    async with connect(gateway.url) as peer:
        statuses = [(await peer.exchange(get("/admin/state/backup", *given))).status for given in ((), (ADMIN,))]

    assert statuses == [401, 200]


async def test_a_disk_without_room_for_it_is_said(
    start: StartGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway's own disk, where the copy is made first."""
    gateway = await start(lambda url: on_file(tmp_path / "state.db", url))
    taken = tmp_path / "state.db.aa.backup"
    taken.write_text("in the way")
    monkeypatch.setattr("gateway.admin.http.token_hex", lambda _: "aa")

    code, _, errors = await run(capsys, str(tmp_path / "copy"), "--url", gateway.url, "--admin-key", ADMIN_KEY)

    assert code == 1
    assert "could not be copied" in errors
    assert "room" in errors


def test_a_damaged_copy_is_refused_and_not_kept(tmp_path: Path) -> None:
    """Whoever needs a backup has nothing else."""
    with pytest.raises(AdminRefused, match="the copy is damaged"):
        save([b"SQLite format 3\0", bytes(5000)], tmp_path / "copy", damage_of)

    assert list(tmp_path.iterdir()) == []


async def test_what_a_killed_process_left_of_a_copy_goes_at_the_next_start(start: StartGateway, tmp_path: Path) -> None:
    """It holds answers in clear, and may be as large as the state; nothing else that lies there is touched."""
    left = tmp_path / "state.db.0123456789abcdef.backup"
    others = {
        tmp_path / name for name in ("state.db.backup", "state.db.2026-01-01.backup", "else.db.0123456789abcdef.backup")
    }
    for path in (left, *others):
        path.write_bytes(b"x")

    await start(lambda url: on_file(tmp_path / "state.db", url))

    assert not left.exists()
    assert all(path.exists() for path in others)
