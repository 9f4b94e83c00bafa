"""Dead letters as rows of the jobs file, and their groups; used by the file's thread, in transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from gateway.products.jobs import sqlite_rows
from gateway.products.jobs.dead_letters.rules import (
    REDRIVES,
    DeadGroup,
    DeadLetter,
    LetterKind,
    LetterPage,
    end_redrive,
    letter_of_job,
    pack,
    stripped,
    unpack,
)
from gateway.products.jobs.model import JobEnd
from gateway.products.jobs.sqlite_rows import JobRow
from gateway.products.jobs.transitions import GROUPS_AT_ONCE, MOST_GROUPS

_COUNTED = (
    "INSERT INTO dead_groups (id, kind, class, model, template, count, bytes) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET count = count + excluded.count, bytes = bytes + excluded.bytes"
)
_GROUPS = (
    "SELECT id, kind, class, model, template, count, bytes, "
    "(SELECT min(at) FROM dead WHERE grp = dead_groups.id AND open = 1), "
    "(SELECT max(at) FROM dead WHERE grp = dead_groups.id AND open = 1) FROM dead_groups "
)
_LARGEST, _NEXT = f"{_GROUPS}ORDER BY count DESC, id LIMIT ?", f"{_GROUPS}WHERE id > ? ORDER BY id LIMIT ?"
_PAGE = "SELECT body FROM dead WHERE grp = ? AND open = 1 AND (at, id) > (?, ?) ORDER BY at, id LIMIT ?"


def add(db: sqlite3.Connection, letters: Sequence[DeadLetter]) -> None:
    """Keeps letters; one that is there stays as it is."""
    for letter in letters:
        if find(db, letter.id) is None:
            _insert(db, letter)


def ended(db: sqlite3.Connection, row: JobRow, end: JobEnd) -> None:
    """Makes the letter of a job at its end, and writes the outcome of a redrive into that which was redriven."""
    letter = letter_of_job(row.job, end, sqlite_rows.payload_bytes(db, row))
    if letter is not None:
        add(db, [letter])
    redriven = find(db, row.job.about.get(REDRIVES, ""))
    if redriven is not None:
        change(db, redriven, end_redrive(redriven, row.job))


def find(db: sqlite3.Connection, letter_id: str) -> DeadLetter | None:
    """Returns a letter."""
    found = db.execute("SELECT body FROM dead WHERE id = ?", (letter_id,)).fetchone() if letter_id else None
    return None if found is None else unpack(found[0])


def change(db: sqlite3.Connection, old: DeadLetter, new: DeadLetter) -> None:
    """Writes a letter that has changed."""
    if new != old:
        remove(db, old)
        _insert(db, new)


def remove(db: sqlite3.Connection, letter: DeadLetter) -> None:
    """Removes a letter; its job may be forgotten."""
    db.execute("DELETE FROM dead WHERE id = ?", (letter.id,))
    _count(db, letter, -1)
    if letter.holds_job:
        db.execute("UPDATE jobs SET dead = 0 WHERE id = ?", (letter.job_id,))


def groups(db: sqlite3.Connection, samples: int, after: str | None) -> list[DeadGroup]:
    """Returns the groups with the most letters, the largest first, each with its newest letters; or the next by id."""
    newest = "SELECT body FROM dead WHERE grp = ? AND open = 1 ORDER BY at DESC, id DESC LIMIT ?"
    found = []
    rows = db.execute(_LARGEST, (MOST_GROUPS,)) if after is None else db.execute(_NEXT, (after, GROUPS_AT_ONCE))
    for name, kind, *rest in rows.fetchall():
        bodies = db.execute(newest, (name, samples)).fetchall() if samples else []
        fields = [name, LetterKind(kind), *rest, [unpack(body) for (body,) in bodies]]
        found.append(DeadGroup(*fields))
    return found


def page_of(db: sqlite3.Connection, page: LetterPage) -> list[DeadLetter]:
    """Returns the letters of a group that are open, in order."""
    rows = db.execute(_PAGE, (page.group, *page.after, page.limit)).fetchall()
    return [unpack(body) for (body,) in rows]


def payload(db: sqlite3.Connection, letter_id: str) -> bytes | None:
    """Returns the payload of a letter's job."""
    letter = find(db, letter_id)
    row = None if letter is None or not letter.bytes else sqlite_rows.find(db, letter.job_id)
    return None if row is None else sqlite_rows.payload_of(db, row)


def purge(db: sqlite3.Connection, letter_ids: Sequence[str]) -> int:
    """Removes letters; returns how many there were."""
    found = [letter for letter_id in letter_ids if (letter := find(db, letter_id)) is not None]
    for letter in found:
        remove(db, letter)
    return len(found)


def trim(db: sqlite3.Connection, before: float, max_bytes: int, most: int) -> int:
    """Removes old letters, and of the oldest others the payloads."""
    old = db.execute("SELECT id FROM dead WHERE at < ? ORDER BY at, id LIMIT ?", (before, most)).fetchall()
    done = purge(db, [letter_id for (letter_id,) in old])
    (total,) = db.execute("SELECT coalesce(sum(bytes), 0) FROM dead_groups").fetchone()
    if total <= max_bytes:
        return done
    oldest = "SELECT body FROM dead WHERE bytes > 0 ORDER BY at, id LIMIT ?"
    for (body,) in db.execute(oldest, (most - done,)).fetchall():
        if total <= max_bytes:
            break
        letter = unpack(body)
        change(db, letter, stripped(letter))
        row = sqlite_rows.find(db, letter.job_id)
        if row is not None:
            sqlite_rows.drop_payload(db, row)
        total -= letter.bytes
        done += 1
    return done


def _insert(db: sqlite3.Connection, letter: DeadLetter) -> None:
    db.execute(
        "INSERT INTO dead (id, grp, at, open, bytes, body) VALUES (?, ?, ?, ?, ?, ?)",
        (letter.id, letter.group, letter.at, letter.is_open, letter.bytes, pack(letter)),
    )
    _count(db, letter, 1)
    if letter.holds_job:
        db.execute("UPDATE jobs SET dead = 1 WHERE id = ?", (letter.job_id,))


def _count(db: sqlite3.Connection, letter: DeadLetter, change: int) -> None:
    """Counts an open letter in its group, which is there as long as it has one."""
    if letter.is_open:
        name = letter.group
        about = (name, letter.kind, letter.error_class, letter.model, letter.template)
        db.execute(_COUNTED, (*about, change, change * letter.bytes))
        db.execute("DELETE FROM dead_groups WHERE id = ? AND count <= 0", (name,))
